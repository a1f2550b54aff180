"""Whose memory is on the card: from who needs room, who is there and what a move costs, to orders.

A tenant's memory is on the card, on its way, or parked in the host's pool. Whoever waits for room is served in this
order: online work, ordinary work, offline work; then who waited longest. For online and ordinary work offline tenants
leave at once, as few as possible; a tenant that asked to be parked when idle leaves once it was idle so long. Offline
tenants that do not fit together take turns: long enough that moving costs a tenth of the time, unless one of them
would wait longer than STARVES for that. One returns while another leaves, piece by piece, so that a swap takes as long
as the larger of the two and needs hardly any room in between.

Pure: time is an argument. Failures are facts of a tenant (`retry_at`), not exceptions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations
from math import inf

from aliquot.model.claim import AppClass
from aliquot.model.residency import Where

MOVING_PART = 0.1  # of the time may be spent on moving
SHORTEST_TURN = 2.0  # seconds
STARVES = 50.0  # seconds that an offline tenant waits at most, while a turn can be shortened for it
IDLE = 1.0  # an offline tenant that did nothing for so long gives up its turn
UNHEARD = 5.0  # seconds in which a tenant begins to leave; one that does not is stopped, or blocked
ASK_AGAIN = 10.0  # seconds after which such a tenant is asked again; twice as long each time it does not hear
ASK_AGAIN_MOST = 300.0
RETRY_MOST = 8.0  # seconds until a tenant that could not leave is asked again, at most: less than others wait for room
FUTILE = 1.0  # seconds for which a verdict on an allocation must hold before it is refused
SLACK = 2 << 30  # bytes, on the card or in the pool, without which one cannot return while another leaves
_MOST_SETS = 2000  # of tenants that are compared when some must leave; beyond, the largest leave
_RANK = {AppClass.ONLINE: 0, AppClass.NORMAL: 1, AppClass.OFFLINE: 2}


class Obstacle(StrEnum):
    """Why one that waits for room does not get it now."""

    TURN = "turn"  # others have their turn
    NOT_PARKABLE = "not-parkable"  # what is on the card may not leave
    POOL = "pool"  # the host's pool has no room
    TOO_LARGE = "too-large"  # it would not fit on an empty card


@dataclass(frozen=True, slots=True)
class Occupant:
    """A tenant of the card, as far as its memory is concerned."""

    tenant: str
    app_class: AppClass
    where: Where
    movable: int  # bytes that can leave, wherever they are
    parked: int = 0  # of these, bytes that are away; less than all of them while it moves, or after a move that failed
    fixed: int = 0  # bytes that stay on the card: contexts, code, what cannot be moved
    park_after: float | None = None  # seconds idle after which it may leave; None: never. Offline work may at any time
    last_active: float = -inf
    since: float = -inf  # when it came to where it is
    wants: int | None = None  # bytes of an allocation that waits for room; 0: it waits to return
    wants_since: float = 0.0
    retry_at: float = -inf  # before then it is not asked to leave again: the last time it could not
    kept: int = 0  # of `movable`, bytes that hold nothing: given back, not moved, once it leaves

    @property
    def rank(self) -> int:
        """0: online."""
        return _RANK[self.app_class]

    @property
    def on_card(self) -> int:
        """Bytes that no other tenant can use now."""
        return self.fixed + self.resident

    @property
    def resident(self) -> int:
        """Bytes on the card that can leave."""
        return max(0, self.movable - self.parked)

    @property
    def frees(self) -> int:
        """Bytes that are free for other tenants once it has left."""
        return self.resident + (self.parked if self.where is Where.RETURNING else 0)

    @property
    def copies(self) -> int:
        """Bytes of the pool that it takes when it leaves."""
        return max(0, self.frees - self.kept)

    @property
    def needs(self) -> int:
        """Bytes of room it waits for."""
        return (self.wants or 0) + self.parked


@dataclass(slots=True)
class Hearing:
    """Whether a tenant follows an order to leave. One that was stopped (Ctrl-Z), frozen or is blocked does not: another
    is chosen instead of it, and it is asked again later, less and less often."""

    since: float | None = None  # when the order was given that it has not begun to follow
    unheard: int = 0  # orders in a row that it did not follow
    ask_at: float = -inf  # not to be asked before

    def note(self, *, pending: bool, works: bool, now: float) -> bool:
        """What is seen of it: an order that it has not begun to follow, and new work of its own. True: withdraw the
        order."""
        if not pending:
            if works:  # it runs: whatever kept it from hearing is over
                self.unheard, self.ask_at = 0, -inf
            self.since = None
            return False
        if self.since is None:  # work does not begin it anew: a tenant can launch work and ignore the order
            self.since = now
        if now - self.since <= UNHEARD:
            return False
        self.ask_at = now + min(ASK_AGAIN * 2**self.unheard, ASK_AGAIN_MOST)
        self.since = None
        self.unheard = min(self.unheard + 1, 16)
        return True


@dataclass(slots=True)
class Errand:
    """An order to move that a tenant has not carried out yet. What its page says on the way is its own claim: it may
    say for ever that it leaves, or leave and stay by turns, and meanwhile others are not asked for room. So a move
    counts only while one was ordered, and only as long as its bytes may take. Then others go first for a while."""

    leave: bool | None = None  # None: there is none
    since: float = 0.0
    overdue: int = 0  # in a row
    ask_at: float = -inf  # not to be asked for anything, nor served, before

    @property
    def is_on(self) -> bool:
        """Whether it may be moving."""
        return self.leave is not None

    def begin(self, leave: bool, now: float) -> None:
        """The tenant is ordered to leave or to return, perhaps not for the first time."""
        if self.leave is not leave:
            self.leave, self.since = leave, now

    def note(self, *, under_way: bool, takes: float, now: float) -> None:
        """What is seen of it: whether anything is under way. `takes`: seconds for a move of its size."""
        if self.leave is None:
            return
        if not under_way:
            self.leave, self.overdue = None, 0
        elif now - self.since > takes:
            self.ask_at = now + min(ASK_AGAIN * 2**self.overdue, ASK_AGAIN_MOST)
            self.leave, self.overdue = None, min(self.overdue + 1, 16)


def pause_after(failures: int, first: float) -> float:
    """Seconds until the next try after so many failures in a row, with `first` after the first of them. Each try stops
    the tenant's calls for seconds."""
    return min(first * (1 << min(failures - 1, 16)), max(first, RETRY_MOST))


