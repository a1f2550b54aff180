"""What the pages say of tenants' memory, and what is remembered of each tenant on each card.

Everything that a page says is the tenant's own claim: what is shown is bounded by what it was granted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from aliquot.adapters.gpu.page import Move, Order, State, Use, Why
from aliquot.arbiter.residency import (
    Errand,
    Hearing,
    Occupant,
    pause_after,
)
from aliquot.model.residency import ParkReason, Residency, Where
from aliquot.model.tenant import Tenant
from aliquot.services.runtime.elastic.moves import (
    FAILURES,
    MOVING,
    Arrivals,
    Lines,
    is_under_way,
    is_unheard,
    log_move,
    stays_of,
    wants_of,
    where_of,
)
from aliquot.services.runtime.processes.registration import Tenancy

_STUCK = 20.0  # a move that shows no progress for so long is not counted on
_SLOWEST = 5e9  # bytes per second: nor is one that takes so much longer than its bytes need
_SETTLED = 60.0  # seconds after our start in which tenants may still be added that were there before
RECONNECTED = 5.0  # seconds after our start in which processes of the daemon before us may still connect
_AGAIN = {Why.BUSY: 1.0, Why.CAPTURE: 1.0, Why.POOL: 2.0, Why.ROOM: 0.5, Why.ERROR: 10.0, Why.MOVER: 1.0}
_LONGER = frozenset({Why.BUSY, Why.CAPTURE})  # longer each time: its program may be so for ever

Key = tuple[str, str]  # tenant and card

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Sighting:
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


class Sightings:
    """`may_leave`: whether memory of the tenant may leave; `asked`: tenants that are to leave (True) or to return, by
    hand. `residency`, `never` and `leaving` may be read by any thread."""

    def __init__(
        self,
        asked: Mapping[str, bool],
        may_leave: Callable[[Tenant], bool],
        clock: Callable[[], float],
    ) -> None:
        self._asked, self._may_leave, self._clock = asked, may_leave, clock
        self._began = clock()
        self.arrivals = Arrivals()
        self.seen: dict[Key, Sighting] = {}
        self.residency: dict[Key, Residency] = {}
        self.never: dict[Key, ParkReason] = {}  # nothing of it can leave
        self.leaving: dict[Key, int] = {}  # bytes that would go into the pool

    def read(self, uuid: str, tenancies: list[Tenancy], now: float) -> dict[str, Occupant]:
        """Who is on the card, by tenant. With the lock of the tenancies held."""
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
            is_new = key not in self.seen
            seen = self.seen.setdefault(key, Sighting(active=now))
            fresh = now - self._began < (_SETTLED if is_new else RECONNECTED)
            if fresh and not seen.errand.is_on and where_of(moves) in MOVING:  # as the daemon before us ordered
                seen.errand.begin(where_of(moves) is Where.LEAVING, now)
            uses = [tenancy.page.use(slot, at) for slot in slots]
            works = seen.work != sum(use.launches for use in uses)
            if seen.hearing.note(pending=any(map(is_unheard, moves)), works=works, now=now):
                self._withdraw(tenancy, uuid, slots, seen)
            occupant = self._occupant(tenancy.tenant, uuid, seen, moves, uses, now)
            found[tenancy.tenant.id] = occupant
            self._show(tenancy.tenant, uuid, occupant, seen, moves)
        for key in [key for key in self.seen if key[1] == uuid and key not in there]:
            del self.seen[key]
            self.arrivals.forget(key)
            self.residency.pop(key, None)
            self.never.pop(key, None)
            self.leaving.pop(key, None)
        return found

    def _withdraw(self, tenancy: Tenancy, uuid: str, slots: list[int], seen: Sighting) -> None:
        """It does not begin to leave: it stays, and another may be chosen."""
        stay(tenancy, uuid, slots)
        seen.why = Why.BUSY
        again = round(seen.hearing.ask_at - self._clock())
        data = {"tenant": tenancy.tenant.id, "card": uuid, "asked_again_in": again}
        log.info("memory_leave_unanswered", extra={"data": data})

    def _occupant(
        self, tenant: Tenant, uuid: str, seen: Sighting, moves: list[Move], uses: list[Use], now: float
    ) -> Occupant:
        limit = next(one.memory_bytes for one in tenant.allotments if one.uuid == uuid)
        most = limit * 2 if limit is not None else 1 << 50
        movable = min(most, sum(move.movable for move in moves))
        parked = min(movable, sum(move.parked for move in moves))
        kept = min(movable - parked, sum(move.kept for move in moves))
        memory = min(most, sum(use.memory for use in uses))
        overhead = min(1 << 50, sum(use.overhead for use in uses))
        key = tenant.id, uuid
        where = where_of(moves)
        seen.errand.note(under_way=any(map(is_under_way, moves)), takes=_STUCK + movable / _SLOWEST, now=now)
        if where in MOVING and not seen.errand.is_on:  # it moves without an order, or has taken too long
            where = Where.PARKED if parked else Where.RESIDENT
        if where is not seen.where:
            why = _reason_of(seen)
            if seen.lines.take(now):
                log_move(tenant.id, uuid, where, moves, why)
            # Whatever moves was ordered, or seen to begin: else it was so when we came.
            self.arrivals.note(key, where, moves, parked, why, now, is_new=seen.moved > 0.0)
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
        stuck = where in MOVING and now - seen.moved > _STUCK
        if now < seen.errand.ask_at:
            wants = None  # others go first
        return Occupant(
            tenant.id,
            tenant.app_class,
            (Where.PARKED if parked else Where.RESIDENT) if stuck else where,
            movable,
            parked,
            max(0, memory - movable) + overhead,
            tenant.park_after,
            seen.active,
            seen.since,
            wants,
            seen.wants_since or 0.0,
            now + _STUCK if stuck else max(seen.retry_at, seen.hearing.ask_at, seen.errand.ask_at),
            kept,
        )

    def _note_failure(self, seen: Sighting, moves: list[Move], now: float) -> None:
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

    def _show(self, tenant: Tenant, uuid: str, occupant: Occupant, seen: Sighting, moves: list[Move]) -> None:
        key = tenant.id, uuid
        stays = stays_of(moves) if self._may_leave(tenant) else None
        if not occupant.movable and stays is None and not any(move.moves for move in moves):
            self.residency.pop(key, None)
            return
        self.leaving[key] = occupant.copies
        if stays is not None and not occupant.movable:
            self.never[key] = stays
        else:
            self.never.pop(key, None)
        out, back = max(move.out_ns for move in moves) / 1e9, max(move.in_ns for move in moves) / 1e9
        lost = any(move.state == State.LOST for move in moves)
        back_again = occupant.where is Where.RESIDENT and not occupant.parked  # why it left is of the past then
        reason = FAILURES.get(seen.why) if back_again else _reason_of(seen)
        most_stays = occupant.where is Where.RESIDENT and stays is not None and occupant.fixed > occupant.movable
        self.residency[key] = Residency(
            where=occupant.where,
            resident=occupant.on_card,
            parked=occupant.parked,
            moves=seen.moves,
            moved=seen.moved_bytes,
            last_out=out or None,
            last_in=back or None,
            why=ParkReason.LOST if lost else reason if not most_stays or seen.why else stays,
        )

    def parked_elsewhere(self, uuid: str | None) -> int:
        """Bytes of the tenants on the other cards, by their pages; None: on all."""
        return sum(shown.parked for (_, card), shown in list(self.residency.items()) if card != uuid)


def stay(tenancy: Tenancy, uuid: str, slots: list[int]) -> None:
    """Withdraw orders to leave that were not heard."""
    at = tenancy.page.index[uuid]
    for slot in slots:
        if is_unheard(tenancy.page.move(slot, at)):
            tenancy.page.order(slot, at, Order.STAY)


def _reason_of(seen: Sighting) -> ParkReason | None:
    return FAILURES.get(seen.why) or seen.reason
