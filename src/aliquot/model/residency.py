"""Where the memory of a tenant is that may leave the card. The runtime fills it in; all that people see shows it."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.model.decoding.opencode import OpenCode


class Where(OpenCode):
    """Where a tenant's movable memory is."""

    RESIDENT = "resident"  # on the card
    LEAVING = "leaving"
    PARKED = "parked"  # in the host's pool
    RETURNING = "returning"


class ParkReason(OpenCode):
    """Why a tenant's memory is parked or on its way, or why it cannot be parked."""

    # parked or moving
    IDLE = "idle"  # it did nothing for a while, and others needed the room
    ROOM = "room"  # work that goes before it needed the room
    TURN = "turn"  # others have their turn on the card
    ASKED = "asked"  # `aliquot park`
    # cannot leave
    SHARED_MEMORY = "shared-memory"  # memory that it shares with other processes (IPC)
    STREAM_ORDERED = "stream-ordered"  # memory of CUDA's own pools (cudaMallocAsync)
    UNMOVABLE = "unmovable"  # memory of another kind that cannot be moved: arrays, managed memory, memory of graphs
    POOL_FULL = "pool-full"  # the host's pool has no room for it
    NO_POOL = "no-pool"  # the host has no pool
    FAILED = "failed"  # the last try failed; it is tried again later
    # cannot return
    NO_ROOM = "no-room"  # what is on the card may not leave
    LOST = "lost"  # its memory in the pool is lost: its next call gets an error


@dataclass(frozen=True, slots=True)
class Residency:
    """The memory of one tenant on one card, in bytes, and its moves since it came."""

    where: Where
    resident: int  # on the card
    parked: int  # in the host's memory
    moves: int = 0  # out and in
    moved: int = 0  # in all of them
    last_out: float | None = None  # seconds that its last way out took; None: it has not left yet
    last_in: float | None = None
    why: ParkReason | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """A move of a tenant's memory that has ended, off the card (PARKED) or back (RESIDENT)."""

    tenant: str
    uuid: str  # of the card
    where: Where
    size: int  # bytes
    took: float  # seconds
    why: ParkReason | None = None  # it left
    away: float | None = None  # seconds that it was parked; None: it leaves, or that is not known
