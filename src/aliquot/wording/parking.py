"""Why memory is parked, or cannot be, in words."""

from __future__ import annotations

from collections.abc import Sequence

from aliquot.model.residency import Arrival, ParkReason, Where
from aliquot.wording.amounts import count, duration, memory

_WORDS = {
    ParkReason.IDLE: "it was idle, and others needed the room",
    ParkReason.ROOM: "work that goes first needed the room",
    ParkReason.TURN: "others have their turn on the card",
    ParkReason.ASKED: "by `aliquot park`",
    ParkReason.SHARED_MEMORY: "it shares memory with other processes (IPC)",
    ParkReason.STREAM_ORDERED: "its memory is stream-ordered (cudaMallocAsync)",
    ParkReason.UNMOVABLE: "it has memory of a kind that cannot be moved",
    ParkReason.POOL_FULL: "the host pool is full",
    ParkReason.NO_POOL: "there is no host pool",
    ParkReason.FAILED: "the last move failed",
    ParkReason.NO_ROOM: "what is on the card may not leave it",
    ParkReason.LOST: "its parked memory is lost",
}
_LEFT_FOR = {ParkReason.IDLE, ParkReason.ROOM, ParkReason.TURN, ParkReason.ASKED}


def reason_words(reason: ParkReason) -> str:
    """Part of a sentence."""
    return _WORDS.get(reason, reason.value)


def left_parked_words(names: Sequence[str]) -> str:
    """What `aliquot down` says of tenants whose memory is parked."""
    return (
        f"{', '.join(names)}: parked, and kept in the host pool until the next daemon brings it back. An earlier "
        "release cannot: before you go back to one, start this one again and stop what may be parked"
    )


def residency_words(where: Where, why: ParkReason | None) -> str:
    """As in "parked: others have their turn on the card"; empty where the memory is on the card and may leave it."""
    if where is Where.RESIDENT:
        return "" if why is None else f"cannot be parked: {reason_words(why)}"
    how = where.value
    if where is Where.RETURNING and why in _LEFT_FOR:  # why it left is over
        return how
    return how if why is None else f"{how}: {reason_words(why)}"


def arrival_words(arrival: Arrival, card: str, left_out: int) -> str:
    """What happened to a Pod's memory; `left_out` earlier moves were not reported."""
    size, took = memory(max(1, arrival.size >> 20)), duration(round(arrival.took, 3))
    if arrival.where is Where.PARKED:
        why = "" if arrival.why is None else f": {_WORDS[arrival.why]}"
        text = f"{size} of its memory left {card} for the host pool in {took}{why}"
    else:
        away = "" if arrival.away is None else f" after {duration(round(arrival.away, 1))} in the host pool"
        text = f"{size} of its memory came back to {card} in {took}{away}"
    return f"{text}; {count(left_out, 'earlier move')} not reported" if left_out else text
