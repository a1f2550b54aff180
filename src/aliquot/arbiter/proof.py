"""Whether slices and pauses have an effect on a card, judged by what one context gets done.

A driver may answer OK to every control and change nothing. So one context, the *sensor*, is watched while the others
are treated differently: all alike, the sensor favoured by slices, the others paused, and the others held at the gate,
which is our own and always works. The gate is the comparison: where the sensor gets more done while the others are at
the gate, it was really short of the card, and slices and pauses must show the same. Where it does not (it is
idle, or runs ahead of the card), nothing is concluded. A sensor whose queue runs dry can still deceive: slices do not
help it and the gate does. That is why trials run only where the owner of the card asks for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from aliquot.model.cardstate.control import PROVEN, CardControl, ControlLevel, ControlReason

# What the sensor gained by slices or by a pause, over what it gained by the gate.
SEEN, NOT_SEEN = 0.5, 0.2
LEAST_GAIN = 1.5  # by the gate: below this nothing is concluded, since the sensor was not short of the card
LEAST_COUNT, ENOUGH = 8, 12  # launches of the sensor in a phase: to conclude anything, and to end it early
STEADY = 1.3  # the two phases in which all are alike may differ by this factor

EVEN_US, LONG_US, SHORT_US = 2_000, 16_000, 1_000  # slices during a trial; two short ones still get on


class Phase(StrEnum):
    """What is done to the others."""

    EVEN = "even"
    FAVOURED = "favoured"
    PAUSED = "paused"
    GATED = "gated"
    EVEN_AGAIN = "even-again"


class Effect(Enum):
    """What a control did."""

    SEEN = "seen"
    NONE = "none"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Sample:
    """What the sensor got done in a phase."""

    launches: int
    seconds: float

    @property
    def rate(self) -> float:
        """Launches per second."""
        return self.launches / self.seconds if self.seconds > 0 else 0.0


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


def judge(samples: Mapping[Phase, Sample]) -> Verdict:
    """One pass of all phases."""
    if any(phase not in samples or samples[phase].launches < LEAST_COUNT for phase in Phase):
        return Verdict()
    first, last = samples[Phase.EVEN].rate, samples[Phase.EVEN_AGAIN].rate
    if max(first, last) > STEADY * min(first, last):  # its work changed: no phase can be compared with another
        return Verdict()
    even = (first + last) / 2
    gain = samples[Phase.GATED].rate / even
    if gain < LEAST_GAIN:
        return Verdict()
    return Verdict(_effect(samples[Phase.FAVOURED].rate / even, gain), _effect(samples[Phase.PAUSED].rate / even, gain))


def _effect(gain: float, by_the_gate: float) -> Effect:
    part = (gain - 1) / (by_the_gate - 1)
    if part >= SEEN:
        return Effect.SEEN
    return Effect.NONE if part <= NOT_SEEN else Effect.UNKNOWN


def both(first: Verdict, second: Verdict) -> Verdict:
    """A control has no effect only if two passes say so; one that saw an effect is enough for the contrary."""
    return Verdict(_agreed(first.slices, second.slices), _agreed(first.pause, second.pause))


def _agreed(first: Effect, second: Effect) -> Effect:
    if Effect.SEEN in (first, second):
        return Effect.SEEN
    return Effect.NONE if first is second is Effect.NONE else Effect.UNKNOWN


@dataclass(slots=True)
class Trial:
    """The phases one after the other, and again where the first pass finds a fault. Time and counts in, verdict out."""

    sensor: str
    others: frozenset[str]
    settle: float = 0.04  # seconds at the start of a phase that do not count: what was queued before still runs
    count: float = 0.11  # seconds that do, or more, up to `longest`, where the sensor has launched little
    longest: float = 0.2
    phase: Phase = Phase.EVEN
    until: float = 0.0  # when to call `step` next
    _counting_since: tuple[float, int] | None = None
    _samples: dict[Phase, Sample] = field(default_factory=dict)
    _first: Verdict | None = None

    def begin(self, now: float) -> None:
        """The first phase begins."""
        self.phase, self.until, self._counting_since = Phase.EVEN, now + self.settle, None

    def step(self, launches: int, now: float) -> Verdict | None:
        """What the sensor has launched so far; the verdict, once there is one. `phase` may be another afterwards."""
        if now < self.until:
            return None
        if self._counting_since is None:
            self._counting_since, self.until = (now, launches), now + self.count
            return None
        since, before = self._counting_since
        if launches - before < ENOUGH and now < since + self.longest:
            self.until = now + self.settle / 4
            return None
        self._samples[self.phase] = Sample(launches - before, now - since)
        self._counting_since, self.until = None, now + self.settle
        phases = list(Phase)
        if self.phase is not phases[-1]:
            self.phase = phases[phases.index(self.phase) + 1]
            return None
        found = judge(self._samples)
        if self._first is not None:
            return both(self._first, found)
        if not found.finds_fault:
            return found
        self._first, self._samples, self.phase = found, {}, Phase.EVEN
        return None

    def slice_of(self, context: str) -> int:
        """Microseconds, in this phase."""
        if self.phase is not Phase.FAVOURED:
            return EVEN_US
        return LONG_US if context == self.sensor else SHORT_US
