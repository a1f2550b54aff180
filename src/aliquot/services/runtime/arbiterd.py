"""The arbiter at work on one node: tenants' processes register, each card's loop holds them to their shares.

One thread listens to all tenants (reception), one runs per card (cardworker), one looks around (patrol). A tenant's
process is known by the socket it came in through and by what the kernel says of it (SO_PEERCRED, then its ancestors, or
its cgroup where tenants are Pods), not by what it says of itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from aliquot.adapters.gpu.nvml import Nvml
from aliquot.adapters.gpu.page import SLOTS
from aliquot.adapters.host import processes
from aliquot.adapters.storage import tenantfolder
from aliquot.arbiter.roster import Member
from aliquot.arbiter.timeline import Record
from aliquot.model.device import Card
from aliquot.model.tenant import Finding, FindingKind, SharingRules, Standing, Tenant
from aliquot.services.runtime.audit import Auditor, Owner, Place, Register
from aliquot.services.runtime.cardloop import CardLoop
from aliquot.services.runtime.registration import Registrar, Tenancy, scold

_WHOLE, _BEYOND = 8, 4  # each so many sweeps of all slots; else this far beyond the last that a process had

_UNSEEN = "its process id cannot be seen from here: an agent in a container needs the host's (hostPID: true)"

log = logging.getLogger(__name__)


class Arbiterd:
    """See the head of the file. All methods may be called from any thread, and are quick.

    `whose` tells the id of the tenant that a process is of. Where it is given, only its word counts: whoever it does
    not know is let in nowhere. Without it a process is of the tenant whose descendant it is.
    """

    def __init__(
        self,
        cards: Sequence[Card],
        *,
        rules: SharingRules,
        nvml: Nvml,
        simulated: bool,
        whose: Callable[[int], str | None] | None = None,
    ) -> None:
        self._workers = {card.uuid: CardLoop(card.uuid, rules) for card in cards}
        self._whose = whose
        self._tenancies: dict[str, Tenancy] = {}
        self._sweeps = 0
        self._lock = threading.RLock()  # over the tenancies and what hangs on them
        self._reception = Registrar(self._lock, self._workers, simulated=simulated, unwelcome=self._unwelcome)
        register = Register(self._lock, self._seated, self._owner_of, self._sweep, pods=whose is not None)
        self._patrol = Auditor(self._workers, nvml, register)
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._reception.run, args=(self._stopping,), name="link", daemon=True),
            threading.Thread(target=self._patrol.run, args=(self._stopping,), name="patrol", daemon=True),
        ]

    def start(self) -> None:
        """Begin."""
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # several files for each process on the cards
        for worker in self._workers.values():
            worker.start()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End; nobody stays paused. Pages and tenants' folders stay, for the next one."""
        self._stopping.set()
        self._reception.ring()
        for thread in self._threads:  # first: they post to the workers
            if thread.is_alive():
                thread.join(timeout=5)
        for worker in self._workers.values():
            worker.stop()
        with self._lock:
            for tenancy in self._tenancies.values():
                self._reception.shut(tenancy)
                tenancy.page.close()
            self._tenancies.clear()
        self._reception.close()

    def add(self, tenant: Tenant, directory: Path) -> None:
        """Make or adopt the tenant's page and door. Saying it twice changes nothing, but puts a folder right that
        somebody removed meanwhile. Raises OSError and PageError."""
        with self._lock:
            there = self._tenancies.get(tenant.id)
            if there is not None:
                if tenantfolder.is_whole(directory, there.page):
                    return
                log.warning("tenant %s: %s was taken away: it is made anew", tenant.name, directory)
                self._drop(self._tenancies.pop(tenant.id))
            page, door = tenantfolder.furnish(directory, tenant.allotments, tenant.uid)
            tenancy = Tenancy(tenant, directory, page, door)
            self._tenancies[tenant.id] = tenancy
            for at, each in enumerate(tenant.allotments):
                worker = self._workers.get(each.uuid)
                if worker is not None:
                    member = Member(tenant.id, tenant.app_class, each.quota_milli)
                    worker.admit(member, page, at, each.memory_bytes)
            self._reception.open(tenancy)

    def remove(self, tenant_id: str) -> None:
        """Forget the tenant and remove its folder."""
        with self._lock:
            tenancy = self._tenancies.pop(tenant_id, None)
            if tenancy is None:
                return
            self._drop(tenancy)
        shutil.rmtree(tenancy.directory, ignore_errors=True)

    def _drop(self, tenancy: Tenancy) -> None:
        """Let go of all that hangs on it; its folder stays. The page is closed when no card's loop touches it."""
        self._reception.shut(tenancy)
        workers = [
            self._workers[allotment.uuid] for allotment in tenancy.tenant.allotments if allotment.uuid in self._workers
        ]
        page_is_free = _after(len(workers), tenancy.page.close)
        for worker in workers:
            worker.dismiss(tenancy.tenant.id, page_is_free)

    def configure(self, rules: SharingRules) -> None:
        """Other rules from now on."""
        for worker in self._workers.values():
            worker.configure(rules)

    def standings(self) -> list[Standing]:
        """Every tenant on every card."""
        return [standing for worker in self._workers.values() for standing in worker.standings()]

    def keep_trace(self, wanted: bool) -> None:
        """Whether somebody draws who held the cards, and asks for `records` at least every few seconds."""
        for worker in self._workers.values():
            worker.keep_trace(wanted)

    def records(self) -> dict[str, list[Record]]:
        """By card, what was traced since the last time."""
        return {uuid: worker.records() for uuid, worker in self._workers.items()}

    def findings(self) -> list[Finding]:
        """What should not be."""
        inside = [finding for worker in self._workers.values() for finding in list(worker.findings.values())]
        return inside + self._patrol.findings + self._unwritable()

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

    def alive(self, tenant_id: str) -> bool:
        """Whether any of its processes that registered still lives."""
        with self._lock:
            tenancy = self._tenancies.get(tenant_id)
            if tenancy is None or tenancy.processes:
                return tenancy is not None
            holders = [tenancy.page.holder(slot) for slot in tenancy.page.sweep()]
            # A Pod may have handed its page to another one, which would keep its place for it after its end.
            return any(
                pid == 0 or self._whose is None or self._whose(pid) == tenant_id for pid in holders if pid is not None
            )

    # --- whose a process is -------------------------------------------------------------------------------------

    def _unwelcome(self, tenancy: Tenancy, pid: int, uid: int) -> str | None:
        """Why this process is not of this tenant."""
        if tenancy.tenant.id not in self._tenancies:
            return "the tenant is gone"
        if pid <= 0:  # in a pid namespace that is not below ours
            return _UNSEEN
        if tenancy.tenant.uid is not None and uid not in (0, tenancy.tenant.uid, os.geteuid()):
            return f"it is user {uid}'s, the tenant is user {tenancy.tenant.uid}'s"
        if len(tenancy.processes) >= SLOTS:
            return f"the tenant has {SLOTS} processes already"
        owner = self._owner(pid)
        if owner is None and self._whose is not None:
            return "it is in no Pod's cgroup"
        if owner is not None and owner != tenancy.tenant.id:
            other = self._tenancies.get(owner)
            return f"it belongs to Pod {owner}" if other is None else f"it belongs to tenant {other.tenant.name}"
        return None

    def _owner(self, pid: int) -> str | None:
        """As `whose` says; without it whose descendant it is. None: nobody's we know (it left its parents, say)."""
        if self._whose is not None:
            return self._whose(pid)
        roots = {each.tenant.root: name for name, each in self._tenancies.items() if each.tenant.root is not None}
        known = {process.pid: name for name, each in self._tenancies.items() for process in each.processes}
        anchors = known | roots
        return next((anchors[ancestor] for ancestor in processes.ancestors(pid) if ancestor in anchors), None)

    # --- what the patrol asks ----------------------------------------------------------------------------------

    def _seated(self, uuid: str) -> dict[int, Place]:
        """Who has a seat, with what its page says it has on the card."""
        found = {}
        for tenancy in self._tenancies.values():
            at = tenancy.page.index.get(uuid)
            if at is None:
                continue
            for process in tenancy.processes:
                if process.slot is not None:
                    use = tenancy.page.use(process.slot, at)
                    found[process.pid] = Place(tenancy.page, process.slot, at, use.memory, use.overhead)
        return found

    def _owner_of(self, pid: int) -> Owner | None:
        """Whose a process on a card is."""
        owner = self._owner(pid)
        if owner is None:
            return None
        tenancy = self._tenancies.get(owner)
        return Owner(owner) if tenancy is None else Owner(owner, tenancy.tenant.name, frozenset(tenancy.page.uuids))

    def _sweep(self) -> list[int]:
        """Each second, so it is cheap: a shim takes the first free slot, so what lies past those that we know of is
        swept only now and then."""
        too_long = []
        self._sweeps += 1
        for tenancy in self._tenancies.values():
            slots = [process.slot for process in tenancy.processes if process.slot is not None]
            tenancy.reach = max([tenancy.reach, *(slot + 1 for slot in slots)])
            whole = self._sweeps % _WHOLE == 0
            tenancy.page.sweep(slots=SLOTS if whole else min(SLOTS, tenancy.reach + _BEYOND))
            if tenancy.page.is_longer():
                scold(tenancy, "it made its page longer, which fills the host's memory: it is cut")
                with contextlib.suppress(OSError):  # no number is free: the next sweep finds it again
                    too_long.append(os.dup(tenancy.page.fileno()))
        return too_long


def _after(calls: int, then: Callable[[], None]) -> Callable[[], None]:
    """Something to call so many times, the last of which does it."""
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
