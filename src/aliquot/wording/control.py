"""Levels of control of a card, in words."""

from __future__ import annotations

from typing import Protocol

from aliquot.model.cardstate.control import ControlLevel, ControlReason

_LEVELS = {
    ControlLevel.PROVEN: "hardware (proven)",
    ControlLevel.UNPROVEN: "hardware (unproven)",
    ControlLevel.GATE: "gate",
}
_REASONS = {
    ControlReason.NOT_TRIED: "not tried yet: the card was not idle",
    ControlReason.INCONCLUSIVE: "a trial ran, and its figures say neither",
    ControlReason.NO_CUDA: "cannot be tried: this program finds no libcuda.so.1",
    ControlReason.NO_MEMORY: "cannot be tried: this container has less than 1000 MiB of memory; raise its limit",
    ControlReason.EXCLUSIVE: (
        "cannot be tried: the card's compute mode lets only one process use it; allow more: nvidia-smi -c DEFAULT"
    ),
    ControlReason.TRUSTED: "not tried, as configured",
    ControlReason.FORCED: "as configured",
    ControlReason.REFUSED: "the driver refuses control",
    ControlReason.SLICES_INERT: "time slices have no effect on this card",
    ControlReason.PAUSE_INERT: "pauses have no effect on this card",
    ControlReason.BOTH_INERT: "neither time slices nor pauses have an effect on this card",
}


class Control(Protocol):
    """A CardControl, or the same in a status."""

    @property
    def level(self) -> ControlLevel: ...
    @property
    def reason(self) -> ControlReason | None: ...


def control_words(control: Control) -> str:
    """The level, and why it is no better."""
    level = _LEVELS.get(control.level, control.level)
    return level if control.reason is None else f"{level}: {_REASONS.get(control.reason, control.reason)}"


def why_gated(control: Control) -> str:
    """For a card, or a tenant on it, that is held at the gate from now on."""
    why = "the card's control is in doubt" if control.reason is None else _REASONS[control.reason]
    return f"{why}: held at the gate from now on"