@dataclass(frozen=True, slots=True)
class Memory:
    """The card and the pool, in bytes, and what a move costs."""

    card: int
    pool: int
    bandwidth: float = 40e9  # bytes per second

    def seconds(self, leaving: Occupant, coming: Occupant) -> float:
        """What it takes to have the one leave for the other."""
        return (leaving.copies + coming.needs) / self.bandwidth


@dataclass(frozen=True, slots=True)
class Leave:
    """Copy its memory to the pool and release it."""

    tenant: str


@dataclass(frozen=True, slots=True)
class Return:
    """Bring its memory back."""

    tenant: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now; who waits and why; when to ask again if nothing happens."""

    orders: tuple[Leave | Return, ...] = ()
    waiting: Mapping[str, Obstacle] | None = None
    deadline: float = inf


def decide(occupants: Sequence[Occupant], memory: Memory, now: float) -> Decision:
    """Orders for this moment. Equal states give equal orders."""
    orders: list[Leave | Return] = []
    waiting: dict[str, Obstacle] = {}
    deadline = inf
    free = memory.card - sum(occupant.on_card for occupant in occupants)
    free -= sum(occupant.parked for occupant in occupants if occupant.where is Where.RETURNING)
    leave_now = [occupant for occupant in occupants if occupant.where is Where.LEAVING]
    coming = sum(occupant.resident for occupant in leave_now)
    pool = memory.pool - sum(occupant.parked for occupant in occupants)
    pool -= sum(occupant.copies for occupant in leave_now)
    pool += sum(occupant.parked for occupant in occupants if occupant.where is Where.RETURNING)
    if free < 0:  # those that return were promised what comes
        free, coming = 0, max(0, free + coming)
    gone: set[str] = set()
    for asking in _queue(occupants):
        if asking.tenant in gone:
            continue
        if asking.needs > memory.card - sum(occupant.fixed for occupant in occupants):
            waiting[asking.tenant] = Obstacle.TOO_LARGE
            continue
        lacking = asking.needs - free
        if lacking <= 0:
            free -= asking.needs
            orders += _return_of(asking)
            continue
        if lacking <= coming:
            free, coming = 0, coming - lacking
            orders += _return_of(asking)
            continue
        lacking -= coming
        there = [occupant for occupant in occupants if _may_leave(occupant, asking) and occupant.tenant not in gone]
        ready = [occupant for occupant in there if _ready_at(occupant, asking, there, memory) <= now]
        slack = free + pool >= SLACK
        room = pool + (asking.parked if slack else 0)  # it gives back its part of the pool while others leave
        leaving = _fewest(ready, lacking, room)
        free = 0  # the free room is kept for it: no tenant behind it in the queue overtakes it
        coming = 0
        if leaving is None:
            waiting[asking.tenant] = _obstacle(there, ready, lacking)
            times = (_ready_at(occupant, asking, there, memory) for occupant in there)
            deadline = min([deadline, *(time for time in times if time > now)])
            continue
        orders += [Leave(occupant.tenant) for occupant in leaving]
        left = sum(occupant.frees for occupant in leaving)
        gone |= {occupant.tenant for occupant in leaving}
        pool = room - sum(occupant.copies for occupant in leaving)
        if slack:
            orders += _return_of(asking)
        coming = left - lacking  # what is more than enough is for the next
    return Decision(tuple(orders), waiting, deadline)


@dataclass(slots=True)
class Futility:
    """Allocations that wait in vain: nothing that may ever leave would make enough room, or the driver refuses what
    there is room for. Figures change while others allocate, so a verdict counts once it has held for a while; at once
    where no other tenant could leave."""

    since: dict[tuple[str, int], tuple[int, float]] = field(default_factory=dict)  # (tenant, slot): bytes, and when

    def judge(
        self,
        asking: Iterable[tuple[str, int, int]],
        occupants: Sequence[Occupant],
        memory: Memory,
        decision: Decision,
        now: float,
    ) -> set[tuple[str, int, int]]:
        """Which of (tenant, slot, bytes) to refuse."""
        moving = bool(decision.orders) or any(one.where in (Where.LEAVING, Where.RETURNING) for one in occupants)
        first = next((one.tenant for one in _queue(occupants)), None)
        found, since = set(), {}
        for tenant, slot, size in asking:
            others = [one for one in occupants if one.tenant != tenant and _is_parkable(one)]
            if not any(one.movable or one.wants is not None for one in others):
                found.add((tenant, slot, size))
                continue
            if moving or tenant != first:  # what the first takes piece by piece is in no figure yet
                continue
            if tenant in (decision.waiting or {}) and size <= most_room(occupants, memory, tenant):
                continue
            known = self.since.get((tenant, slot))
            began = known[1] if known is not None and known[0] == size else now
            since[tenant, slot] = size, began
            if now - began > FUTILE:
                found.add((tenant, slot, size))
        self.since = since
        return found


def most_room(occupants: Iterable[Occupant], memory: Memory, tenant: str) -> int:
    """Bytes that the tenant could have beside its own, if all others left that may ever leave."""
    stay = (one.fixed if one.tenant != tenant and _is_parkable(one) else one.on_card for one in occupants)
    return memory.card - sum(stay)


def _is_parkable(occupant: Occupant) -> bool:
    return occupant.park_after is not None or occupant.app_class is AppClass.OFFLINE


def _return_of(asking: Occupant) -> list[Leave | Return]:
    return [Return(asking.tenant)] if asking.where is Where.PARKED else []


def _queue(occupants: Iterable[Occupant]) -> list[Occupant]:
    """Those that wait for room, first the one to be served first. One on its way is not asked for anything."""
    asking = [
        occupant
        for occupant in occupants
        if occupant.wants is not None and occupant.where in (Where.RESIDENT, Where.PARKED)
    ]
    return sorted(asking, key=_place)


def _place(occupant: Occupant) -> tuple[int, float, str]:
    """The place in the queue of tenants that wait for room."""
    return occupant.rank, occupant.wants_since, occupant.tenant


def _may_leave(occupant: Occupant, asking: Occupant) -> bool:
    """Whether it may ever leave for this one. Of those that wait for room themselves only those behind it in the queue:
    so two never take each other's, and the first always gets on."""
    if occupant.tenant == asking.tenant or occupant.where is Where.LEAVING or not occupant.resident:
        return False
    if occupant.where is Where.RETURNING and asking.rank >= occupant.rank:
        return False
    if occupant.wants is not None and _place(occupant) < _place(asking):
        return False
    return _is_parkable(occupant)


