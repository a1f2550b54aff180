"""What can be ordered of a context. Few: each costs a third of a millisecond under a lock of the whole card."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SetSlice:
    """How long it may run while others have work, in microseconds."""

    context: str
    microseconds: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop in mid-kernel and stay stopped."""

    context: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Launch nothing more; nothing on the card is stopped. For a context that is being made, which a pause could break;
    and for one whose turn is over and whose work is short: it takes no call of the driver."""

    context: str


@dataclass(frozen=True, slots=True)
class Open:
    """Launch again after a hold."""

    context: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on where it stopped."""

    context: str


@dataclass(frozen=True, slots=True)
class Arm:
    """Have it report its next launch: it is idle now, and its wake will matter."""

    context: str


Order = SetSlice | Pause | Hold | Open | Resume | Arm
