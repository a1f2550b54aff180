"""Runs the arbiter on one node: registers tenants' processes, and holds them to their shares, card by card.

One thread serves all tenants' sockets (registration), one runs per card (cardloop), one compares with NVML (audit). A
process's tenant is the one whose socket it connected to, checked against what the kernel says (SO_PEERCRED, then its
ancestors, or its cgroup where tenants are Pods). What the process says of itself does not count.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from aliquot.adapters.gpu.nvml import Nvml
from aliquot.adapters.gpu.page import LOOK
from aliquot.adapters.host.handedfiles import limit_files
from aliquot.adapters.storage import tenantfolder
from aliquot.adapters.storage.folders import remove_folder
from aliquot.arbiter.roster import Member
from aliquot.arbiter.timeline import Record
from aliquot.model.cardstate.control import INERT, CardControl, ControlLevel, ControlReason
from aliquot.model.device import Card
from aliquot.model.residency import Arrival, Residency
from aliquot.model.tenant import Allotment, Finding, FindingKind, SharingRules, Standing, Tenant
from aliquot.model.usage import Stretch
from aliquot.services.mover.client import MoverClient
from aliquot.services.runtime.cards.cardloop import CardLoop
from aliquot.services.runtime.cards.work import CardWork, card_work
from aliquot.services.runtime.elastic.parking import Parking
from aliquot.services.runtime.limits.audit import Auditor, PageSlot, Registry
from aliquot.services.runtime.limits.hardlimits import HardLimits
from aliquot.services.runtime.limits.memoryquota import MemoryQuota
from aliquot.services.runtime.limits.owners import ProcessOwners, as_owner
from aliquot.services.runtime.limits.pagesweep import PageSweep
from aliquot.services.runtime.processes.anchors import Anchors
from aliquot.services.runtime.processes.registration import Registrar, Tenancy
from aliquot.wording.control import why_gated

_SWITCH = 0.0005  # seconds after which a thread that computes lets another go on

_REMEMBERED = 600.0  # seconds that a former tenant is known by name: a card's loop may be slow to finish its bill

_REFUSED = CardControl(ControlLevel.GATE, ControlReason.REFUSED)

log = logging.getLogger(__name__)


class Proof(Protocol):
    """services/proof/startup.py."""

    def run(self, cards: Any, stopping: threading.Event) -> None: ...

    @property
    def own(self) -> Set[int]:
        """Processes of ours on the cards."""


class Arbiterd:
    """See the head of the file. All methods may be called from any thread, and are quick.

    `whose` returns the id of the tenant that a process belongs to. Where it is given, it alone decides: a process that
    it does not know registers nowhere. Without it a process belongs to the tenant whose descendant it is. `claims_of`
    returns the tenants that are ResourceClaims of the Pod that `whose` has found.
    `controls` is what is known of the cards' control, by UUID; `proof` finds it out while a card is idle.
    """

    def __init__(
        self,
        cards: Sequence[Card],
        *,
        rules: SharingRules,
        nvml: Nvml,
        simulated: bool,
        whose: Callable[[int], str | None] | None = None,
        claims_of: Callable[[str], Sequence[str]] = lambda pod: (),
        hard_limits: HardLimits | None = None,
        mover: MoverClient | None = None,
        controls: Mapping[str, CardControl] | None = None,
        proof: Proof | None = None,
    ) -> None:
        self._hard_limits, self._proof = hard_limits, proof
        known, holding = controls or {}, set[str]()
        self._loops = {
            card.uuid: CardLoop(
                card.uuid,
                rules,
                known.get(card.uuid, CardControl()),
                card.memory_mib << 20,
                holding=holding,
            )
            for card in cards
        }
        self._tenancies: dict[str, Tenancy] = {}
        self._former: dict[str, tuple[float, Tenant]] = {}  # when they were removed
        self._bills = False  # whether stretches are taken
        self._lock = threading.RLock()  # guards the tenancies and everything they hold
        anchors = Anchors()
        self._owners = ProcessOwners(self._lock, self._tenancies, whose, claims_of, anchors)
        self._registrar = Registrar(
            self._lock, self._loops, simulated=simulated, refusal=self._owners.refusal, anchors=anchors
        )
        self._sweep = PageSweep(self._lock, self._tenancies).run
        registry = Registry(self._lock, self._registered, self._owners.owner_of, self._sweep, pods=whose is not None)
        self._quota = MemoryQuota(self._owners.candidates, spares_all=whose is not None)
        self._quota.kill_after = rules.kill_after
        self._auditor = Auditor(self._loops, nvml, registry, self._quota, self._refresh_hard_limits)
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._registrar.run, args=(self._stopping,), name="link", daemon=True),
            threading.Thread(target=self._auditor.run, args=(self._stopping,), name="audit", daemon=True),
        ]
        self._auditor.own = self._own_helpers
        if proof is not None:
            run = proof.run
            self._threads.append(threading.Thread(target=run, args=(self, self._stopping), name="proof", daemon=True))
        self.parking: Parking | None = None  # None: no memory leaves a card
        if mover is not None:
            self.parking = Parking(self._lock, self._tenancies, self._loops, nvml, mover)
            self._registrar.hand_over, self._registrar.parking_wake = self.parking.hand_over, self.parking.wake
            self.parking.configure(rules)
            move = self.parking.run
            self._threads.append(threading.Thread(target=move, args=(self._stopping,), name="parking", daemon=True))

    def start(self) -> None:
        """Start all threads."""
        limit_files()  # several files for each process on the cards
        # A card's loop gives the interpreter away in each RM call. By default a thread that computes, for a status say,
        # then keeps it for 5 ms, also between a pause and the resume that follows.
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH))
        for loop in self._loops.values():
            loop.start()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop all threads; no context stays paused. Pages and tenants' folders stay, for the next daemon."""
        self._stopping.set()
        self._registrar.wake()
        if self.parking is not None:
            self.parking.wake()
        for thread in self._threads:  # first: they post to the loops
            if thread.is_alive():
                thread.join(timeout=5)
        for loop in self._loops.values():
            loop.stop()
        with self._lock:
            for tenancy in self._tenancies.values():
                self._remember(tenancy.tenant)
                self._registrar.remove(tenancy)
                tenancy.page.close()
            self._tenancies.clear()
        self._registrar.close()

    def add(self, tenant: Tenant, directory: Path) -> None:
        """Make or adopt the tenant's page and socket. A second call changes nothing, unless the folder was removed:
        then it is made anew. Raises OSError and PageError."""
        with self._lock:
            there = self._tenancies.get(tenant.id)
            if there is not None:
                if tenantfolder.is_whole(directory, there.page):
                    return
                log.warning(
                    "tenant_folder_recreated", extra={"data": {"tenant": tenant.name, "folder": str(directory)}}
                )
            page, listener = tenantfolder.prepare_folder(
                directory, tenant.allotments, tenant.uid, folder_too=not tenant.is_group
            )
            if there is not None:  # only now: where that failed, it goes on as it was
                self._drop(self._tenancies.pop(tenant.id))
            tenancy = Tenancy(tenant, directory, page, listener)
            self._tenancies[tenant.id] = tenancy
            if self.parking is not None:
                self.parking.prepare(tenancy)
            for at, allotment in enumerate(tenant.allotments):
                loop = self._loops.get(allotment.uuid)
                if loop is not None:
                    loop.admit(_member(tenant, allotment), page, at, allotment.memory_bytes, tenant.group)
            self._registrar.add(tenancy)

    def change(self, tenant: Tenant) -> None:
        """Other quotas of a tenant that is there: those of a group are the sum of its members'."""
        with self._lock:
            tenancy = self._tenancies.get(tenant.id)
            if tenancy is None:
                return
            tenancy.tenant = tenant
            for allotment in tenant.allotments:
                if allotment.uuid in self._loops:
                    self._loops[allotment.uuid].change(_member(tenant, allotment))

    def remove(self, tenant_id: str) -> None:
        """Forget the tenant and remove its folder."""
        with self._lock:
            tenancy = self._tenancies.pop(tenant_id, None)
            if tenancy is None:
                return
            self._owners.forget(tenant_id)
            self._remember(tenancy.tenant)
            self._drop(tenancy)
        remove_folder(tenancy.directory)

    def _drop(self, tenancy: Tenancy) -> None:
        """Release all that it holds; its folder stays. The page is closed when no card's loop touches it."""
        self._registrar.remove(tenancy)
        loops = [
            self._loops[allotment.uuid] for allotment in tenancy.tenant.allotments if allotment.uuid in self._loops
        ]
        page_is_free = _after(len(loops), tenancy.page.close)
        for loop in loops:
            loop.dismiss(tenancy.tenant.id, page_is_free)

    def configure(self, rules: SharingRules) -> None:
        """Apply other rules from now on."""
        self._quota.kill_after = rules.kill_after
        for loop in self._loops.values():
            loop.configure(rules)
        if self.parking is not None:
            self.parking.configure(rules)

    def request_move(self, tenant_id: str, *, leave: bool) -> str | None:
        """Ask for the tenant's memory to leave its cards, or to return. Why that is not possible; None: it is asked."""
        if self.parking is None:
            return "this machine has no pool of host memory: start it with --host-pool"
        return self.parking.request(tenant_id, leave=leave)

    def residencies(self, tenant_id: str) -> list[Residency]:
        """Where the tenant's memory is now, by card that has any that could leave: standings may be older."""
        return [] if self.parking is None else self.parking.residencies(tenant_id)

    def take_arrivals(self) -> list[Arrival]:
        """Moves of tenants' memory that have ended since the last call."""
        return [] if self.parking is None else self.parking.arrivals.take()

    def spare(self, tenants: frozenset[str]) -> None:
        """Never end processes of these tenants. Where tenants are Pods, no process is ended before the first call."""
        self._quota.spare(tenants)

    def standings(self) -> list[Standing]:
        """Every tenant on every card."""
        return [self._standing(standing) for loop in self._loops.values() for standing in loop.standings()]

    def _standing(self, standing: Standing) -> Standing:
        """With the name of the online tenant that has the card, and the driver's figures of memory: a page does not
        know of processes that are not registered."""
        used, over = self._quota.use(standing.tenant, standing.uuid)
        hard = self._hard_limits is not None and self._hard_limits.enforces(standing.tenant, standing.uuid)
        residency = None if self.parking is None else self.parking.residency(standing.tenant, standing.uuid)
        if standing.paused_by is None and used <= standing.memory_used and not over and not hard and residency is None:
            return standing
        by = None if standing.paused_by is None else self._name_of(standing.paused_by)
        used = max(used, standing.memory_used)
        return replace(standing, paused_by=by, memory_used=used, memory_over=over, hard_limit=hard, residency=residency)

    def _name_of(self, tenant_id: str) -> str | None:
        tenancy = self._tenancies.get(tenant_id)
        return None if tenancy is None else tenancy.tenant.name

    def controls(self) -> dict[str, CardControl]:
        """The level of control of each card, by UUID."""
        return {
            uuid: _REFUSED
            if loop.control.level is ControlLevel.UNPROVEN and self._registrar.is_refused(uuid)
            else loop.control
            for uuid, loop in self._loops.items()
        }

    def set_control(self, uuid: str, control: CardControl) -> None:
        """What is known of the card from now on."""
        self._loops[uuid].set_control(control)

    def work(self, uuid: str) -> CardWork:
        """What the tenants of the card did on it so far."""
        with self._lock:
            return card_work(self._tenancies.values(), uuid)

    def keep_trace(self, wanted: bool) -> None:
        """Whether a dashboard draws timelines, and asks for `records` at least every few seconds."""
        for loop in self._loops.values():
            loop.keep_trace(wanted)

    def records(self) -> dict[str, list[Record]]:
        """The traces since the last call, by card."""
        return {uuid: loop.records() for uuid, loop in self._loops.items()}

    def take_stretches(self) -> tuple[dict[str, Stretch], dict[str, Tenant]]:
        """Who had each card since the last call, by card; and all tenants that are named there, by id. Before the first
        call nothing is measured, so that nothing is kept where no bill is written."""
        self._bills = True
        stretches = {
            uuid: stretch for uuid, loop in self._loops.items() if (stretch := loop.take_stretch()) is not None
        }
        with self._lock:
            limit = time.monotonic() - _REMEMBERED
            self._former = {key: former for key, former in self._former.items() if former[0] > limit}
            former = {key: tenant for key, (_, tenant) in self._former.items()}
            return stretches, former | {key: tenancy.tenant for key, tenancy in self._tenancies.items()}

    def _remember(self, tenant: Tenant) -> None:
        """Its last time is still to be taken."""
        if self._bills:
            self._former[tenant.id] = (time.monotonic(), tenant)

    def findings(self) -> list[Finding]:
        """What is wrong on the cards."""
        inside = [finding for loop in self._loops.values() for finding in list(loop.findings.found.values())]
        return inside + self._inert() + self._auditor.findings + self._unwritable() + self._owners.impostors()

    def _inert(self) -> list[Finding]:
        """Cards whose control has no effect."""
        return [
            Finding(uuid, None, FindingKind.INERT, why_gated(control))
            for uuid, control in self.controls().items()
            if control.reason in INERT
        ]

    def _unwritable(self) -> list[Finding]:
        """Tenants whose page could not be written: no heartbeat, no gate, no pause holds there."""
        with self._lock:
            return [
                Finding(
                    uuid,
                    tenant.root,
                    FindingKind.PAGE,
                    f"the page of tenant {tenant.name} cannot be written: {trouble}",
                    tenant.id,
                )
                for tenancy in self._tenancies.values()
                if (trouble := tenancy.page.trouble) is not None
                for tenant in (tenancy.tenant,)
                for uuid in tenancy.page.uuids[:1]
            ]

    def connected(self, tenant_id: str) -> bool:
        """Whether a process of it has registered and is there now."""
        with self._lock:
            tenancy = self._tenancies.get(tenant_id)
            return tenancy is not None and bool(tenancy.processes)

    def alive(self, tenant_id: str, seconds: float = LOOK) -> bool:
        """Whether any of its processes that registered still lives. The tenant decides how long it takes to find out
        (page.py): after so many seconds of the processor it counts as alive, and the next look goes on."""
        with self._lock:
            tenancy = self._tenancies.get(tenant_id)
            if tenancy is None or tenancy.processes:
                return tenancy is not None
            # A Pod may have passed its page to another Pod, which would then keep its place after its end.
            page, is_own = tenancy.page, partial(self._owners.may_be, tenant_id)
            began = time.thread_time()
            slots = page.sweep(seconds=seconds)
            return page.may_be_held(slots, is_own, seconds=seconds - (time.thread_time() - began))

    # --- what the audit asks -----------------------------------------------------------------------------------

    def _registered(self, uuid: str) -> dict[int, PageSlot]:
        """The registered processes, with what their pages say they have on the card."""
        found = {}
        for tenancy in self._tenancies.values():
            at = tenancy.page.index.get(uuid)
            if at is None:
                continue
            for process in tenancy.processes:
                if process.slot is not None:
                    use = tenancy.page.use(process.slot, at)
                    proven = self._registrar.is_proven(process, uuid) or bool(tenancy.tenant.group)
                    found[process.pid] = PageSlot(
                        tenancy.page, process.slot, at, use.memory, use.overhead, proven, as_owner(tenancy.tenant)
                    )
        return found

    def _own_helpers(self) -> set[int]:
        state = None if self.parking is None else self.parking.mover.state
        own = set() if self._proof is None else set(self._proof.own)
        return own if state is None else own | {state.pid}

    def _refresh_hard_limits(self) -> None:
        if self._hard_limits is None:
            return
        with self._lock:
            tenants = [tenancy.tenant for tenancy in self._tenancies.values()]
        self._hard_limits.refresh([one for one in tenants if not self._quota.spares(one.id)], time.monotonic())


def _member(tenant: Tenant, allotment: Allotment) -> Member:
    return Member(tenant.id, tenant.app_class, allotment.quota_milli, tenant.latency, tenant.release_delay)


def _after(calls: int, then: Callable[[], None]) -> Callable[[], None]:
    """A function whose last of so many calls calls `then`."""
    left, lock = [calls], threading.Lock()

    def one_more() -> None:
        with lock:
            left[0] -= 1
            last = left[0] == 0
        if last:
            then()

    if not calls:
        then()
    return one_more
