"""What the pages say of memory that moves, in the words of the model."""

from __future__ import annotations

import logging

from aliquot.adapters.gpu.page import Move, Order, State, Stays, Why
from aliquot.arbiter.residency import Obstacle
from aliquot.model.residency import ParkReason, Where

log = logging.getLogger(__name__)

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
    return move.order == Order.LEAVE and move.state == State.RESIDENT and not move.why and move.movable > move.parked


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
