"""What the pages say of memory that moves, in the words of the model."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from aliquot.adapters.gpu.page import Move, Order, State, Stays, Why
from aliquot.arbiter.residency import Obstacle
from aliquot.model.residency import Arrival, ParkReason, Where

log = logging.getLogger(__name__)

_MOST_ARRIVALS = 1000
_PAIR_EVERY = 60.0  # seconds between two ways out of a Pod's memory that are reported

FAILURES = {
    Why.BUSY: ParkReason.FAILED,
    Why.CAPTURE: ParkReason.FAILED,
    Why.POOL: ParkReason.POOL_FULL,
    Why.ROOM: ParkReason.NO_ROOM,
    Why.ERROR: ParkReason.FAILED,
    Why.MOVER: ParkReason.NO_POOL,
}
OBSTACLES = {
    Obstacle.TURN: ParkReason.TURN,
    Obstacle.NOT_PARKABLE: ParkReason.NO_ROOM,
    Obstacle.POOL: ParkReason.POOL_FULL,
    Obstacle.TOO_LARGE: ParkReason.NO_ROOM,
}
# The first that a tenant has is named.
STAYS = {
    Stays.SHARED: ParkReason.SHARED_MEMORY,
    Stays.POOLED: ParkReason.STREAM_ORDERED,
    Stays.OTHER: ParkReason.UNMOVABLE,
}


MOVING = frozenset({Where.LEAVING, Where.RETURNING})
_BURST = 8.0  # lines of one tenant at once, and then one each second


@dataclass(slots=True)
class Lines:
    """Which moves of a tenant are logged: its page can claim a hundred of them a second."""

    left: float = _BURST
    at: float = 0.0

    def take(self, now: float) -> bool:
        """Whether one more line is due."""
        self.left, self.at = min(_BURST, self.left + max(0.0, now - self.at)), now
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True


def stays_of(moves: list[Move]) -> ParkReason | None:
    """Why a part of a tenant's memory cannot leave; None: all of it can."""
    return next((reason for kind, reason in STAYS.items() if any(move.stays & kind for move in moves)), None)


def where_of(moves: list[Move]) -> Where:
    """Where the memory of all processes of a tenant is."""
    states = {move.state for move in moves}
    if State.LEAVING in states:
        return Where.LEAVING
    if State.RETURNING in states:
        return Where.RETURNING
    return Where.PARKED if State.PARKED in states else Where.RESIDENT


def is_unheard(move: Move) -> bool:
    """Whether a process was ordered to leave and has not begun to."""
    if move.why:
        return False
    return move.order == Order.LEAVE and move.state == State.RESIDENT and move.movable > move.parked


def is_under_way(move: Move) -> bool:
    """Whether a process moves its memory, or was ordered to and has neither begun nor failed."""
    if move.state in (State.LEAVING, State.RETURNING):
        return True
    return is_unheard(move) or (move.order == Order.RETURN and move.state == State.PARKED and not move.why)


def wants_of(moves: list[Move], most: int) -> int | None:
    """Bytes of allocations that wait; 0: a call waits for its memory; None: neither."""
    room = sum(move.room for move in moves)
    if room:
        return min(most, room)
    return 0 if any(move.wanted and move.state == State.PARKED for move in moves) else None


def log_move(tenant: str, card: str, where: Where, moves: list[Move], why: ParkReason | None) -> None:
    """One line when its memory begins to move, and one when it has arrived."""
    took = {Where.PARKED: max(move.out_ns for move in moves), Where.RESIDENT: max(move.in_ns for move in moves)}
    data = {
        "tenant": tenant,
        "card": card,
        "parked_bytes": sum(move.parked for move in moves),
        "seconds": round(took[where] / 1e9, 3) if where in took else None,
        "why": None if why is None else why.value,
    }
    log.info(f"memory_{where.value}", extra={"data": data})


class Arrivals:
    """Moves that have ended, until they are taken: the agent makes events of them. Where nothing takes them, as on one
    machine, the oldest are dropped. `note` and `forget` are for one thread, `take` for another; neither waits."""

    def __init__(self) -> None:
        self._ended: deque[Arrival] = deque(maxlen=_MOST_ARRIVALS)
        self._away: dict[tuple[str, str], tuple[int, float | None]] = {}  # bytes that are parked, and since when

    def note(
        self,
        key: tuple[str, str],
        where: Where,
        moves: list[Move],
        parked: int,
        why: ParkReason | None,
        now: float,
        *,
        is_new: bool,
    ) -> None:
        """The memory of that tenant on that card is elsewhere now; `is_new`: it was not so before we came. What gave up
        on its way has not arrived, and what is lost is not back."""
        known = self._away.get(key)
        if where is Where.PARKED and parked:
            self._away[key] = parked, known[1] if known is not None else now if is_new else None
            if known is None and is_new:
                took = max(move.out_ns for move in moves) / 1e9
                self._ended.append(Arrival(*key, where, parked, took, why))
        elif where is Where.RESIDENT and known is not None:
            del self._away[key]
            size, since = known
            if all(move.state != State.LOST for move in moves):
                away = None if since is None else now - since
                took = max(move.in_ns for move in moves) / 1e9
                self._ended.append(Arrival(*key, where, size, took, away=away))

    def forget(self, key: tuple[str, str]) -> None:
        """The tenant has no process on that card any more."""
        self._away.pop(key, None)

    def take(self) -> list[Arrival]:
        """The arrivals since the last call, the oldest first."""
        return [self._ended.popleft() for _ in range(len(self._ended))]


@dataclass(slots=True)
class MovePace:
    """Which moves of one tenant are reported: the way out and the way back, at most one such pair a minute. A way out
    that comes sooner is held back until the minute is over, and left out if the memory is back by then: the last
    report is always true."""

    began: float = float("-inf")
    returns: bool = False  # the way out was reported, so the way back will be
    held: Arrival | None = None
    left_out: int = 0

    def choose(self, arrivals: Iterable[Arrival], now: float) -> list[tuple[Arrival, int]]:
        """What is reported now, each with how many moves were left out before it. Call it also without arrivals."""
        chosen = []
        for arrival in arrivals:
            if arrival.where is Where.PARKED:
                if self.returns or self.held is not None:  # its process ended while it was parked
                    self.left_out += 1
                self.held = None if self.returns else arrival
                chosen += self._release(now)
            elif self.held is not None:
                self.held = None
                self.left_out += 2
            elif self.returns:
                self.returns = False
                chosen.append((arrival, self._take_left_out()))
            else:  # it was parked before we came
                self.held = arrival
                chosen += self._release(now)
        return chosen + self._release(now)

    def _release(self, now: float) -> list[tuple[Arrival, int]]:
        if self.held is None or now - self.began < _PAIR_EVERY:
            return []
        arrival, self.held, self.began = self.held, None, now
        self.returns = arrival.where is Where.PARKED
        return [(arrival, self._take_left_out())]

    def _take_left_out(self) -> int:
        left_out, self.left_out = self.left_out, 0
        return left_out