def _ready_at(occupant: Occupant, asking: Occupant, there: Sequence[Occupant], memory: Memory) -> float:
    """The time from which on it may leave."""
    idle = inf if occupant.park_after is None else occupant.last_active + occupant.park_after
    if occupant.app_class is not AppClass.OFFLINE:
        return max(idle, occupant.retry_at)
    if asking.rank < occupant.rank or occupant.wants is not None:  # the latter cannot go on anyway
        return occupant.retry_at
    cost = memory.seconds(occupant, asking)
    turn = max(SHORTEST_TURN, cost * (1 - MOVING_PART) / MOVING_PART)
    starves = max(occupant.since + SHORTEST_TURN, asking.wants_since + STARVES - cost)
    return max(min(occupant.since + turn, occupant.last_active + IDLE, idle, starves), occupant.retry_at)


def _fewest(there: Sequence[Occupant], lacking: int, pool: int) -> Sequence[Occupant] | None:
    """As few as possible that leave enough and fit into the pool; of those, the least to move, then who was active
    longest ago."""
    there = [occupant for occupant in there if occupant.copies <= pool]
    largest = sorted(there, key=lambda occupant: (-occupant.frees, occupant.last_active, occupant.tenant))
    total, count = 0, 0
    for occupant in largest:
        count += 1
        total += occupant.frees
        if total >= lacking:
            break
    else:
        return None
    best: Sequence[Occupant] = largest[:count]
    for tried, chosen in enumerate(combinations(largest, count)):
        if tried >= _MOST_SETS:
            break
        if sum(occupant.frees for occupant in chosen) >= lacking and _cost(chosen) < _cost(best):
            best = chosen
    return best if sum(occupant.copies for occupant in best) <= pool else None


def _cost(chosen: Sequence[Occupant]) -> tuple[int, int, float]:
    """Offline work before others; then bytes; then who was active lately."""
    ranks = -sum(occupant.rank for occupant in chosen)
    size = sum(occupant.copies for occupant in chosen)
    return ranks, size, max(occupant.last_active for occupant in chosen)


def _obstacle(there: Sequence[Occupant], ready: Sequence[Occupant], lacking: int) -> Obstacle:
    if sum(occupant.frees for occupant in there) < lacking:
        return Obstacle.NOT_PARKABLE
    return Obstacle.TURN if sum(occupant.frees for occupant in ready) < lacking else Obstacle.POOL
