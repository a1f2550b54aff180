"""One machine and its tenants: the state of the daemon without its event loop.

    restore   adopts the tenants that survived a restart of the daemon (recovery.py)
    admission a run requests a slice, or a queued request gives up (admission.py)
    move_on   a process that has a tenant asks again: it leaves that tenant
    ended     the root process of a tenant has ended
    release   ends the tenants without a root process that have no other process left, by a scan of /proc and their
              pages

Single-threaded; callers pass the time in. A tenant stays in the ledger until none of its processes is alive.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from aliquot.adapters.gpu.page import LOOK
from aliquot.adapters.host.home import TENANT_VARIABLE, Home
from aliquot.adapters.host.process import processes
from aliquot.adapters.host.process.procscan import Scan, scan
from aliquot.adapters.host.users import account_of
from aliquot.adapters.storage.store import Store, StoreError
from aliquot.model.device import Card
from aliquot.model.node import deal
from aliquot.model.tenancy import Tenancy, TenantEnvironment
from aliquot.model.tenant import SharingRules
from aliquot.placement.board import Board
from aliquot.placement.book import Ledger
from aliquot.placement.choose import POLICIES, Chooser
from aliquot.services.daemon.control import Caller, RefusedError
from aliquot.services.daemon.pace import Turns
from aliquot.services.machine.queue import Queue, QueuedRequest
from aliquot.services.machine.settings import Factors, keep_rules, stored_rules
from aliquot.services.machine.tenants.admission import Admission
from aliquot.services.machine.tenants.members import user_of
from aliquot.services.machine.tenants.recovery import Recovery, stored_users
from aliquot.services.machine.tenants.registry import Arbiter, Registry
from aliquot.services.runtime.together.groups import Groups

_LOG = logging.getLogger("aliquot.tenants")


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
        environment: Callable[[Tenancy, str], TenantEnvironment],
        names: Sequence[str] = ("here",),
        clock: Callable[[], float] = time.monotonic,
        pool_mib: int = 0,
        groups: Groups | None = None,
    ) -> None:
        self.factors = Factors(store)
        dealt = deal(cards, names)
        self.nodes = tuple(
            structs.replace(self.factors.applied(node), pool_mib=pool_mib // len(dealt)) for node in dealt
        )
        self.cards = tuple(card for node in self.nodes for card in node.cards)  # numbered per node
        self.pool_mib = pool_mib
        self.home = home
        self.store = store
        self._writer = store.writer
        self.arbiter = arbiter
        board = Board()
        for node in self.nodes:
            board.set_node(node)
        self.ledger = Ledger(board)
        self.chooser = Chooser(board, POLICIES["binpack"]())
        self.queue = Queue(self.ledger, self.chooser)
        self._registry = Registry(home, store, arbiter, self.ledger, self.queue, groups)
        self.tenancies, self.history = self._registry.tenancies, self._registry.history
        self.group_members = self._registry.group_members
        self.queue.preferred = self.group_members.cards
        self._turns = Turns(LOOK)  # of looks at the pages of one user's tenants
        self._places = {card.uuid: (node.name, card.index) for node in self.nodes for card in node.cards}
        self._watch = watch  # arranges that `ended` is called when the root process ends
        self.rules = stored_rules(store)
        self.rebooted = False  # since the previous daemon; set by `restore`
        self.clock = clock  # of the queue
        self.tenant_orphaned: Callable[[], None] = self.sweep_now  # with an event loop: in a thread (sweeper.py)
        self.admission = Admission(
            self._registry,
            self.queue,
            nodes=lambda: self.nodes,
            leave_earlier=self._leave_earlier,
            watch=watch,
            environment=environment,
            clock=lambda: self.clock(),
        )

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
        self.admission.look_at_queue()

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

    # --- coming ------------------------------------------------------------------------------------------------

    def restore(self, found: Scan | None = None) -> None:
        """Adopt the tenants that are alive; discard the others. `found`: a scan of the users of `stored_users`."""
        recovery = Recovery(self._registry, self._places, self.nodes[0].name, self._watch)
        self.rebooted = recovery.restore(found)

    def stored_users(self) -> set[int]:
        """The users of the tenants that a daemon before this one had."""
        return stored_users(self.store)

    def move_on(self, caller: Caller) -> bool:
        """A process asks once. If it asks again, it missed the answer, or its command was `aliquot run` again. The
        earlier tenant goes on without it, as long as other processes of it are alive. False if there is none."""
        return self._registry.orphans.move_on(caller.pid, caller.started, self.tenancies.values())

    def _leave_earlier(self, caller: Caller) -> None:
        if self.move_on(caller):
            self.tenant_orphaned()

    # --- the end -----------------------------------------------------------------------------------------------

    def ended(self, tenant_id: str, now: float, code: int | None = None) -> None:
        """The root process has ended, with that code if it is known. The tenant ends with its last process."""
        if (tenancy := self.tenancies.get(tenant_id)) is not None:
            self.history.root_ended(tenant_id, code)
            self._registry.orphans.root_ended(tenancy)
            self.tenant_orphaned()

    def is_ending(self, name: str) -> bool:
        """Whether the run of that name has lost its first process, and others may be left."""
        return any(
            tenancy.key == name and not self._registry.orphans.has_root(tenancy) for tenancy in self.tenancies.values()
        )

    def suspects(self) -> dict[str, int]:
        """Tenants that may have no process left, and their users."""
        return self._registry.orphans.suspects(self.tenancies)

    def without_processes(self, found: Scan, tenants: Collection[str]) -> Iterator[Tenancy | None]:
        """Those of the tenants of which the scan has found no process, one tenant at a step. They were suspects before
        the scan began."""
        on_cards = self._registry.on_cards()
        for tenant_id in tenants:
            tenancy = self.tenancies.get(tenant_id)
            if tenancy is None or tenant_id not in self._registry.orphans or user_of(tenancy) in found.unfinished:
                continue
            left = self._registry.members(tenancy, found, on_cards)
            self._registry.orphans.set_seen(tenant_id, left)
            yield None if left else tenancy

    def without_page(self, tenancies: Collection[Tenancy]) -> list[Tenancy]:
        """Those of the tenancies whose pages no process holds either, as far as the time of their owners goes: the
        others are asked about at the next look. Any thread: it takes long where a tenant wants it to."""
        by_id = {one.id: one for one in tenancies if not self._registry.is_unregistered(one.id)}
        owners = {tenancy.id: account_of(user_of(tenancy)) for tenancy in by_id.values()}
        turns = self._turns.look(owners)
        return [by_id[one] for one, seconds in turns if seconds and not self.arbiter.alive(one, seconds)]

    def release(self, now: float, tenancies: Collection[Tenancy]) -> Iterator[None]:
        """End those that have no process left, one at a step. One that has come meanwhile keeps its tenant."""
        on_cards = self._registry.on_cards() if tenancies else {}
        for tenancy in tenancies:
            tenant_id = tenancy.id
            if self.tenancies.get(tenant_id) is not tenancy or tenant_id not in self._registry.orphans:
                continue
            if processes.identities(on_cards.get(tenant_id, ())) or self.arbiter.connected(tenant_id):
                continue  # not those that have ended: their cards may not know it yet
            if self._registry.orphans.ever_ran(tenant_id):
                self.history.add(tenancy, now)
            self._registry.discard(tenancy)
            self.admission.look_at_queue()
            yield

    def register_again(self) -> None:
        """Have the arbiter enforce the shares of those whose folders could not be opened for lack of files."""
        self._registry.register_again()

    def sweep_now(self) -> None:
        """End the tenants that have no process left, by a scan here and now."""
        suspects = self.suspects()
        found = scan((TENANT_VARIABLE,), set(suspects.values()))
        bare = [tenancy for tenancy in self.without_processes(found, suspects) if tenancy is not None]
        for _ in self.release(time.time(), self.without_page(bare)):
            pass

    def members(self, tenancy: Tenancy, found: Scan) -> dict[int, int]:
        """Its live processes, with their start times (members.py)."""
        return self._registry.members(tenancy, found, self._registry.on_cards())

    # --- questions ---------------------------------------------------------------------------------------------

    def find(self, name: object) -> Tenancy | QueuedRequest:
        """The tenant or queued request of that name. Raises RefusedError with the existing names."""
        everyone: Iterable[Tenancy | QueuedRequest] = (*self.tenancies.values(), *self.queue)
        names = {item.name if isinstance(item, QueuedRequest) else item.tenant.name: item for item in everyone}
        if isinstance(name, str) and name in names:
            return names[name]
        raise RefusedError("unknown-name", name=str(name)[:80], names=sorted(names))

    def logs_in_use(self) -> set[str]:
        """The logs of runs that run or wait."""
        return {item.log for item in (*self.tenancies.values(), *self.queue) if item.log is not None}

    def directory(self, tenant_id: str) -> Path:
        """The folder of the tenant."""
        return self._registry.directory(tenant_id)

    def node_of(self, tenancy: Tenancy) -> str | None:
        """The node of its cards."""
        return next((self._places[share.uuid][0] for share in tenancy.shares if share.uuid in self._places), None)
