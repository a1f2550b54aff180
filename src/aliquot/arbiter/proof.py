"""Whether slices and pauses have an effect on an idle card, judged by two contexts of our own that compete for it.

Both always have work in the queue, and every kernel is the same amount of work. So what each of them gets done is its
share of the card, and nothing has to be compared with another moment: clocks that rise meanwhile change nothing. A
stage in which a queue ran dry says nothing, because a context without work gives its slice away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum

from aliquot.model.cardstate.control import PROVEN, CardControl, ControlLevel, ControlReason

EVEN_US, LONG_US, SHORT_US = 2_000, 8_000, 500  # time slices
_LEAST = 12  # kernels of both in a stage, to conclude anything
_EVEN = 0.3  # either has at least this share while both are treated alike: else something else is on the card
# The part of the expected effect that was there.
_SEEN, _NOT_SEEN = 0.5, 0.25


class Effect(Enum):
    """What a control did."""

    SEEN = "seen"
    NONE = "none"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The effect of each control."""

    slices: Effect = Effect.UNKNOWN
    pause: Effect = Effect.UNKNOWN

    @property
    def finds_fault(self) -> bool:
        """Whether a control seems to have no effect."""
        return Effect.NONE in (self.slices, self.pause)

    def control(self) -> CardControl:
        """What that means for the card."""
        match (self.slices is Effect.NONE, self.pause is Effect.NONE):
            case (True, True):
                return CardControl(ControlLevel.GATE, ControlReason.BOTH_INERT)
            case (True, False):
                return CardControl(ControlLevel.GATE, ControlReason.SLICES_INERT)
            case (False, True):
                return CardControl(ControlLevel.GATE, ControlReason.PAUSE_INERT)
        if (self.slices, self.pause) == (Effect.SEEN, Effect.SEEN):
            return PROVEN
        return CardControl(ControlLevel.UNPROVEN, ControlReason.INCONCLUSIVE)


def both(first: Verdict, second: Verdict) -> Verdict:
    """A control has no effect only if two passes say so; one that saw an effect is enough for the contrary."""
    return Verdict(_agreed(first.slices, second.slices), _agreed(first.pause, second.pause))


def _agreed(first: Effect, second: Effect) -> Effect:
    if Effect.SEEN in (first, second):
        return Effect.SEEN
    return Effect.NONE if first is second is Effect.NONE else Effect.UNKNOWN


class Stage(StrEnum):
    """How the two are treated."""

    EVEN = "even"
    FAVOURED = "favoured"  # the first has a long slice, the second a short one
    PAUSED = "paused"  # the second
    EVEN_AGAIN = "even-again"


# A second pass, where the first finds a fault, begins with the last stage of the first.
PASS = (Stage.FAVOURED, Stage.PAUSED, Stage.EVEN_AGAIN)


@dataclass(frozen=True, slots=True)
class Measured:
    """What the two got done in a stage: kernels, and the seconds that they were counted over."""

    first: int
    second: int
    seconds: float
    dry: bool = False  # a queue was empty for a moment

    @property
    def share(self) -> float:
        """The first's part of what both got done."""
        return self.first / max(1, self.first + self.second)

    @property
    def counts(self) -> bool:
        """Whether something can be concluded."""
        return not self.dry and self.first + self.second >= _LEAST


def slices_in(stage: Stage) -> tuple[int, int]:
    """Microseconds of the first and of the second."""
    return (LONG_US, SHORT_US) if stage is Stage.FAVOURED else (EVEN_US, EVEN_US)


def judge_pass(stages: Mapping[Stage, Measured]) -> Verdict:
    """What one pass shows."""
    if any(stage not in stages for stage in Stage):
        return Verdict()
    even, again = stages[Stage.EVEN], stages[Stage.EVEN_AGAIN]
    if not all(one.counts and _EVEN <= one.share <= 1 - _EVEN for one in (even, again)):
        return Verdict()
    usual = (even.share + again.share) / 2
    return Verdict(_slices(stages[Stage.FAVOURED], usual), _pause(stages[Stage.PAUSED], usual))


def _slices(found: Measured, usual: float) -> Effect:
    expected = LONG_US / (LONG_US + SHORT_US) - usual
    return _effect((found.share - usual) / expected) if found.counts else Effect.UNKNOWN


def _pause(found: Measured, usual: float) -> Effect:
    """A pause that stops both would leave nothing to count."""
    return _effect(1 - (1 - found.share) / (1 - usual)) if found.counts else Effect.UNKNOWN


def _effect(part: float) -> Effect:
    if part >= _SEEN:
        return Effect.SEEN
    return Effect.NONE if part <= _NOT_SEEN else Effect.UNKNOWN


def judge(passes: Sequence[Mapping[Stage, Measured]]) -> Verdict:
    """Of one pass, or of two: that a control has no effect needs both."""
    verdicts = [judge_pass(stages) for stages in passes]
    if not verdicts or (len(verdicts) == 1 and verdicts[0].finds_fault):
        return Verdict()
    return verdicts[0] if len(verdicts) == 1 else both(verdicts[0], verdicts[1])


def needs_second_pass(stages: Mapping[Stage, Measured]) -> bool:
    """Whether the first pass found a fault."""
    return judge_pass(stages).finds_fault
