"""Why memory is parked, or cannot be, in words."""

from __future__ import annotations

from collections.abc import Sequence

from aliquot.model.residency import Arrival, ParkReason, Way, Where
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


def cannot_words(why: ParkReason, detail: str | None) -> str:
    """Why it cannot leave, and why the driver's checkpoint cannot take it either, where that is known."""
    return reason_words(why) if detail is None else f"{reason_words(why)}, and {detail}"


def checkpoint_unasked_words() -> str:
    """Why the driver's checkpoint is not used: only the class allows parking, the tenant did not ask for it."""
    return "only `--park` or the annotation aliquot.dev/park allows the driver's checkpoint"


def checkpoint_unstopped_words() -> str:
    """A process did not do its part."""
    return "not all of its processes stopped for the driver's checkpoint"


def checkpoint_refusal_words(refusal: str) -> str:
    """The driver did not take it."""
    return f"the driver's checkpoint refuses it: {refusal}"


def checkpoint_room_words(size: int, room: int | None, *, in_cgroup: bool = True) -> str:
    """The host's memory has no room for so many bytes; None: how much it has is not known."""
    need = f"the driver's checkpoint needs {memory(max(1, size >> 20))} of host memory"
    if room is None:
        return f"{need}, and how much it may take cannot be seen here"
    return f"{need}: {'its memory cgroup has' if in_cgroup else 'the machine has'} {memory(room >> 20)} left"


def residency_words(where: Where, why: ParkReason | None, way: Way | None = None, detail: str | None = None) -> str:
    """As in "parked: others have their turn on the card"; empty where the memory is on the card and may leave it."""
    if where is Where.RESIDENT:
        return "" if why is None else f"cannot be parked: {cannot_words(why, detail)}"
    how = f"{where.value} by the driver's checkpoint" if way is Way.CHECKPOINT else where.value
    if where is Where.RETURNING and why in _LEFT_FOR:  # why it left is over
        return how
    return how if why is None else f"{how}: {reason_words(why)}"


def arrival_words(arrival: Arrival, card: str, left_out: int) -> str:
    """What happened to a Pod's memory; `left_out` earlier moves were not reported."""
    size, took = memory(max(1, arrival.size >> 20)), duration(round(arrival.took, 3))
    place = "its own host memory" if arrival.way is Way.CHECKPOINT else "the host pool"
    if arrival.where is Where.PARKED:
        why = "" if arrival.why is None else f": {_WORDS[arrival.why]}"
        text = f"{size} of its memory left {card} for {place} in {took}{why}"
    else:
        away = "" if arrival.away is None else f" after {duration(round(arrival.away, 1))} in {place}"
        text = f"{size} of its memory came back to {card} in {took}{away}"
    return f"{text}; {count(left_out, 'earlier move')} not reported" if left_out else text
