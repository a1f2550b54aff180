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
from dataclasses import dataclass, field, replace

from aliquot.adapters.gpu.nvml import Nvml, NvmlError
from aliquot.adapters.gpu.page import Move, Order, State, Use, Why
from aliquot.adapters.host.hostmemory import room_of
from aliquot.arbiter.residency import (
    Decision,
    Errand,
    Futility,
    Hearing,
    Leave,
    Memory,
    Obstacle,
    Occupant,
    decide,
    pause_after,
)
from aliquot.model.claim import may_park
from aliquot.model.device import reserve_mib
from aliquot.model.residency import ParkReason, Residency, Way, Where
from aliquot.model.tenant import SharingRules, Tenant
from aliquot.services.mover import control
from aliquot.services.mover.checkpointer import patience
from aliquot.services.mover.client import MoverClient
from aliquot.services.runtime.cards.cardloop import CardLoop
from aliquot.services.runtime.elastic.checkpoints import Checkpoints
from aliquot.services.runtime.elastic.moves import (
    FAILURES,
    MOVING,
    OBSTACLES,
    Arrivals,
    Lines,
    is_under_way,
    is_unheard,
    log_move,
    stays_of,
    wants_of,
    where_of,
)
from aliquot.services.runtime.processes.registration import Tenancy, context_name
from aliquot.wording.parking import cannot_words, reason_words

