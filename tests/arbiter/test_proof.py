"""Verdicts about slices and pauses: from figures, and from trials of tenants that behave in all sorts of ways."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.arbiter.proof import LEAST_COUNT, Effect, Phase, Sample, Trial, Verdict, both, judge
from aliquot.model.cardstate.control import PROVEN, ControlLevel, ControlReason

RATES = st.floats(50, 20_000)
TENANTS = st.integers(2, 8)
NOISE = st.floats(-0.07, 0.07)


def figures(rate: float, *gains: float) -> dict[Phase, Sample]:
    """`gains` over the even rate: favoured, paused, gated."""
    favoured, paused, gated = gains
    rates = {Phase.EVEN: 1.0, Phase.FAVOURED: favoured, Phase.PAUSED: paused, Phase.GATED: gated, Phase.EVEN_AGAIN: 1.0}
    return {phase: Sample(round(rate * gain), 1.0) for phase, gain in rates.items()}


@given(RATES, TENANTS, NOISE, NOISE)
def test_a_card_that_obeys_is_proven(rate: float, tenants: int, one: float, other: float) -> None:
    favoured = 16 / (16 + tenants - 1) * tenants
    found = judge(figures(rate, favoured * (1 + one), tenants * (1 + other), tenants))
    assert found == Verdict(Effect.SEEN, Effect.SEEN)
    assert found.control() == PROVEN


@given(RATES, TENANTS, NOISE, NOISE)
def test_controls_without_effect_are_found(rate: float, tenants: int, one: float, other: float) -> None:
    found = judge(figures(rate, 1 + one, 1 + other, tenants))
    assert found == Verdict(Effect.NONE, Effect.NONE)
    assert found.control().reason is ControlReason.BOTH_INERT


@pytest.mark.parametrize(
    ("gains", "reason"),
    [((1.0, 2.0, 2.0), ControlReason.SLICES_INERT), ((1.9, 1.0, 2.0), ControlReason.PAUSE_INERT)],
)
def test_each_control_is_judged_by_itself(gains: tuple[float, float, float], reason: ControlReason) -> None:
    control = judge(figures(1000, *gains)).control()
    assert (control.level, control.reason) == (ControlLevel.GATE, reason)


@given(RATES, st.floats(0, 1.4), st.floats(0, 3), st.floats(0, 3))  # launches are whole numbers
def test_nothing_is_concluded_of_a_sensor_that_the_gate_does_not_help(
    rate: float, gated: float, favoured: float, paused: float
) -> None:
    """It is idle, launch-bound, or runs ahead of the card."""
    assert judge(figures(rate, favoured, paused, gated)) == Verdict()


@given(st.integers(0, LEAST_COUNT - 1), st.sampled_from(Phase))
def test_nothing_is_concluded_of_few_launches(few: int, phase: Phase) -> None:
    assert judge({**figures(100, 1, 1, 2), phase: Sample(few, 1.0)}) == Verdict()


@given(st.floats(1.4, 10))
def test_nothing_is_concluded_where_the_work_changed(factor: float) -> None:
    samples = figures(1000, 1, 1, 2)
    for phase in (Phase.EVEN, Phase.EVEN_AGAIN):
        assert judge({**samples, phase: Sample(round(1000 * factor), 1.0)}) == Verdict()


@given(st.sampled_from(Effect), st.sampled_from(Effect))
def test_a_fault_needs_two_passes(first: Effect, second: Effect) -> None:
    found = both(Verdict(first, first), Verdict(second, second))
    assert (found.slices is Effect.NONE) is (first is second is Effect.NONE)
    assert (found.slices is Effect.SEEN) is (Effect.SEEN in (first, second))


# --- trials --------------------------------------------------------------------------------------------------------


def tried(share: Callable[[Phase, float], float], kernel: float, every: float = 0.01) -> tuple[Verdict, float]:
    """A trial of a sensor with kernels of that length; `share` is what it gets of the card."""
    trial, now, work = Trial("a", frozenset({"b"})), 0.0, 0.0
    trial.begin(now)
    while True:
        now += every
        work += share(trial.phase, now) * every
        verdict = trial.step(math.floor(work / kernel), now)
        if verdict is not None:
            return verdict, now


def inert(phase: Phase, _now: float) -> float:
    return 1.0 if phase is Phase.GATED else 0.5


def obedient(phase: Phase, _now: float) -> float:
    return {Phase.FAVOURED: 0.94, Phase.PAUSED: 1.0, Phase.GATED: 1.0}.get(phase, 0.5)


@given(st.floats(0.00005, 0.005), st.floats(0.002, 0.02))
def test_a_trial_finds_inert_controls_within_two_seconds(kernel: float, every: float) -> None:
    verdict, took = tried(inert, kernel, every)
    assert verdict in (Verdict(Effect.NONE, Effect.NONE), Verdict())
    if kernel <= 0.003:
        assert verdict.control().reason is ControlReason.BOTH_INERT
    assert took < 1.95


@given(st.floats(0.00005, 0.003), st.floats(0.002, 0.02))
def test_a_trial_proves_controls_in_one_pass(kernel: float, every: float) -> None:
    verdict, took = tried(obedient, kernel, every)
    assert verdict == Verdict(Effect.SEEN, Effect.SEEN)
    assert took < 1.0


@given(st.floats(0.00005, 0.1), st.lists(st.floats(0, 1), min_size=5, max_size=400))
def test_tenants_that_come_and_go_are_never_a_fault(kernel: float, shares: list[float]) -> None:
    """On a card that obeys, whatever part of it the sensor can use at each moment."""

    def fitful(phase: Phase, now: float) -> float:
        return min(obedient(phase, now), shares[int(now / 0.01) % len(shares)])

    verdict, _ = tried(fitful, kernel)
    assert verdict.control().level is not ControlLevel.GATE


def test_trial_counts_from_when_a_phase_has_settled_until_there_is_enough() -> None:
    trial = Trial("a", frozenset({"b"}), settle=1.0, count=4.0, longest=8.0)
    trial.begin(10.0)
    trial.step(99, 10.5)
    assert (trial.until, trial._counting_since) == (11.0, None)
    trial.step(5, 11.0)
    assert (trial.until, trial._counting_since) == (15.0, (11.0, 5))
    trial.step(16, 15.0)  # one too few: a little later
    assert (trial.until, trial.phase) == (15.25, Phase.EVEN)
    assert [trial.slice_of(name) for name in "ab"] == [2_000, 2_000]
    trial.step(17, 15.25)
    assert (trial.until, trial.phase, trial._samples) == (16.25, Phase.FAVOURED, {Phase.EVEN: Sample(12, 4.25)})
    assert [trial.slice_of(name) for name in "ab"] == [16_000, 1_000]
    trial.step(17, 16.25)
    trial.step(18, 24.0)
    assert Phase.FAVOURED not in trial._samples
    trial.step(18, 24.25)  # the longest
    assert trial._samples[Phase.FAVOURED] == Sample(1, 8.0)
    assert trial.slice_of("a") == 2_000  # it is over


@pytest.mark.parametrize(("sample", "rate"), [(Sample(6, 2.0), 3.0), (Sample(6, 0.0), 0.0), (Sample(6, -1.0), 0.0)])
def test_rate_of_a_sample(sample: Sample, rate: float) -> None:
    assert sample.rate == rate


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ((10, 15, 15, 20, 10), Verdict(Effect.SEEN, Effect.SEEN)),  # half of what the gate gains
        ((10, 14, 12, 20, 10), Verdict(Effect.UNKNOWN, Effect.NONE)),
        ((10, 10, 20, 20, 13), Verdict(Effect.NONE, Effect.SEEN)),  # just steady
        ((10, 15, 15, 20, 14), Verdict()),
        ((10, 15, 15, 15, 10), Verdict(Effect.SEEN, Effect.SEEN)),  # just short of the card
        ((10, 15, 15, 14, 10), Verdict()),
        ((8, 12, 12, 16, 8), Verdict(Effect.SEEN, Effect.SEEN)),
        ((7, 12, 12, 16, 8), Verdict()),
    ],
)
def test_verdict_at_its_limits(counts: tuple[int, ...], found: Verdict) -> None:
    assert judge({phase: Sample(count, 1.0) for phase, count in zip(Phase, counts, strict=True)}) == found
