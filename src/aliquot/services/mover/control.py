"""Messages between the daemon and the mover: one JSON object per packet. Each is answered by a `PoolState`."""

from __future__ import annotations

import msgspec

LONGEST = 1 << 20


class Serve(msgspec.Struct, frozen=True, tag="serve"):
    """A connection of a shim, whose file comes with the packet."""

    tenant: str
    slot: int
    serial: int
    card: str
    limit: int | None  # bytes that the tenant may have on that card


class Living(msgspec.Struct, frozen=True, tag="living"):
    """The processes that there are: tenant, slot, serial. What was kept for others is forgotten: for others of these
    tenants, or, if the list of tenants is `complete`, for all others."""

    processes: list[tuple[str, int, int]]
    tenants: list[str]
    complete: bool
    cards: list[str]  # with memory that may leave: the mover makes itself ready for them


class Look(msgspec.Struct, frozen=True, tag="look"):
    """Nothing but the answer."""


class Quit(msgspec.Struct, frozen=True, tag="quit"):
    """End. What is kept stays, for the next mover."""


class PoolState(msgspec.Struct, frozen=True):
    """The pool, in bytes."""

    version: str
    pid: int
    size: int
    warm: int  # has been given memory
    free: int  # can be taken, now or once it has been given memory
    parked: int
    trouble: str | None = None  # why it did not get all of its memory


Request = Serve | Living | Look | Quit
encode = msgspec.json.encode
decode_request = msgspec.json.Decoder(Request).decode
decode_state = msgspec.json.Decoder(PoolState).decode
