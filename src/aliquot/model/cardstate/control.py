"""How far the hardware of a card can be relied on to hold tenants to their shares."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.model.decoding.opencode import OpenCode


class ControlLevel(OpenCode):
    """What holds tenants on a card."""

    PROVEN = "proven"  # time slices and pauses: their effect was seen on this card
    UNPROVEN = "unproven"  # the same, but so far the driver only answers that it obeys
    GATE = "gate"  # the shim: the next kernel launch waits


class ControlReason(OpenCode):
    """Why it is not proven hardware."""

    NOT_TRIED = "not_tried"  # the card was not idle yet, nor did two tenants compete on it
    INCONCLUSIVE = "inconclusive"  # a trial ran, and its figures say neither
    NO_CUDA = "no_cuda"  # our own program finds no libcuda, so it cannot try
    NO_MEMORY = "no_memory"  # our container has too little memory for two programs that use CUDA
    EXCLUSIVE = "exclusive"  # the card's compute mode lets one process use it, and a trial needs two
    TRUSTED = "trusted"  # configured: never try
    FORCED = "forced"  # configured: use the gate
    REFUSED = "refused"  # the driver refuses control
    SLICES_INERT = "slices_inert"  # the driver obeys, and time slices have no effect
    PAUSE_INERT = "pause_inert"
    BOTH_INERT = "both_inert"


INERT = frozenset({ControlReason.SLICES_INERT, ControlReason.PAUSE_INERT, ControlReason.BOTH_INERT})


@dataclass(frozen=True, slots=True)
class CardControl:
    """The level of control of one card; `reason` is None where it is proven."""

    level: ControlLevel = ControlLevel.UNPROVEN
    reason: ControlReason | None = ControlReason.NOT_TRIED


PROVEN = CardControl(ControlLevel.PROVEN, None)
TRUSTED = CardControl(ControlLevel.UNPROVEN, ControlReason.TRUSTED)
FORCED = CardControl(ControlLevel.GATE, ControlReason.FORCED)
