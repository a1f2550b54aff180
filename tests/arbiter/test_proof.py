"""Verdicts about slices and pauses, from what two contexts of our own got done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.arbiter.proof import (
    LONG_US,
    SHORT_US,
    Effect,
    Measured,
    Stage,
    Verdict,
    judge,
    judge_pass,
    needs_second_pass,
    slices_in,
)
from aliquot.model.cardstate.control import PROVEN, ControlLevel, ControlReason

KERNELS = st.integers(100, 2_000)
NOISE = st.floats(-0.06, 0.06)
OBEYED = LONG_US / (LONG_US + SHORT_US)
INERT = 0.5


def stages(
    kernels: int = 200, *, favoured: float = OBEYED, paused: float = 1.0, even: float = INERT, again: float = INERT
) -> dict[Stage, Measured]:
    """The first's share in each stage."""
    shares = {Stage.EVEN: even, Stage.FAVOURED: favoured, Stage.PAUSED: paused, Stage.EVEN_AGAIN: again}
    return {
        stage: Measured(round(kernels * share), kernels - round(kernels * share), 0.05)
        for stage, share in shares.items()
    }


@given(KERNELS, NOISE, NOISE, st.floats(-0.05, 0))
def test_a_card_that_obeys_is_proven(kernels: int, even: float, again: float, favoured: float) -> None:
    found = stages(kernels, favoured=OBEYED + favoured, even=INERT + even, again=INERT + again)
    assert judge([found]).control() == PROVEN


@given(KERNELS, NOISE, NOISE, st.booleans(), st.booleans())
def test_controls_without_effect_are_found(kernels: int, one: float, other: float, slices: bool, pause: bool) -> None:
    found = stages(kernels, favoured=INERT + one if slices else OBEYED, paused=INERT + other if pause else 1.0)
    control = judge([found, found]).control()
    reasons = {
        (True, True): ControlReason.BOTH_INERT,
        (True, False): ControlReason.SLICES_INERT,
        (False, True): ControlReason.PAUSE_INERT,
        (False, False): None,
    }
    assert control.reason is reasons[slices, pause]
    assert needs_second_pass(found) is (slices or pause)


def test_one_pass_is_not_enough_to_find_a_fault() -> None:
    inert = stages(favoured=INERT, paused=INERT)
    assert judge([inert]).control().level is ControlLevel.UNPROVEN
    assert judge([inert, stages()]).control() == PROVEN


@given(st.sampled_from(Stage), st.floats(0, 1), st.floats(0, 1))
def test_nothing_is_concluded_of_a_stage_with_an_empty_queue(stage: Stage, favoured: float, paused: float) -> None:
    found = stages(favoured=favoured, paused=paused)
    found[stage] = Measured(found[stage].first, found[stage].second, 0.05, dry=True)
    verdict = judge_pass(found)
    if stage in (Stage.EVEN, Stage.EVEN_AGAIN):
        assert verdict == Verdict()
    assert (verdict.slices if stage is Stage.FAVOURED else verdict.pause) is Effect.UNKNOWN or stage in (
        Stage.EVEN, Stage.EVEN_AGAIN
    )  # fmt: skip


@given(st.floats(0, 0.29), st.booleans())
def test_nothing_is_concluded_where_equals_do_not_share_evenly(share: float, last: bool) -> None:
    uneven = stages(again=share) if last else stages(even=share)
    assert judge([uneven, uneven]) == Verdict()


@given(st.integers(0, 11))
def test_nothing_is_concluded_of_few_kernels(kernels: int) -> None:
    assert judge_pass(stages(kernels, favoured=INERT, paused=INERT)) == Verdict()


@pytest.mark.parametrize("missing", Stage)
def test_a_pass_without_all_stages_says_nothing(missing: Stage) -> None:
    found = stages()
    del found[missing]
    assert judge([found]) == Verdict()
    assert judge([]) == Verdict()


@pytest.mark.parametrize("stage", Stage)
def test_only_the_favoured_have_other_slices(stage: Stage) -> None:
    assert slices_in(stage) == ((8_000, 500) if stage is Stage.FAVOURED else (2_000, 2_000))


@pytest.mark.parametrize(
    ("measured", "share", "counts"),
    [
        (Measured(0, 0, 1.0), 0.0, False),
        (Measured(1, 0, 1.0), 1.0, False),
        (Measured(3, 8, 1.0), 3 / 11, False),
        (Measured(3, 9, 1.0), 0.25, True),
        (Measured(3, 9, 1.0, dry=True), 0.25, False),
    ],
)
def test_share_of_the_first(measured: Measured, share: float, counts: bool) -> None:
    assert (measured.share, measured.counts) == (share, counts)


@pytest.mark.parametrize(
    ("shares", "found"),
    [
        ({"even": 0.3, "again": 0.7}, Verdict(Effect.SEEN, Effect.SEEN)),
        ({"even": 0.295, "again": 0.7}, Verdict()),
        ({"even": 0.3, "again": 0.705}, Verdict()),
        ({"paused": 0.75}, Verdict(Effect.SEEN, Effect.SEEN)),
        ({"paused": 0.745}, Verdict(Effect.SEEN, Effect.UNKNOWN)),
        ({"paused": 0.63}, Verdict(Effect.SEEN, Effect.UNKNOWN)),
        ({"paused": 0.625}, Verdict(Effect.SEEN, Effect.NONE)),
        ({"favoured": 0.725}, Verdict(Effect.SEEN, Effect.SEEN)),
        ({"favoured": 0.71}, Verdict(Effect.UNKNOWN, Effect.SEEN)),
        ({"favoured": 0.61}, Verdict(Effect.NONE, Effect.SEEN)),
    ],
)
def test_verdict_of_a_pass_at_its_limits(shares: dict[str, float], found: Verdict) -> None:
    assert judge_pass(stages(**shares)) == found  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ({}, {"paused": INERT}, Verdict(Effect.SEEN, Effect.SEEN)),  # one that saw an effect is enough
        ({"paused": INERT}, {}, Verdict(Effect.SEEN, Effect.SEEN)),
        ({"paused": INERT}, {"paused": INERT}, Verdict(Effect.SEEN, Effect.NONE)),
        ({"paused": 0.7}, {"paused": INERT}, Verdict(Effect.SEEN, Effect.UNKNOWN)),
        ({"paused": INERT}, {"paused": 0.7}, Verdict(Effect.SEEN, Effect.UNKNOWN)),
    ],
)
def test_control_has_no_effect_only_if_both_passes_say_so(
    first: dict[str, float], second: dict[str, float], found: Verdict
) -> None:
    assert judge([stages(**first), stages(**second)]) == found  # type: ignore[arg-type]
