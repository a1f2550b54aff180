"""Whether new work may go to a card: what takes it out, and what brings it back.

This never ends work that runs on a card: tenants keep it and stay accounted. The rules:

 an Xid that is the application's own     nothing; the driver ended that application, the card goes on
 any other Xid                            out at once, for good: the card may answer and compute wrong results
 ... followed by a reset                  back. A reset shows as silence after the Xid (79 is silence), then answers
 the driver says that it is lost          out at once
 it does not answer                       out at the second check in a row: one may fail on a busy machine
 it answers again                         back at the third check in a row, unless an Xid had taken it out

The state is lost when the program restarts.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from msgspec import structs

from aliquot.model.device import Card

PATIENCE = 2  # checks in a row without an answer that take a card out
PROBATION = 3  # checks in a row with an answer that bring it back

# Exactly the Xids that NVIDIA's own device plugin ignores.
OF_THE_APPLICATION = frozenset({13, 31, 43, 45, 68, 109})
FELL_OFF = 79  # from the bus: the driver does not touch the card again before a reset
DOUBLE_BIT_ECC = 48  # the driver may report it as an event of its own

_XIDS = {
    13: "a kernel's fault",
    31: "a kernel's bad address",
    43: "a channel was stopped after its program's fault",
    45: "channels were cleaned up after their program's fault",
    48: "a memory error that could not be corrected",
    61: "its microcontroller failed",
    62: "its microcontroller halted",
    63: "a row of its memory is to be replaced",
    64: "a row of its memory could not be replaced",
    68: "its video processor's fault",
    69: "its graphics engine failed",
    74: "its NVLink failed",
    79: "it fell off the bus",
    92: "many memory errors, corrected",
    94: "a memory error that was contained",
    95: "a memory error that was not contained",
    109: "a context could not be switched in time",
    110: "a security fault",
    119: "its firmware (GSP) does not answer",
    120: "its firmware (GSP) failed",
    121: "its link to the CPU failed",
    140: "memory errors that could not be corrected",
    143: "it could not be initialised",
}


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a card."""

    why: str | None = None  # why it is out; None: it is in
    xid: int | None = None  # the Xid that took it out, the first of several
    misses: int = 0  # checks in a row without an answer
    answers: int = 0  # checks in a row with one
    was_dark: bool = False  # it was unreachable since the Xid: if it comes back, it was reset

    @property
    def is_out(self) -> bool:
        """Whether no new work may go there."""
        return self.why is not None


def describe_xid(xid: int) -> str:
    """The Xid in words."""
    words = _XIDS.get(xid)
    return f"Xid {xid}" if words is None else f"Xid {xid}, {words}"


def describe_out(card: Card, why: str) -> str:
    """That a card is out, in words."""
    return f"card {card.index} ({card.uuid}) is out: {why}"


def hit(health: Health, xid: int, *, ignored: Set[int] = frozenset()) -> Health:
    """The driver reported an Xid. `ignored`: Xids to ignore, in addition to those of applications."""
    if xid in OF_THE_APPLICATION or xid in ignored:
        return health
    # Either this Xid says that the card is unreachable, or a check noticed that before the Xid came.
    is_dark = xid == FELL_OFF or health.misses == PATIENCE
    if health.xid is not None:  # the first Xid is the cause, but a reset before this one does not count
        return replace(health, answers=0, was_dark=is_dark)
    return Health(describe_xid(xid), xid, health.misses, was_dark=is_dark)


def answered(health: Health) -> Health:
    """The card answered a check."""
    answers = min(PROBATION, health.answers + 1)
    if health.is_out and answers == PROBATION and (health.xid is None or health.was_dark):
        return Health(answers=answers)
    return replace(health, misses=0, answers=answers)


def missed(health: Health, why: str, *, lost: bool = False) -> Health:
    """The card did not answer a check. `lost`: the driver says that it is gone, which is not temporary."""
    misses = PATIENCE if lost else min(PATIENCE, health.misses + 1)
    is_dark = misses == PATIENCE
    if health.xid is not None:
        return replace(health, misses=misses, answers=0, was_dark=health.was_dark or is_dark)
    return Health(why if is_dark else health.why, misses=misses)


def inventory(remembered: Sequence[Card], listed: Sequence[Card]) -> tuple[Card, ...]:
    """The cards of this boot: those that the driver lists, and those that it listed before, as unhealthy.

    Remembered cards keep their numbers. The driver renumbers when it loses a card, but grants refer to the old numbers:
    two cards must not have the same.
    """
    now = {card.uuid: card for card in listed}
    merged = {
        card.uuid: structs.replace(now.get(card.uuid, structs.replace(card, healthy=False)), index=card.index)
        for card in remembered
    }
    for card in listed:
        if card.uuid not in merged:
            taken = {known.index for known in merged.values()}
            index = card.index if card.index not in taken else max(taken) + 1
            merged[card.uuid] = structs.replace(card, index=index)
    sized = {card.uuid: card for card in remembered if card.memory_mib}
    return tuple(
        sorted((_with_size(card, sized.get(card.uuid)) for card in merged.values()), key=lambda card: card.index)
    )


def _with_size(card: Card, before: Card | None) -> Card:
    """The size and model from before, for a card that does not answer."""
    if card.memory_mib or before is None:
        return card
    return structs.replace(card, memory_mib=before.memory_mib, model=card.model or before.model)
