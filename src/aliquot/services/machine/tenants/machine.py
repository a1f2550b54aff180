"""The tenants of one machine: running, queued and booked. The state of the daemon without its event loop.

    submit    a run or a Pod requests a slice: it starts, waits or is refused
    leave     a queued request gives up
    move_on   a process that has a tenant asks again: it leaves that tenant
    ended     the root process of a tenant has ended
    sweep     ends the tenants without a root process that have no other process left, by a scan of /proc
    restore   adopts the tenants that survived a restart of the daemon

Single-threaded; callers pass the time in. Promises are persisted first: a tenant is in the store before its run may
start, and stays in the ledger until none of its processes is alive.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from aliquot import dialects
from aliquot.adapters.gpu.page import PageError
from aliquot.adapters.host import processes
from aliquot.adapters.host.home import TENANT_VARIABLE, Home
from aliquot.adapters.host.procscan import Scan, scan
from aliquot.adapters.host.users import user_name
from aliquot.adapters.storage.folders import remove_folder
from aliquot.adapters.storage.store import Store, StoreError
from aliquot.model.choice import Choice
from aliquot.model.claim import Claim
from aliquot.model.control import CardControl
from aliquot.model.device import Card
from aliquot.model.grant import Grant
from aliquot.model.node import deal
from aliquot.model.residency import Residency
from aliquot.model.tenancy import Tenancy, shares_of
from aliquot.model.tenant import Finding, SharingRules, Standing, Tenant
from aliquot.placement.board import Board, Occupant
from aliquot.placement.book import Ledger, occupant_of
from aliquot.placement.choose import POLICIES, Chooser
from aliquot.services.daemon.control import Caller, RefusedError, invalid
from aliquot.services.machine.history import RunHistory
from aliquot.services.machine.queue import Notify, Queue, QueuedRequest
from aliquot.services.machine.requests import RunRequest, never_fits
from aliquot.services.machine.settings import Factors, keep_rules, stored_rules
from aliquot.services.machine.tenants.groupmembers import GroupMembers
from aliquot.services.machine.tenants.members import Orphans, user_of
from aliquot.services.machine.tenants.runfiles import (
    RunNames,
    log_error,
    make_folder,
    new_id,
    new_log,
    remove_log,
    remove_strays,
)
from aliquot.services.runtime.together.groups import Groups
from aliquot.wording.refusals import one_sentence

_LOG = logging.getLogger("aliquot.tenants")


class Arbiter(Protocol):
    """Enforces the shares on the cards: services/runtime/arbiterd.py."""

    def add(self, tenant: Tenant, directory: Path) -> None: ...
    def change(self, tenant: Tenant) -> None: ...
    def remove(self, tenant_id: str) -> None: ...
    def configure(self, rules: SharingRules) -> None: ...
    def standings(self) -> list[Standing]: ...
    def findings(self) -> list[Finding]: ...
    def controls(self) -> Mapping[str, CardControl]: ...
    def alive(self, tenant_id: str) -> bool: ...
    def request_move(self, tenant_id: str, *, leave: bool) -> str | None: ...  # why not, in a sentence
    def residencies(self, tenant_id: str) -> list[Residency]: ...


class GrantListener(Protocol):
    """A Pod in the queue."""

    def notify(self, message: dict[str, Any]) -> None: ...
    def on_grant(self, tenancy: Tenancy, grant: Grant, choice: Choice | None) -> None: ...


class LocalMachine:
    """See the module docstring."""

    def __init__(
        self,
        cards: Sequence[Card],
        *,
        home: Home,
        store: Store,
        arbiter: Arbiter,
        watch: Callable[[Tenancy], None],
        environment: Callable[[Tenancy, str], dict[str, Any]],
        names: Sequence[str] = ("here",),
        clock: Callable[[], float] = time.monotonic,
        pool_mib: int = 0,
        groups: Groups | None = None,
    ) -> None:
        self.factors = Factors(store)
        dealt = deal(cards, names)
        self.nodes = tuple(replace(self.factors.applied(node), pool_mib=pool_mib // len(dealt)) for node in dealt)
        self.cards = tuple(card for node in self.nodes for card in node.cards)  # numbered per node
        self.pool_mib = pool_mib
        self.home = home
        self.store = store
        self._writer = store.writer
        self.arbiter = arbiter
        self.tenancies: dict[str, Tenancy] = {}
        self._watch = watch  # arranges that `ended` is called when the root process ends
        self._environment = environment  # of the tenant's processes
        self._orphans = Orphans(self.directory, self._on_cards)
        board = Board()
        for node in self.nodes:
            board.set_node(node)
        self.ledger = Ledger(board)
        self.chooser = Chooser(board, POLICIES["binpack"]())
        self.queue = Queue(self.ledger, self.chooser)
        self.groups = groups  # None: no run shares a card in space
        self.group_members = GroupMembers(groups, self.tenancies, self.queue)
        self.queue.preferred = self.group_members.cards
        self._places = {card.uuid: (node.name, card.index) for node in self.nodes for card in node.cards}
        self.rules = stored_rules(store)
        self._names = RunNames(home, store)
        self.history = RunHistory(store.history, store.writer, self.directory)
        self.rebooted = False  # since the previous daemon; set by `restore`
        self.clock = clock  # of the queue
        self._room_is_new = False  # nobody in the queue was offered it yet
        self._admitting = False
        # With an event loop (control.py) both are done a little later, once for all changes, and in small steps.
        self.room_changed: Callable[[], None] = lambda: _exhaust(self.start_waiting())
        self.queue_changed: Callable[[], None] = lambda: _exhaust(self.notify_waiting())
        self.tenant_orphaned: Callable[[], None] = self.sweep_now  # with an event loop: in a thread (sweeper.py)

    # --- settings ----------------------------------------------------------------------------------------------

    async def oversubscribe(self, factor: float, uuids: Collection[str]) -> None:
        """Set the factor of these cards. What is booked stays. Raises StoreError."""
        changed = self.factors.changed(factor, uuids)
        await self._writer.run(lambda: self.factors.keep(changed))
        self.factors.by_uuid = changed
        self.nodes = tuple(self.factors.applied(node) for node in self.nodes)
        self.cards = tuple(card for node in self.nodes for card in node.cards)
        for node in self.nodes:
            self.ledger.board.set_node(node)
        self._apply_rules(self.rules)
        self._look_at_queue()

    def configure(self, rules: SharingRules) -> None:
        """Apply the rules now, and keep them if the disk has room."""
        try:
            keep_rules(self.store, rules)
        except StoreError as error:
            _LOG.error("settings_not_stored", extra={"data": {"error": str(error)}})
        self._apply_rules(rules)

    async def change_rules(self, rules: SharingRules) -> None:
        """The same in the event loop. Raises StoreError."""
        await self._writer.run(lambda: keep_rules(self.store, rules))
        self._apply_rules(rules)

    def _apply_rules(self, rules: SharingRules) -> None:
        factor = max((card.oversubscribe for card in self.cards), default=1.0)
        self.rules = replace(rules, oversubscribe=factor, host_pool=self.pool_mib << 20)
        self.arbiter.configure(self.rules)

    # --- after a restart ---------------------------------------------------------------------------------------

    def restore(self, found: Scan | None = None) -> None:
        """Adopt the tenants that are alive; discard the others. `found`: a scan of the users of `stored_users`."""
        same_boot = self.store.setting("boot") in (None, processes.boot_id())
        self.rebooted = not same_boot
        stored = sorted(self.store.tenancies(), key=lambda tenancy: tenancy.created)
        if found is None:
            found = scan((TENANT_VARIABLE,), self.stored_users())
        newest = {(tenancy.root, tenancy.started): tenancy.id for tenancy in stored}
        dead = []
        for tenancy in stored:
            if newest[tenancy.root, tenancy.started] != tenancy.id:
                self._orphans.mark_left(tenancy.id)
            if same_boot and self._is_alive(tenancy, found):
                self._adopt(tenancy)
            else:
                dead.append(tenancy)
        if self.groups is not None:
            self.groups.restore(self.group_members.by_group())
        for tenancy in dead:  # only now it is known which groups have living members
            self.history.add(tenancy, None)
            self._discard(tenancy)
        self._writer.put(self._store_boot, log_error("boot_not_stored", "-"))
        remove_strays(self.home.tenants, self.tenancies)

    def _store_boot(self) -> None:
        """The next daemon discards tenants of another boot: no tenant is stored before this is."""
        self.store.set("boot", processes.boot_id())

    def _store_tenant(self, tenancy: Tenancy) -> None:
        self._store_boot()
        self.store.add(tenancy)

    def stored_users(self) -> set[int]:
        """The users of the tenants that a daemon before this one had."""
        return {user_of(tenancy) for tenancy in self.store.tenancies()}

    def _is_alive(self, tenancy: Tenancy, found: Scan) -> bool:
        tenant = tenancy.tenant
        if self._orphans.has_root(tenancy):
            return True
        self._orphans.add(tenant.id)
        if self.members(tenancy, found) or user_of(tenancy) in found.unfinished:
            return True
        # The arbiter sees which processes have a slot on the tenant's page.
        return self._register(tenant) and self.arbiter.alive(tenant.id)

    def _register(self, tenant: Tenant) -> bool:
        """False if the arbiter cannot use the folder. The tenant owns it and may have broken it; others go on."""
        try:
            self.arbiter.add(tenant, self.directory(tenant.id))
        except (PageError, OSError) as error:
            _LOG.warning("tenant_folder_unusable", extra={"data": {"tenant": tenant.name, "error": str(error)}})
            return False
        return True

    def _adopt(self, tenancy: Tenancy) -> None:
        tenant = tenancy.tenant  # with its missing cards: they are on its page
        missing = [share.uuid for share in tenancy.shares if share.uuid not in self._places]
        if missing:
            _LOG.warning("tenant_cards_missing", extra={"data": {"tenant": tenant.name, "cards": missing}})
        here = [(share, *self._places[share.uuid]) for share in tenancy.shares if share.uuid in self._places]
        tenancy = replace(tenancy, shares=tuple(replace(share, card=index) for share, _, index in here))
        node = here[0][1] if here else self.nodes[0].name
        self.ledger.confirm(tenant.id, node, _occupant(tenancy))
        self._register(tenant)
        self.tenancies[tenant.id] = tenancy
        self._watch(tenancy)
        _LOG.info("tenant_adopted", extra={"data": {"tenant": tenant.name, "pid": tenant.root}})

    # --- arrival -----------------------------------------------------------------------------------------------

    def submit(self, request: RunRequest, caller: Caller, now: float, notify: Notify) -> QueuedRequest:
        """Request a slice for a run. `notify` gets every answer. Raises RefusedError if the run cannot even wait."""
        broken = never_fits(request, [node.cards for node in self.nodes])
        if broken is not None:
            raise invalid(broken)
        if request.group:
            self.group_members.may_join(request.group, request.app_class, caller.uid)
        started = self._start_time(caller)
        name = self._name(request)
        entry = QueuedRequest(
            request.claim(new_id(self.home), name), request, caller.pid, caller.uid, caller.gid, started, self.clock(),
            notify, log=new_log(self.home.log_of(name), name, caller) if request.detach else None,
        )  # fmt: skip
        self.queue.add(entry)
        if not self._room_is_new or not request.wait:
            self._start(entry, now)
        if not request.wait and entry.queued:
            position = self.queue.position_of(entry)
            self.queue.remove(entry)
            remove_log(entry.log)
            raise RefusedError("busy", **position)  # the others' positions did not change
        self.queue_changed()
        return entry

    def submit_pod(
        self, claim: Claim, request: RunRequest, caller: Caller, since: float, now: float, pod: GrantListener
    ) -> QueuedRequest:
        """Request a slice for a Pod on behalf of its supervisor process. It waits without a limit. `since`: by `clock`;
        it may be earlier than that of others in the queue."""
        started = self._start_time(caller)
        if claim.uid in self.tenancies:
            raise RefusedError("failed", text="processes of its earlier grant are still alive")
        entry = QueuedRequest(
            claim, request, caller.pid, caller.uid, caller.gid, started, since, pod.notify, on_grant=pod.on_grant
        )
        self.queue.add(entry)
        if list(self.queue)[-1] is entry and not self._room_is_new:
            self._start(entry, now)
            self.queue_changed()
        else:
            self._look_at_queue()
        return entry

    def _start_time(self, caller: Caller) -> int:
        """Start time of the calling process. It leaves the tenant that it has."""
        self.may_run(caller)
        if caller.started is None or not processes.lives(caller.pid, caller.started):
            raise RefusedError("denied", text="the requesting process has ended")
        if self.move_on(caller):
            self.tenant_orphaned()
        return caller.started

    def why_never(self, claim: Claim) -> str | None:
        """Why the claim would not fit even on the empty machine; None if it would."""
        board = Board()
        for node in self.nodes:
            board.set_node(node)
        chooser = Chooser(board, POLICIES["binpack"]())
        if chooser.choose(claim) is not None:
            return None
        return one_sentence(chooser.refusals(claim), claim, len(self.nodes))

    def node_of(self, tenancy: Tenancy) -> str | None:
        """The node of its cards."""
        return next((self._places[share.uuid][0] for share in tenancy.shares if share.uuid in self._places), None)

    def leave(self, entry: QueuedRequest, now: float) -> None:
        """Remove the request from the queue: its process ended or the user stopped it."""
        was_first = next(iter(self.queue), None) is entry
        if self.queue.remove(entry):
            if not processes.lives(entry.pid, entry.started):  # else it asks the next daemon, and keeps its output
                remove_log(entry.log)
            (self._look_at_queue if was_first else self.queue_changed)()  # only the first has cards reserved

    def _look_at_queue(self) -> None:
        """Some request in the queue may fit now."""
        self._room_is_new = True
        self.room_changed()

    def start_waiting(self) -> Iterator[None]:
        """Start every queued request that fits, one at a step, then notify the others of their position."""
        try:
            while (found := self.queue.next()) is not None:
                self._admit(*found, time.time())
                yield
        finally:
            self._room_is_new = False  # only now: until then a newcomer would overtake those that wait
        self.queue_changed()

    def _start(self, entry: QueuedRequest, now: float) -> None:
        """Start the request that came last, if it fits."""
        if (found := self.queue.next(only=entry)) is not None:
            self._admit(*found, now)

    def notify_waiting(self) -> Iterator[None]:
        """Send every queued request its position, one at a step, if it changed."""
        for entry, position in self.queue.positions():
            if entry.request.wait and position != entry.last_position:
                entry.last_position = position
                entry.notify({"event": {"waiting": position, "log": entry.log}})
            yield

    def _admit(self, entry: QueuedRequest, grant: Grant, now: float) -> None:
        self.queue.remove(entry)
        self._admitting = True
        try:
            self._prepare(entry, grant, now)
        finally:
            self._admitting = False

    def _prepare(self, entry: QueuedRequest, grant: Grant, now: float) -> None:
        """Book its cards and write that down; `_stored` goes on."""
        shares = shares_of(grant, {})
        tenancy = Tenancy(
            entry.id, "", entry.name, entry.claim.app_class, shares, now,
            entry.uid, entry.pid, entry.started, entry.request.command, entry.log, park_after=entry.claim.park_after,
            group=entry.claim.group, latency=entry.claim.latency, release_delay=dialects.release_delay(entry.claim),
        )  # fmt: skip
        folder = self.directory(entry.id)
        self.ledger.confirm(entry.id, grant.node, occupant_of(entry.claim, grant))
        self.tenancies[entry.id] = tenancy
        try:
            make_folder(folder, entry.uid, entry.gid)
        except OSError as error:
            self._not_started(entry, tenancy, error)
            return
        self._writer.put(lambda: self._store_tenant(tenancy), lambda error: self._stored(entry, tenancy, grant, error))

    def _stored(self, entry: QueuedRequest, tenancy: Tenancy, grant: Grant, error: Exception | None) -> None:
        """The tenant is on the disk, or it cannot be: now its run starts, or is refused; first its group's server."""
        if error is None and tenancy.group and self.groups is not None and tenancy.id in self.tenancies:
            members = [one for one in self.group_members.of(tenancy.group_id) if one is not tenancy]
            self.groups.join([*members, tenancy], lambda failed: self._ready(entry, tenancy, grant, failed))
        else:
            self._ready(entry, tenancy, grant, error)

    def _ready(self, entry: QueuedRequest, tenancy: Tenancy, grant: Grant, error: Exception | None) -> None:
        if self.tenancies.get(tenancy.id) is not tenancy:
            entry.notify({"error": {"kind": "stopped", "text": "it was stopped before it started"}})
            return
        folder = self.directory(tenancy.id)
        try:
            if error is not None:
                raise error
            self.arbiter.add(tenancy.tenant, folder)
        except Exception as failed:
            self._not_started(entry, tenancy, failed)
            return
        self._watch(tenancy)
        if entry.on_grant is not None:
            entry.on_grant(tenancy, grant, entry.choice)
            return
        cards = [{"index": share.card, "uuid": share.uuid} for share in tenancy.shares]
        entry.notify(
            {"ok": {"name": entry.name, "cards": cards, "log": entry.log} | self._environment(tenancy, str(folder))}
        )

    def _not_started(self, entry: QueuedRequest, tenancy: Tenancy, error: Exception) -> None:
        """Leave nothing behind, whatever failed."""
        _LOG.error("tenant_start_failed", exc_info=error, extra={"data": {"tenant": entry.name}})
        self._discard(tenancy)
        remove_log(entry.log)
        entry.notify({"error": {"kind": "failed", "text": f"cannot prepare the run: {error}"}})
        if not self._admitting:  # else the caller goes on with the next request
            self._look_at_queue()

    def may_run(self, caller: Caller) -> None:
        """Raises RefusedError. A daemon without root cannot give a folder to another user."""
        if os.geteuid() not in (0, caller.uid):
            raise RefusedError(
                "denied", text=f"this daemon runs as {user_name(os.geteuid())} and serves only that user"
            )

    def move_on(self, caller: Caller) -> bool:
        """A process asks once. If it asks again, it missed the answer, or its command was `aliquot run` again. The
        earlier tenant goes on without it, as long as other processes of it are alive. False if there is none."""
        return self._orphans.move_on(caller.pid, caller.started, self.tenancies.values())

    def _name(self, request: RunRequest) -> str:
        taken = {tenancy.tenant.name for tenancy in self.tenancies.values()} | {entry.name for entry in self.queue}
        return self._names.new(request, taken)

    def logs_in_use(self) -> set[str]:
        """The logs of runs that run or wait."""
        return {item.log for item in (*self.tenancies.values(), *self.queue) if item.log is not None}

    def directory(self, tenant_id: str) -> Path:
        """The folder of the tenant."""
        return Path(self.home.tenants, tenant_id)

    # --- the end -----------------------------------------------------------------------------------------------

    def ended(self, tenant_id: str, now: float, code: int | None = None) -> None:
        """The root process has ended, with that code if it is known. The tenant ends with its last process."""
        if (tenancy := self.tenancies.get(tenant_id)) is not None:
            self.history.root_ended(tenant_id, code)
            self._orphans.root_ended(tenancy)
            self.tenant_orphaned()

    def suspects(self) -> dict[str, int]:
        """Tenants that may have no process left, and their users."""
        return self._orphans.suspects(self.tenancies)

    def sweep(self, now: float, found: Scan, tenants: Collection[str]) -> None:
        """End those of the tenants that have no process left. They were suspects before the scan began."""
        for tenant_id in tenants:
            tenancy = self.tenancies.get(tenant_id)
            if tenancy is None or tenant_id not in self._orphans or user_of(tenancy) in found.unfinished:
                continue
            left = self.members(tenancy, found)
            if left or self.arbiter.alive(tenant_id):
                self._orphans.set_seen(tenant_id, left)
            else:
                if self._orphans.ever_ran(tenant_id):
                    self.history.add(tenancy, now)
                self._discard(tenancy)
                self._look_at_queue()

    def sweep_now(self) -> None:
        """The same with a scan here and now."""
        suspects = self.suspects()
        self.sweep(time.time(), scan((TENANT_VARIABLE,), set(suspects.values())), suspects)

    def _discard(self, tenancy: Tenancy) -> None:
        """Forget the tenant and remove everything it had. Must not stop half way."""
        tenant_id = tenancy.tenant.id
        self.tenancies.pop(tenant_id, None)
        self._orphans.discard(tenant_id)
        self.ledger.forget(tenant_id)
        failed = log_error("tenant_cleanup_failed", tenancy.tenant.name)
        try:
            self.arbiter.remove(tenant_id)
        except OSError as error:
            failed(error)
        self._writer.put(lambda: self.store.remove(tenant_id), failed)
        remove_folder(self.directory(tenant_id))
        if tenancy.group and self.groups is not None:
            self.groups.left(tenancy.group_id, self.group_members.of(tenancy.group_id))

    def members(self, tenancy: Tenancy, found: Scan) -> dict[int, int]:
        """Its live processes, with their start times (members.py)."""
        return self._orphans.members(tenancy, found)

    def _on_cards(self, tenant_id: str) -> dict[int, int]:
        return processes.identities(
            pid for standing in self.arbiter.standings() if standing.tenant == tenant_id for pid in standing.processes
        )

    # --- by name -----------------------------------------------------------------------------------------------

    def find(self, name: object) -> Tenancy | QueuedRequest:
        """The tenant or queued request of that name. Raises RefusedError with the existing names."""
        everyone: Iterable[Tenancy | QueuedRequest] = (*self.tenancies.values(), *self.queue)
        names = {item.name if isinstance(item, QueuedRequest) else item.tenant.name: item for item in everyone}
        if isinstance(name, str) and name in names:
            return names[name]
        raise RefusedError("unknown-name", name=str(name)[:80], names=sorted(names))


def _exhaust(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


def _occupant(tenancy: Tenancy) -> Occupant:
    usage = {share.card: share.usage() for share in tenancy.shares}
    return Occupant(usage, tenancy.app_class, parkable=tenancy.parkable)