ROOM_WAIT = 30.0  # seconds that an allocation waits for room that others have
_BUSY = 0.01  # seconds between rounds while something moves or waits
_CALM = 0.5
_STILL = 2.0  # seconds between two looks at a card where nothing may leave, and nothing had left
_STUCK = 20.0  # a move that shows no progress for so long is not counted on
_SLOWEST = 5e9  # bytes per second: nor is one that takes so much longer than its bytes need
_MARGIN = 256 << 20  # bytes of a card that the driver may need itself
_RECONNECTED = 5.0  # seconds after our start in which processes of the daemon before us may still connect
_SETTLED = 60.0  # seconds after our start in which tenants may still be added that were there before
_LIVING = 1.0  # seconds between two messages to the mover
_MOST_HANDED = 64  # connections of one tenant that wait for the mover: each is an open file
_AT_A_TIME = 64  # messages between two rounds
_AGAIN = {Why.BUSY: 1.0, Why.CAPTURE: 1.0, Why.POOL: 2.0, Why.ROOM: 0.5, Why.ERROR: 10.0, Why.MOVER: 1.0}
_LONGER = frozenset({Why.BUSY, Why.CAPTURE})  # longer each time: its program may be so for ever

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Seen:
    """What we remember of a tenant on a card."""

    where: Where = Where.RESIDENT
    since: float = 0.0
    active: float = 0.0
    work: int = 0
    parked: int = 0
    moved: float = 0.0  # when `parked` last changed
    wants_since: float | None = None
    retry_at: float = float("-inf")
    failures: int = 0  # in a row, of the kinds of _LONGER
    why: Why = Why.NOTHING
    moves: int = 0
    moved_bytes: int = 0
    draining: bool = False
    reason: ParkReason | None = None
    hearing: Hearing = field(default_factory=Hearing)
    errand: Errand = field(default_factory=Errand)
    lines: Lines = field(default_factory=Lines)


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
        checkpoints: Checkpoints | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock, self._tenancies, self._loops, self._nvml = lock, tenancies, loops, nvml
        self.mover = mover
        self._checkpoints = checkpoints or Checkpoints(None, room_of)
        self.arrivals = Arrivals()
        self._clock = clock
        self._rules = SharingRules()
        self._inbox: queue.SimpleQueue[tuple[socket.socket, control.Serve] | None] = queue.SimpleQueue()
        self._handed: Counter[str] = Counter()  # connections in the inbox, by tenant
        self._handed_lock = threading.Lock()
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._asked: dict[str, bool] = {}  # by hand: tenant to leave (True) or return
        self._residency: dict[tuple[str, str], Residency] = {}
        self._never: dict[tuple[str, str], ParkReason] = {}  # nothing of it can leave
        self._leaving: dict[tuple[str, str], int] = {}  # bytes that would go into the pool
        self._reserves: dict[str, int] = {}
        self._futility: dict[str, Futility] = {}  # by card
        self._looked: dict[str, float] = {}  # by card: when its pages were read
        self._told = float("-inf")
        self._unfounded: deque[int] = deque([0], maxlen=3)  # bytes that pages claim and the mover does not have
        self._began = clock()

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
        with self._handed_lock:
            if self._handed[tenancy.tenant.id] >= _MOST_HANDED:
                connection.close()
                return
            self._handed[tenancy.tenant.id] += 1
        allotment = tenancy.tenant.allotments[card]
        # Pieces are of whole units, so they may come to a little more than what was asked for.
        limit = None if allotment.memory_bytes is None else allotment.memory_bytes * 5 // 4 + (1 << 30)
        if not self._may_leave(tenancy.tenant):
            limit = 0  # it may fetch what is kept, and add nothing
        self._inbox.put((connection, control.Serve(tenancy.tenant.id, slot, serial, allotment.uuid, limit)))

    def wake(self, uuid: str | None = None) -> None:
        """Something may be to decide, on that card or on any."""
        self._looked.clear() if uuid is None else self._looked.pop(uuid, None)
        self._inbox.put(None)

    def request(self, tenant: str, *, leave: bool) -> str | None:
        """Park it, or bring it back, because its user says so. Why that cannot be; None: it is asked."""
        if not self.residencies(tenant):
            return (
                "none of its memory can leave the card: it was started without --park and is not offline work on an "
                "oversubscribed card, or it has allocated nothing yet"
            )
        never = [self._never.get((tenant, uuid)) for name, uuid in list(self._residency) if name == tenant]
        if leave and never and all(never):
            with self._lock:
                tried_again = self._checkpoints.forgive(tenant)
            if not tried_again:
                details = {shown.detail for shown in self.residencies(tenant)}
                detail = next(iter(details)) if len(details) == 1 else None
                return "; ".join(sorted({cannot_words(reason, detail) for reason in never if reason is not None}))
            for key, shown in list(self._residency.items()):
                if key[0] == tenant:
                    self._residency[key] = replace(shown, detail=None)
        leaves = sum(size for (name, _), size in list(self._leaving.items()) if name == tenant)
        if leave and self.mover.state is not None and leaves > self._pool() - self._parked_elsewhere(None):
            return reason_words(ParkReason.POOL_FULL)
        with self._lock:
            self._asked[tenant] = leave
            for (name, _), seen in list(self._seen.items()):
                if name == tenant:
                    seen.retry_at, seen.failures = float("-inf"), 0  # at once, also where the last try failed
                    seen.hearing = Hearing()
                    seen.errand.ask_at = float("-inf")
            tenancy = self._tenancies.get(tenant)
            if not leave and tenancy is not None and tenancy.page.fileno() >= 0:  # an order that it never heard
                slots = [process.slot for process in tenancy.processes if process.slot is not None]
                for uuid in tenancy.page.uuids:
                    self._stay(tenancy, uuid, slots)
        self.wake()
        return None

    def residency(self, tenant: str, uuid: str) -> Residency | None:
        """Where its memory is; None: it has none that could leave."""
        return self._residency.get((tenant, uuid))

    def residencies(self, tenant: str) -> list[Residency]:
        """Where its memory is, by card that has any that could leave."""
        return [shown for (name, _), shown in list(self._residency.items()) if name == tenant]

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
        self.mover.close()

    def _take(self, message: tuple[socket.socket, control.Serve] | None) -> None:
        if message is None:
            return
        connection, request = message
        with self._handed_lock:
            self._handed[request.tenant] -= 1
            if not self._handed[request.tenant]:
                del self._handed[request.tenant]
        with connection:
            self.mover.serve(connection, request)

    def round(self, now: float) -> bool:
        """Decide for every card; True: something moves or waits."""
        with self._lock:
            tenancies = [tenancy for tenancy in self._tenancies.values() if tenancy.page.fileno() >= 0]
            cards = self._due(tenancies, now)
            found = {uuid: self._occupants(uuid, tenancies, now) for uuid in cards}
        self._tell_mover(tenancies, now)
        restless = False
        for uuid, occupants in found.items():
            if occupants:
                restless |= self._decide(uuid, occupants, now)
        return restless

    def _due(self, tenancies: list[Tenancy], now: float) -> list[str]:
        """The cards to look at. Reading the pages of all tenants is most of what an idle daemon does: where nothing can
        move, less often."""
        restless = {uuid for _, uuid in self._residency}
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
            living = [
                (tenancy.tenant.id, slot, tenancy.page.serial(slot))
                for tenancy in there
                for slot in tenancy.page.sweep()
            ]
        self._told = now
        known = [tenancy.tenant.id for tenancy in there]
        complete = now - self._began > _SETTLED
        claimed = self._parked_elsewhere(None)  # before the answer: what leaves meanwhile is in that
        self.mover.living(control.Living(living, known, complete, sorted(cards & self._loops.keys())))
        self._unfounded.append(0 if self.mover.state is None else max(0, claimed - self.mover.state.parked))

    # --- reading ------------------------------------------------------------------------------------------------

    def _occupants(self, uuid: str, tenancies: list[Tenancy], now: float) -> dict[str, Occupant]:
        found = {}
        there = set()
        for tenancy in tenancies:
            at = tenancy.page.index.get(uuid)
            slots = [process.slot for process in tenancy.processes if process.slot is not None]
            if at is None or not slots:
                continue
            key = tenancy.tenant.id, uuid
            there.add(key)
            moves = [tenancy.page.move(slot, at) for slot in slots]
            if key not in self._seen:
                self._seen[key] = _Seen(active=now)
                if now - self._began < _SETTLED and where_of(moves) in MOVING:  # as the daemon before us ordered
                    self._seen[key].errand.begin(where_of(moves) is Where.LEAVING, now)
            seen = self._seen[key]
            uses = [tenancy.page.use(slot, at) for slot in slots]
            may_leave = self._may_leave(tenancy.tenant)
            moves = self._checkpoints.view(tenancy, uuid, moves, uses, now, may_leave=may_leave)
            works = seen.work != sum(use.launches for use in uses)
            if seen.hearing.note(pending=any(map(is_unheard, moves)), works=works, now=now):
                self._withdraw(tenancy, uuid, slots, seen)
            occupant = self._occupant(tenancy.tenant, uuid, seen, moves, uses, now)
            found[tenancy.tenant.id] = occupant
            self._show(tenancy.tenant, uuid, occupant, seen, moves)
        for key in [key for key in self._seen if key[1] == uuid and key not in there]:
            del self._seen[key]
            self.arrivals.forget(key)
            self._residency.pop(key, None)
            self._never.pop(key, None)
            self._leaving.pop(key, None)
            self._checkpoints.forget(key)
        return found

    def _withdraw(self, tenancy: Tenancy, uuid: str, slots: list[int], seen: _Seen) -> None:
        """It does not begin to leave: it stays, and another may be chosen."""
        self._stay(tenancy, uuid, slots)
        seen.why = Why.BUSY
        again = round(seen.hearing.ask_at - self._clock())
        data = {"tenant": tenancy.tenant.id, "card": uuid, "asked_again_in": again}
        log.info("memory_leave_unheard", extra={"data": data})

    @staticmethod
    def _stay(tenancy: Tenancy, uuid: str, slots: list[int]) -> None:
        at = tenancy.page.index[uuid]
        for slot in slots:
            if is_unheard(tenancy.page.move(slot, at)):
                tenancy.page.order(slot, at, Order.STAY)

    def _occupant(
        self, tenant: Tenant, uuid: str, seen: _Seen, moves: list[Move], uses: list[Use], now: float
    ) -> Occupant:
        limit = next(one.memory_bytes for one in tenant.allotments if one.uuid == uuid)
        most = limit * 2 if limit is not None else 1 << 50
        movable = min(most, sum(move.movable for move in moves))
        parked = min(movable, sum(move.parked for move in moves))
        kept = min(movable - parked, sum(move.kept for move in moves))
        memory = min(most, sum(use.memory for use in uses))
        overhead = min(1 << 50, sum(use.overhead for use in uses))
        key = tenant.id, uuid
        slow = min(movable, self._checkpoints.size(key))
        where = where_of(moves)
        takes = _STUCK + movable / _SLOWEST + (patience(slow) if slow else 0.0)
        seen.errand.note(under_way=any(map(is_under_way, moves)), takes=takes, now=now)
        if where in MOVING and not seen.errand.is_on:  # nobody told it to move, or it has taken too long
            where = Where.PARKED if parked else Where.RESIDENT
        if where is not seen.where:
            why = self._reason_of(seen)
            if seen.lines.take(now):
                log_move(tenant.id, uuid, where, moves, why)
            # Whatever moves was ordered, or seen to begin: else it was so when we came.
            way, is_new = self._checkpoints.way(key) or Way.COPY, seen.moved > 0.0
            self.arrivals.note(key, where, moves, parked, why, now, is_new=is_new, way=way)
            seen.where, seen.since, seen.moved = where, now, now
            seen.active = now  # while it was away, it could not work
        if parked != seen.parked:
            seen.moved_bytes += abs(parked - seen.parked)
            seen.parked, seen.moved = parked, now
        work = sum(use.launches for use in uses)
        if work != seen.work or any(use.busy_since_ns or use.waiting for use in uses):
            seen.work, seen.active = work, now
        seen.moves = max(move.moves for move in moves)
        wants = wants_of(moves, most)
        if self._asked.get(tenant.id) is False and where is Where.PARKED:
            wants = wants or 0
        seen.wants_since = None if wants is None else now if seen.wants_since is None else seen.wants_since
        self._note_failure(seen, moves, now)
        stuck = where in MOVING and now - seen.moved > _STUCK and not self._checkpoints.is_moving(key)
        if now < seen.errand.ask_at:
            wants = None  # others go first
        return Occupant(
            tenant.id,
            tenant.app_class,
            (Where.PARKED if parked else Where.RESIDENT) if stuck else where,
            movable,
            parked,
            max(0, memory + overhead - movable) if slow else max(0, memory - movable) + overhead,
            tenant.park_after,
            seen.active,
            seen.since,
            wants,
            seen.wants_since or 0.0,
            now + _STUCK if stuck else max(seen.retry_at, seen.hearing.ask_at, seen.errand.ask_at),
            kept,
            slow,
            self._checkpoints.is_away(key),
        )

    @staticmethod
    def _reason_of(seen: _Seen) -> ParkReason | None:
        return FAILURES.get(seen.why) or seen.reason

    def _note_failure(self, seen: _Seen, moves: list[Move], now: float) -> None:
        failed = [move.why for move in moves if move.why and move.state in (State.RESIDENT, State.PARKED)]
        if not failed:
            if seen.where is Where.PARKED:
                seen.failures = 0
            return
        why = Why(failed[0]) if failed[0] in set(Why) else Why.ERROR
        if why is not seen.why:
            again = _AGAIN.get(why, 1.0)
            if why in _LONGER:
                seen.failures += 1
                again = pause_after(seen.failures, again)
            seen.why, seen.retry_at = why, now + again

    def _show(self, tenant: Tenant, uuid: str, occupant: Occupant, seen: _Seen, moves: list[Move]) -> None:
        key = tenant.id, uuid
        stays = stays_of(moves) if self._may_leave(tenant) else None
        if not occupant.movable and stays is None and not any(move.moves for move in moves):
            self._residency.pop(key, None)
            return
        self._leaving[key] = occupant.copies
        if stays is not None and not occupant.movable:
            self._never[key] = stays
        else:
            self._never.pop(key, None)
        out, back = max(move.out_ns for move in moves) / 1e9, max(move.in_ns for move in moves) / 1e9
        lost = any(move.state == State.LOST for move in moves)
        most_stays = occupant.where is Where.RESIDENT and stays is not None and occupant.fixed > occupant.movable
        self._residency[key] = Residency(
            where=occupant.where,
            resident=occupant.on_card,
            parked=occupant.parked,
            moves=seen.moves,
            moved=seen.moved_bytes,
            last_out=out or None,
            last_in=back or None,
            why=ParkReason.LOST if lost else self._reason_of(seen) if not most_stays or seen.why else stays,
            way=self._checkpoints.way(key) or (Way.COPY if occupant.movable else None),
            checkpointed=occupant.slow_parked,
            detail=self._checkpoints.detail(key) if most_stays else None,
        )

    # --- deciding -----------------------------------------------------------------------------------------------

    def _decide(self, uuid: str, occupants: dict[str, Occupant], now: float) -> bool:
        for name, occupant in occupants.items():
            self._drain(name, uuid, draining=occupant.where is Where.LEAVING)
        by_hand = self._by_hand(occupants)
        waits = any(occupant.wants is not None for occupant in occupants.values())
        moving = any(occupant.where in MOVING for occupant in occupants.values())
        if waits or by_hand:
            memory = self._memory(uuid, occupants)
            if memory is not None:
                decision = decide(list(occupants.values()), memory, now)
                asked = {order.tenant for order in by_hand}
                for order in [*by_hand, *decision.orders]:
                    leave = isinstance(order, Leave)
                    seen = self._seen[order.tenant, uuid]
                    if now < max(seen.retry_at, seen.errand.ask_at, seen.hearing.ask_at if leave else 0.0):
                        continue
                    if leave:
                        self._note_reason(uuid, occupants, order.tenant, asked)
                    if order.tenant in asked:
                        self._asked.pop(order.tenant, None)
                    self._perform(order.tenant, uuid, leave=leave, now=now)
                self._note_obstacles(uuid, decision.waiting or {})
                self._refuse_room(uuid, list(occupants.values()), memory, decision, now)
        return waits or moving or bool(by_hand)

    def _note_reason(self, uuid: str, occupants: dict[str, Occupant], tenant: str, asked: set[str]) -> None:
        waiting = [occupant for occupant in occupants.values() if occupant.wants is not None]
        mine = occupants[tenant]
        if tenant in asked:
            reason = ParkReason.ASKED
        elif any(occupant.rank < mine.rank for occupant in waiting):
            reason = ParkReason.ROOM
        else:
            reason = ParkReason.TURN if mine.park_after is None else ParkReason.IDLE
        self._seen[tenant, uuid].reason = reason

    def _by_hand(self, occupants: dict[str, Occupant]) -> list[Leave]:
        orders = []
        for name, leave in list(self._asked.items()):
            occupant = occupants.get(name)
            if occupant is None or (leave and occupant.where is Where.RETURNING):  # once it is back
                continue
            if leave and occupant.where is Where.RESIDENT and occupant.resident:
                orders.append(Leave(name))
            elif leave or (occupant.where is Where.RESIDENT and not occupant.parked):
                self._asked.pop(name, None)
        return orders

    def _memory(self, uuid: str, occupants: dict[str, Occupant]) -> Memory | None:
        """What is free by the driver's figure, on top of what we know to be used: others may use the card as well."""
        try:
            used, total = self._nvml.memory(uuid)
        except NvmlError:
            return None
        free = max(0, total - used - _MARGIN - self._reserve(uuid))
        known = sum(occupant.on_card for occupant in occupants.values())
        return Memory(free + known, max(0, self._pool() - self._parked_elsewhere(uuid)))

    def _pool(self) -> int:
        """Bytes of the pool for memory that is parked or may be. What is parked changes more often than we ask; what
        pages claim beyond it, again and again, takes nothing from others."""
        state = self.mover.state
        return 0 if state is None else state.free + state.parked + min(self._unfounded, default=0)

    def _parked_elsewhere(self, uuid: str | None) -> int:
        """Bytes of the tenants on the other cards, by their pages; None: on all."""
        return sum(
            shown.parked - shown.checkpointed for (_, card), shown in list(self._residency.items()) if card != uuid
        )

    def _perform(self, tenant: str, uuid: str, *, leave: bool, now: float) -> None:
        with self._lock:
            tenancy = self._tenancies.get(tenant)
            seen = self._seen.get((tenant, uuid))
            if tenancy is None or seen is None or tenancy.page.fileno() < 0:
                return
            at = tenancy.page.index[uuid]
            if leave:
                self._drain(tenant, uuid, draining=True)
            by_driver = self._checkpoints.leave if leave else self._checkpoints.come
            if by_driver(tenancy, uuid, now):
                seen.why, seen.moved = Why.NOTHING, now
                seen.errand.begin(leave, now)
                return
            for slot in [process.slot for process in tenancy.processes if process.slot is not None]:
                move = tenancy.page.move(slot, at)
                order = Order.LEAVE if leave else Order.RETURN
                if (move.movable if leave else move.parked) and (move.order != order or move.why):
                    tenancy.page.order(slot, at, order)
            seen.why, seen.moved = Why.NOTHING, now
            seen.errand.begin(leave, now)
        log.debug("move_ordered", extra={"data": {"tenant": tenant, "card": uuid, "leave": leave}})

    def _refuse_room(
        self, uuid: str, occupants: list[Occupant], memory: Memory, decision: Decision, now: float
    ) -> None:
        """Let allocations fail for which nothing can make room: programs expect that, and go on."""
        if now - self._began < _RECONNECTED:  # whoever could leave may not have connected yet
            return
        with self._lock:
            asking = {
                (occupant.tenant, process.slot, room): (tenancy.page, at)
                for occupant in occupants
                if occupant.wants and (tenancy := self._tenancies.get(occupant.tenant)) is not None
                if tenancy.page.fileno() >= 0 and (at := tenancy.page.index.get(uuid)) is not None
                for process in tenancy.processes
                if process.slot is not None and (room := tenancy.page.move(process.slot, at).room)
            }
            futility = self._futility.setdefault(uuid, Futility())
            for judged in futility.judge(asking, occupants, memory, decision, now):
                page, at = asking[judged]
                if page.move(judged[1], at).room == judged[2]:
                    page.refuse_room(judged[1], at)

    def _drain(self, tenant: str, uuid: str, *, draining: bool) -> None:
        """A tenant that leaves has to finish what it submitted: it is not paused meanwhile."""
        seen = self._seen.get((tenant, uuid))
        if seen is None or seen.draining == draining:
            return
        seen.draining = draining
        with self._lock:
            tenancy = self._tenancies.get(tenant)
            names = [] if tenancy is None else [context_name(process) for process in tenancy.processes]
        for name in names:
            self._loops[uuid].drain(name, draining)

    def _note_obstacles(self, uuid: str, waiting: Mapping[str, Obstacle]) -> None:
        for tenant, obstacle in waiting.items():
            seen = self._seen.get((tenant, uuid))
            if seen is not None and seen.where is Where.PARKED:
                seen.reason = OBSTACLES[obstacle]
