"""Has tenants' memory leave the cards and return, as arbiter/residency.py decides: one thread for all cards.

It reads from the pages what can leave, who waits for room and what became of the orders; it hands the shims'
connections to the mover, and tells the mover which processes live. Everything that a page says is the tenant's own
claim: a false one costs that tenant its turn, or others a round.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping

from aliquot.adapters.gpu.nvml import Nvml, NvmlError
from aliquot.adapters.gpu.page import LOOK
from aliquot.adapters.host.handedfiles import release
from aliquot.arbiter.residency import (
    Hearing,
    Memory,
    Occupant,
)
from aliquot.model.claim import may_park
from aliquot.model.device import reserve_mib
from aliquot.model.residency import ParkReason, Residency
from aliquot.model.tenant import SharingRules, Tenant
from aliquot.services.daemon.connections import FairShare, most_files
from aliquot.services.daemon.pace import Turns
from aliquot.services.mover import control
from aliquot.services.mover.client import MoverClient
from aliquot.services.runtime.cards.cardloop import CardLoop
from aliquot.services.runtime.elastic.ordering import Ordering
from aliquot.services.runtime.elastic.permits import Permits
from aliquot.services.runtime.elastic.sightings import Sightings, stay
from aliquot.services.runtime.processes.registration import Tenancy, owner_of
from aliquot.wording.parking import reason_words

ROOM_WAIT = 30.0  # seconds that an allocation waits for room that others have
_BUSY = 0.01  # seconds between rounds while something moves or waits
_CALM = 0.5
_STILL = 2.0  # seconds between two looks at a card where nothing may leave, and nothing had left
_MARGIN = 256 << 20  # bytes of a card that the driver may need itself
_SETTLED = 60.0  # seconds after our start in which tenants may still be added that were there before
_LIVING = 1.0  # seconds between two messages to the mover
_MOST_HANDED = 64  # connections of one tenant that wait for the mover: each is an open file
_AT_A_TIME = 64  # messages between two rounds

log = logging.getLogger(__name__)


class Parking:
    """See the head of the file. `hand_over`, `request` and `residency` may be called from any thread."""

    def __init__(
        self,
        lock: threading.RLock,
        tenancies: Mapping[str, Tenancy],
        loops: Mapping[str, CardLoop],
        nvml: Nvml,
        mover: MoverClient,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock, self._tenancies, self._loops, self._nvml = lock, tenancies, loops, nvml
        self.mover = mover
        self._clock = clock
        self._rules = SharingRules()
        self._inbox: queue.SimpleQueue[tuple[socket.socket, control.Serve] | None] = queue.SimpleQueue()
        self._handed: Counter[str] = Counter()  # connections in the inbox, by tenant
        self._shares = FairShare(most_files() // 16, most_files() // 32)  # the same, by user or Pod
        self._handed_lock = threading.Lock()
        self._turns = Turns(LOOK)
        self._asked: dict[str, bool] = {}  # by hand: tenant to leave (True) or return
        self._reserves: dict[str, int] = {}
        self._looked: dict[str, float] = {}  # by card: when its pages were read
        self._told = float("-inf")
        self._unfounded: deque[int] = deque([0], maxlen=3)  # bytes that pages claim and the mover does not have
        self._began = clock()
        self._sightings = Sightings(self._asked, self._may_leave, clock)
        self.arrivals = self._sightings.arrivals
        self._permits = Permits(mover, self._began)
        self._ordering = Ordering(
            lock, tenancies, loops, self._sightings, self._permits, self._asked,
            memory=self._memory, began=self._began,
        )  # fmt: skip

    # --- any thread ---------------------------------------------------------------------------------------------

    def configure(self, rules: SharingRules) -> None:
        """Apply other rules from now on. Memory that was allocated before does not become movable."""
        with self._lock:
            self._rules = rules
            self.mover.size = rules.host_pool
            for tenancy in self._tenancies.values():
                self.prepare(tenancy)
        self.wake()

    def prepare(self, tenancy: Tenancy) -> None:
        """Write to its page whether its memory can leave, and how long its allocations wait. With the lock held."""
        wait = ROOM_WAIT if self._rules.host_pool else 0.0
        for at in range(len(tenancy.page.uuids)):
            tenancy.page.set_parkable(at, self._may_leave(tenancy.tenant))
            tenancy.page.set_room_wait(at, wait)
            tenancy.page.set_reserve(at, self._reserve(tenancy.page.uuids[at]))

    def _reserve(self, uuid: str) -> int:
        """Bytes of that card that are kept free for the mover; 0: not known, or nothing moves."""
        if not self._rules.host_pool:
            return 0
        if uuid not in self._reserves:
            try:
                self._reserves[uuid] = reserve_mib(self._nvml.memory(uuid)[1] >> 20) << 20
            except NvmlError:
                return 0
        return self._reserves[uuid]

    def _may_leave(self, tenant: Tenant) -> bool:
        shared = self._rules.oversubscribe > 1.0 and may_park(tenant.app_class, None)
        one_card = len(tenant.allotments) == 1
        return self._rules.host_pool > 0 and one_card and not tenant.group and (shared or tenant.park_after is not None)

    def hand_over(self, tenancy: Tenancy, connection: socket.socket, slot: int, serial: int, card: int) -> None:
        """A shim's connection for the mover. One too many is closed: an honest process has one for each card."""
        owner = owner_of(tenancy)
        with self._handed_lock:
            if self._handed[tenancy.tenant.id] >= _MOST_HANDED or not self._shares.take(owner):
                connection.close()
                return
            self._handed[tenancy.tenant.id] += 1
        allotment = tenancy.tenant.allotments[card]
        # Pieces are of whole units, so they may come to a little more than what was asked for.
        limit = None if allotment.memory_bytes is None else allotment.memory_bytes * 5 // 4 + (1 << 30)
        if not self._may_leave(tenancy.tenant):
            limit = 0  # it may fetch what is kept, and add nothing
        self._inbox.put((connection, control.Serve(tenancy.tenant.id, slot, serial, allotment.uuid, limit, owner)))

    def wake(self, uuid: str | None = None) -> None:
        """Something may be to decide, on that card or on any."""
        self._looked.clear() if uuid is None else self._looked.pop(uuid, None)
        self._inbox.put(None)

    def request(self, tenant: str, *, leave: bool) -> str | None:
        """Park it, or bring it back, because its user says so. Why that cannot be; None: it is asked."""
        if not self.residencies(tenant):
            return (
                "none of its memory can leave the card. It has allocated nothing yet, or it was started without --park "
                "and, if it is offline work, before `aliquot policy oversubscribe` was above 1"
            )
        never = [
            self._sightings.never.get((tenant, uuid))
            for name, uuid in list(self._sightings.residency)
            if name == tenant
        ]
        if leave and never and all(never):
            return "; ".join(sorted({reason_words(reason) for reason in never if reason is not None}))
        leaves = sum(size for (name, _), size in list(self._sightings.leaving.items()) if name == tenant)
        if leave and self.mover.state is not None and leaves > self._pool() - self._sightings.parked_elsewhere(None):
            return reason_words(ParkReason.POOL_FULL)
        with self._lock:
            self._asked[tenant] = leave
            for (name, _), seen in list(self._sightings.seen.items()):
                if name == tenant:
                    seen.retry_at, seen.failures = float("-inf"), 0  # at once, also where the last try failed
                    seen.hearing = Hearing()
                    seen.errand.ask_at = float("-inf")
            tenancy = self._tenancies.get(tenant)
            if not leave and tenancy is not None and tenancy.page.fileno() >= 0:  # an order that it never heard
                slots = [process.slot for process in tenancy.processes if process.slot is not None]
                for uuid in tenancy.page.uuids:
                    stay(tenancy, uuid, slots)
        self.wake()
        return None

    def residency(self, tenant: str, uuid: str) -> Residency | None:
        """Where its memory is; None: it has none that could leave."""
        return self._sightings.residency.get((tenant, uuid))

    def residencies(self, tenant: str) -> list[Residency]:
        """Where its memory is, by card that has any that could leave."""
        return [shown for (name, _), shown in list(self._sightings.residency.items()) if name == tenant]

    # --- the thread ---------------------------------------------------------------------------------------------

    def run(self, stopping: threading.Event) -> None:
        """Until `stopping` is set and `wake` is called."""
        pause = _CALM
        while not stopping.is_set():
            with contextlib.suppress(queue.Empty):
                self._take(self._inbox.get(timeout=pause))
                for _ in range(_AT_A_TIME):
                    self._take(self._inbox.get_nowait())
            try:
                pause = _BUSY if self.round(self._clock()) else _CALM
            except Exception:  # the next round must come
                log.exception("parking_failed")
                pause = _CALM
        self.mover.finish()

    def _take(self, message: tuple[socket.socket, control.Serve] | None) -> None:
        if message is None:
            return
        connection, request = message
        with self._handed_lock:
            self._shares.give_back(request.tenant if request.owner is None else request.owner)
            self._handed[request.tenant] -= 1
            if not self._handed[request.tenant]:
                del self._handed[request.tenant]
        if self.mover.state is None:  # another one may be started for this: it is to have the permits before
            self._permits.renew(self._sightings.seen)
        if self.mover.serve(connection, request):
            release(connection)
        else:
            connection.close()

    def round(self, now: float) -> bool:
        """Decide for every card; True: something moves or waits."""
        with self._lock:
            tenancies = [tenancy for tenancy in self._tenancies.values() if tenancy.page.fileno() >= 0]
            cards = self._due(tenancies, now)
            found = {uuid: self._sightings.read(uuid, tenancies, now) for uuid in cards}
        self._tell_mover(tenancies, now)
        restless = False
        for uuid, occupants in found.items():
            if occupants:
                restless |= self._ordering.decide(uuid, occupants, now)
        self._permits.withdraw(self._sightings.seen, now)
        return restless

    def _due(self, tenancies: list[Tenancy], now: float) -> list[str]:
        """The cards to look at. Reading the pages of all tenants is most of what an idle daemon does: where nothing can
        move, less often."""
        restless = {uuid for _, uuid in self._sightings.residency}
        quiet = set[str]()
        for tenancy in tenancies:
            (restless if self._may_leave(tenancy.tenant) else quiet).update(tenancy.page.index)
        due = [
            uuid
            for uuid in self._loops
            if uuid in restless or uuid not in quiet or now - self._looked.get(uuid, float("-inf")) >= _STILL
        ]
        self._looked |= dict.fromkeys(due, now)
        return due

    def _tell_mover(self, tenancies: list[Tenancy], now: float) -> None:
        """Who lives. It is started when the first tenant comes whose memory may leave: the pool takes seconds. Also
        where nothing may leave any more: what ended tenants left is to be forgotten."""
        if now - self._told < _LIVING:
            return
        with self._lock:
            there = [tenancy for tenancy in tenancies if tenancy.page.fileno() >= 0]
            cards = {uuid for tenancy in there if self._may_leave(tenancy.tenant) for uuid in tenancy.page.uuids}
            if not cards and self.mover.state is None and not self.mover.keeps():
                return
        living = self._living(there)
        self._told = now
        known = [tenancy.tenant.id for tenancy in there]
        complete = now - self._began > _SETTLED
        claimed = self._sightings.parked_elsewhere(None)  # before the answer: what leaves meanwhile is in that
        wanted = claimed + sum(self._sightings.leaving.values())
        ready = sorted(cards & self._loops.keys())
        self.mover.living(control.Living(living, known, complete, ready, min(wanted, self.mover.size)))
        self._unfounded.append(0 if self.mover.state is None else max(0, claimed - self.mover.state.parked))

    def _living(self, tenancies: list[Tenancy]) -> list[tuple[str, int, int]]:
        """Their slots that are taken, with the tenant's id and the serial of each; without time for a page, all that
        its tenant claims."""
        living: list[tuple[str, int, int]] = []
        by_id = {tenancy.tenant.id: tenancy for tenancy in tenancies}
        for tenant_id, seconds in self._turns.look({one: owner_of(tenancy) for one, tenancy in by_id.items()}):
            with self._lock:  # not for all together: others wait for it
                page = by_id[tenant_id].page
                if page.fileno() >= 0:
                    living += [(tenant_id, slot, page.serial(slot)) for slot in page.sweep(seconds=seconds)]
        return living

    def _memory(self, uuid: str, occupants: Mapping[str, Occupant]) -> Memory | None:
        """What is free by the driver's figure, on top of what we know to be used: others may use the card as well."""
        try:
            used, total = self._nvml.memory(uuid)
        except NvmlError:
            return None
        free = max(0, total - used - _MARGIN - self._reserve(uuid))
        known = sum(occupant.on_card for occupant in occupants.values())
        return Memory(free + known, max(0, self._pool() - self._sightings.parked_elsewhere(uuid)))

    def _pool(self) -> int:
        """Bytes of the pool for memory that is parked or may be. What is parked changes more often than we ask; what
        pages claim beyond it, again and again, takes nothing from others."""
        state = self.mover.state
        return 0 if state is None else state.free + state.parked + min(self._unfounded, default=0)
