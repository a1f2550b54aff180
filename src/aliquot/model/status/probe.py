"""What `aliquot probe` measured on one card."""

from __future__ import annotations

from msgspec import Struct

from aliquot.model.cardstate.control import ControlLevel, ControlReason


class ControlFigures(Struct):
    """What a contest of two programs showed about control of the card."""

    level: ControlLevel
    reason: ControlReason | None
    slices: str  # whether they had an effect
    pause: str
    seconds: float
    first_of_two_has: list[dict[str, float]]  # of each pass, its share by stage


class PreemptionFigures(Struct):
    """Latency of online requests, in microseconds by percentile."""

    alone_us: dict[str, float]
    beside_offline_us: dict[str, float]
    added_p99_us: float
    offline_share: float


class SharesFigures(Struct):
    """Shares of the card in percent."""

    wanted: list[int]
    had: list[float]
    error_points: float


class CapFigures(Struct):
    """The share of a tenant that may not have more, in percent."""

    wanted: int
    had: float
    error_points: float


class SwitchingFigures(Struct):
    """Parts of the card, 0 to 1, that one tenant and two together had."""

    alone: float
    two_together: float
    cost: float


class MemoryFigures(Struct):
    """Whether a program got what it was promised, and no more."""

    within_limit_allowed: bool
    beyond_limit_refused: bool


class ProbeFigures(Struct):
    """All of it."""

    control: ControlFigures
    preemption: PreemptionFigures
    shares: SharesFigures
    cap: CapFigures
    switching: SwitchingFigures
    memory: MemoryFigures
