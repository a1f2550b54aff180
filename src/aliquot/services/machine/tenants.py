"""The daemon of one machine, without its loop: who runs, who waits, what is booked. One thread, no clock of its own.

    submit    a run asks for room, or a Pod: it starts, waits, or is refused
    leave     it waits no longer
    ended     the first process of a tenant is gone
    sweep     those whose first process is gone, but not yet all the others
    restore   after a restart: whoever still lives is taken up again

What is promised is written down first: a tenant is in the store before it hears that it may start, and out of the
ledger only when none of its processes lives.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from aliquot.adapters.gpu.page import PageError
from aliquot.adapters.host import processes
from aliquot.adapters.host.home import TENANT_VARIABLE, Home
from aliquot.adapters.storage.store import Store, StoreError
from aliquot.model.claim import Claim
from aliquot.model.device import Card
from aliquot.model.grant import Grant
from aliquot.model.node import Isolation, deal
from aliquot.model.podtenancy import shares_of
from aliquot.model.refusal import Invalid
from aliquot.model.tenancy import Tenancy, allotments_of
from aliquot.model.tenant import Finding, SharingRules, Standing, Tenant
from aliquot.placement.board import Board, Occupant
from aliquot.placement.book import Ledger, occupant_of
from aliquot.placement.choose import POLICIES, Chooser
from aliquot.services.daemon.control import Caller, RefusedError, invalid
from aliquot.services.machine.queue import Queue, Waiting
from aliquot.services.machine.requests import Ask, never_fits, readable_name
from aliquot.wording.refusals import one_sentence

_LOG = logging.getLogger("aliquot.node")


class Arbiter(Protocol):
    """What performs the sharing: services/runtime/arbiterd.py."""

    def add(self, tenant: Tenant, directory: Path) -> None: ...
    def remove(self, tenant_id: str) -> None: ...
    def configure(self, rules: SharingRules) -> None: ...
    def standings(self) -> list[Standing]: ...
    def findings(self) -> list[Finding]: ...
    def alive(self, tenant_id: str) -> bool: ...


class Pod(Protocol):
    """One that waits for room: it hears what happens, and where it may go."""

    def tell(self, said: dict[str, Any]) -> None: ...
    def seated(self, tenancy: Tenancy, grant: Grant) -> None: ...


class LocalNode:
    """See the head of the file."""

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
    ) -> None:
        self.nodes = deal(cards, names)
        self.cards = tuple(card for node in self.nodes for card in node.cards)  # numbered within their node
        self.home = home
        self.store = store
        self.arbiter = arbiter
        self.tenancies: dict[str, Tenancy] = {}
        self._watch = watch  # see that `ended` is called when the root of the tenancy ends
        self._environment = environment  # what its processes need in their environment
        self._orphans: dict[str, dict[int, int]] = {}  # tenants without a root: the processes seen last
        board = Board()
        for node in self.nodes:
            board.set_node(node)
        self.ledger = Ledger(board)
        self.chooser = Chooser(board, POLICIES["binpack"]())
        self.queue = Queue(self.ledger, self.chooser)
        self._places = {card.uuid: (node.name, card.index) for node in self.nodes for card in node.cards}
        self.rules = self._kept_rules()
        self.rebooted = False  # since the last daemon; `restore` finds out

    # --- settings ----------------------------------------------------------------------------------------------

    def _kept_rules(self) -> SharingRules:
        isolation, delay = self.store.setting("policy"), self.store.setting("release_delay")
        rules = SharingRules()
        if isolation is not None:
            rules = replace(rules, isolation=Isolation(isolation))
        return rules if delay is None else replace(rules, release_delay=float(delay))

    def configure(self, rules: SharingRules) -> None:
        """From now on, and after a restart."""
        self.store.set("policy", rules.isolation.value)
        self.store.set("release_delay", repr(rules.release_delay))
        self.rules = rules
        self.arbiter.configure(rules)

    # --- after a restart ---------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Take up again whoever lives; forget the rest."""
        same_boot = self.store.setting("boot") in (None, processes.boot_id())
        self.rebooted = not same_boot
        for tenancy in self.store.tenancies():
            if same_boot and self._lives(tenancy):
                self._take_up(tenancy)
            else:
                self._discard(tenancy)
        self.store.set("boot", processes.boot_id())
        self._clear_strays()

    def _lives(self, tenancy: Tenancy) -> bool:
        tenant = tenancy.tenant
        if processes.lives(tenant.root, tenancy.started) or self._processes(tenant):
            return True
        # the arbiter can tell who has a place on the tenant's page
        return self._adopt(tenant) and self.arbiter.alive(tenant.id)

    def _adopt(self, tenant: Tenant) -> bool:
        """A tenant owns its folder and may have broken it: that is its own loss, not the other tenants'."""
        try:
            self.arbiter.add(tenant, self.directory(tenant.id))
        except (PageError, OSError) as error:
            _LOG.warning("%s has broken its folder and is beyond control: %s", tenant.name, error)
            return False
        return True

    def _take_up(self, tenancy: Tenancy) -> None:
        gone = [share.uuid for share in tenancy.shares if share.uuid not in self._places]
        if gone:
            _LOG.warning("%s runs on cards that are not there any more: %s", tenancy.tenant.name, ", ".join(gone))
        here = [(share, *self._places[share.uuid]) for share in tenancy.shares if share.uuid in self._places]
        tenancy = replace(tenancy, shares=tuple(replace(share, card=index) for share, _, index in here))
        node = here[0][1] if here else self.nodes[0].name
        self.ledger.confirm(tenancy.tenant.id, node, _occupant(tenancy))
        self._adopt(tenancy.tenant)
        self.tenancies[tenancy.tenant.id] = tenancy
        self._watch(tenancy)
        _LOG.info("%s is taken up again (pid %s)", tenancy.tenant.name, tenancy.tenant.root)

    def _clear_strays(self) -> None:
        """Folders of tenants that were never told to start: the daemon was killed in between."""
        for entry in os.scandir(self.home.tenants):
            if entry.is_dir(follow_symlinks=False) and entry.name not in self.tenancies:
                _remove_folder(Path(entry.path))
            elif entry.name.endswith(".json") and entry.name[:-5] not in self.tenancies:
                os.unlink(entry.path)

    # --- coming ------------------------------------------------------------------------------------------------

    def submit(self, ask: Ask, caller: Caller, now: float, tell: Callable[[dict[str, Any]], None]) -> Waiting:
        """Ask for room. What becomes of it is told; raises RefusedError when it cannot even wait."""
        broken = never_fits(ask, [node.cards for node in self.nodes])
        if broken is not None:
            raise invalid(broken)
        started = self._started(caller)
        name = self._name(ask)
        entry = Waiting(
            ask.claim(self._new_id(), name), ask, caller.pid, caller.uid, caller.gid, started, now, tell,
            log=self._new_log(name, caller) if ask.detach else None,
        )  # fmt: skip
        self.queue.add(entry)
        self._start(now)
        if not ask.wait and entry in list(self.queue):
            standing = self.queue.standing(entry)
            self.queue.remove(entry)
            raise RefusedError("busy", **standing)  # nobody else need hear that it was there
        self._tell()
        return entry

    def submit_pod(self, claim: Claim, ask: Ask, caller: Caller, since: float, now: float, pod: Pod) -> Waiting:
        """The same for a Pod, by the process that keeps it. It waits as long as it takes."""
        entry = Waiting(
            claim, ask, caller.pid, caller.uid, caller.gid, self._started(caller), since, pod.tell, seated=pod.seated
        )
        self.queue.add(entry)
        self.advance(now)
        return entry

    def _started(self, caller: Caller) -> int:
        """When the process that asks was started; whatever it was promised before, it never heard of."""
        self.may_run(caller)
        started = processes.start_time(caller.pid)
        if started is None or processes.uid_of(caller.pid) != caller.uid:
            raise RefusedError("denied", text="the process that asked is gone")
        self._forget_earlier(caller.pid, started)
        return started

    def why_never(self, claim: Claim) -> str | None:
        """Why the machine could not give it even if it were empty; None where it could."""
        board = Board()
        for node in self.nodes:
            board.set_node(node)
        chooser = Chooser(board, POLICIES["binpack"]())
        if chooser.choose(claim) is not None:
            return None
        return one_sentence(chooser.refusals(claim), claim, len(self.nodes))

    def node_of(self, tenancy: Tenancy) -> str | None:
        """Where its cards are."""
        return next((self._places[share.uuid][0] for share in tenancy.shares if share.uuid in self._places), None)

    def leave(self, entry: Waiting, now: float) -> None:
        """It waits no longer: its process went away, or was taken out."""
        if self.queue.remove(entry):
            self.advance(now)

    def advance(self, now: float) -> None:
        """Start whoever can start, and tell the others where they stand."""
        self._start(now)
        self._tell()

    def _start(self, now: float) -> None:
        while (found := self.queue.next()) is not None:
            entry, grant = found
            self.queue.remove(entry)
            self._admit(entry, grant, now)

    def _tell(self) -> None:
        for entry, standing in self.queue.standings():
            if entry.ask.wait and standing != entry.told:
                entry.told = standing
                entry.tell({"event": {"waiting": standing, "log": entry.log}})

    def _admit(self, entry: Waiting, grant: Grant, now: float) -> None:
        shares = shares_of(grant, {})
        tenant = Tenant(entry.id, entry.name, entry.claim.app_class, allotments_of(shares), entry.uid, entry.pid)
        tenancy = Tenancy(tenant, shares, entry.started, entry.ask.command, now, entry.log)
        folder = self.directory(entry.id)
        self.ledger.confirm(entry.id, grant.node, occupant_of(entry.claim, grant))
        self.tenancies[entry.id] = tenancy
        try:
            _make_folder(folder, entry.uid, entry.gid)
            self.store.add(tenancy)
            self.arbiter.add(tenant, folder)
        except Exception as error:  # whatever it was: nothing of it may stay behind
            _LOG.exception("%s could not be started", entry.name)
            self._discard(tenancy)
            entry.tell({"error": {"kind": "failed", "text": f"the daemon could not prepare the run: {error}"}})
            return
        self._watch(tenancy)
        if entry.seated is not None:
            entry.seated(tenancy, grant)
            return
        cards = [{"index": share.card, "uuid": share.uuid} for share in shares]
        entry.tell(
            {"ok": {"name": entry.name, "cards": cards, "log": entry.log} | self._environment(tenancy, str(folder))}
        )

    def may_run(self, caller: Caller) -> None:
        """A daemon that is not root's can give a folder to nobody but its owner."""
        if os.geteuid() not in (0, caller.uid):
            raise RefusedError("denied", text=f"this daemon belongs to user {os.geteuid()}, and serves only them")

    def _forget_earlier(self, pid: int, started: int) -> None:
        """A process asks once. If it asks again, it never heard our answer, or its command was `aliquot run` again."""
        for tenancy in list(self.tenancies.values()):
            if (tenancy.tenant.root, tenancy.started) == (pid, started):
                self._discard(tenancy)

    def _name(self, ask: Ask) -> str:
        taken = {tenancy.tenant.name for tenancy in self.tenancies.values()} | {entry.name for entry in self.queue}
        if ask.name is not None:
            if ask.name in taken:
                raise invalid(Invalid("name", ask.name, "a name that no other run has; that one is taken"))
            return ask.name
        serial = int(self.store.setting("serial") or 0)
        while True:
            serial += 1
            name = f"{readable_name(ask.command)}-{serial}"
            if name not in taken and not os.path.exists(self.home.log_of(name)):
                break
        self.store.set("serial", str(serial))
        return name

    def _new_id(self) -> str:
        """The length is fixed: it is part of the path of a socket."""
        while True:
            name = os.urandom(5).hex()
            if not os.path.exists(f"{self.home.tenants}/{name}"):
                return name

    def _new_log(self, name: str, caller: Caller) -> str:
        path = self.home.log_of(name)
        try:
            # The folder is ours alone: nobody changes what is there meanwhile.
            if os.path.lexists(path) and caller.uid not in (0, os.geteuid(), os.lstat(path).st_uid):
                raise invalid(
                    Invalid("name", name, "another name: a run of another user has left its log under this one")
                )
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
                if os.geteuid() == 0:
                    os.fchown(file.fileno(), caller.uid, caller.gid)
        except OSError as error:
            raise RefusedError("failed", text=f"{path}: {error.strerror}") from error
        return path

    def directory(self, tenant_id: str) -> Path:
        """The tenant's folder."""
        return Path(self.home.tenants, tenant_id)

    # --- going -------------------------------------------------------------------------------------------------

    def ended(self, tenant_id: str, now: float) -> None:
        """The root of the tenant is gone. The tenant is, once all its processes are."""
        tenancy = self.tenancies.get(tenant_id)
        if tenancy is None:
            return
        left = self._processes(tenancy.tenant)
        if left or self.arbiter.alive(tenant_id):
            self._orphans[tenant_id] = left
        else:
            self._discard(tenancy)
            self.advance(now)

    def sweep(self, now: float) -> None:
        """Look again at those whose root is gone. Those seen last are asked after first: that costs nearly nothing."""
        for tenant_id, seen in list(self._orphans.items()):
            if not any(processes.lives(pid, started) for pid, started in seen.items()):
                self.ended(tenant_id, now)

    @property
    def has_orphans(self) -> bool:
        """Whether there is anything to sweep."""
        return bool(self._orphans)

    def _discard(self, tenancy: Tenancy) -> None:
        """Forget it, and all that was its. Nothing here may stop half way."""
        tenant_id = tenancy.tenant.id
        self.tenancies.pop(tenant_id, None)
        self._orphans.pop(tenant_id, None)
        self.ledger.forget(tenant_id)
        for forget in (self.arbiter.remove, self.store.remove):
            try:
                forget(tenant_id)
            except (OSError, StoreError) as error:
                _LOG.error("%s is gone, but not all that was its: %s", tenancy.tenant.name, error)
        _remove_folder(self.directory(tenant_id))

    def _processes(self, tenant: Tenant) -> dict[int, int]:
        """All that live of it, with their start times: those on cards, and those that carry its name."""
        on_cards = {
            pid for standing in self.arbiter.standings() if standing.tenant == tenant.id for pid in standing.processes
        }
        carrying = processes.with_environment(TENANT_VARIABLE, str(self.directory(tenant.id)), uid=tenant.uid)
        return processes.identities(on_cards | carrying)

    def all_processes(self, tenancy: Tenancy) -> dict[int, int]:
        """The same with its root."""
        found = self._processes(tenancy.tenant)
        root, started = tenancy.tenant.root, tenancy.started
        if root is not None and started is not None and processes.lives(root, started):
            found[root] = started
        return found

    # --- by name -----------------------------------------------------------------------------------------------

    def find(self, name: object) -> Tenancy | Waiting:
        """Who has that name. Raises RefusedError with the names there are."""
        everyone: Iterable[Tenancy | Waiting] = (*self.tenancies.values(), *self.queue)
        names = {each.name if isinstance(each, Waiting) else each.tenant.name: each for each in everyone}
        if isinstance(name, str) and name in names:
            return names[name]
        raise RefusedError("unknown-name", name=str(name)[:80], names=sorted(names))


def _occupant(tenancy: Tenancy) -> Occupant:
    return Occupant({share.card: share.usage() for share in tenancy.shares}, tenancy.tenant.app_class)


def _make_folder(folder: Path, uid: int, gid: int) -> None:
    folder.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(folder, uid, gid)


def _remove_folder(folder: Path) -> None:
    """Its owner may have put anything there; what cannot be removed is left behind, and said."""
    shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        _LOG.warning("%s cannot be removed", folder)
