"""Who may run where only one may: rotations by weight, windows by quota."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.arbiter.turns import FOREVER, Rotation, Windows

_names = st.sampled_from("abcdefgh")
_weights = st.dictionaries(_names, st.floats(0.05, 1.0), min_size=1, max_size=5)


def rotated(rotation: Rotation, weights: dict[str, float], seconds: float) -> dict[str, float]:
    """What each had, when the rotation is asked just when it wants to be."""
    had: Counter[str] = Counter()
    now = 0.0
    while now < seconds:
        turn = rotation.step(weights, now)
        then = min(rotation.until, now + 0.1)
        had[turn or ""] += then - now  # type: ignore[assignment]
        now = then
    return {name: had[name] / now for name in weights}


class TestRotation:
    @settings(max_examples=30)
    @given(_weights)
    def test_turns_come_by_weight(self, weights: dict[str, float]) -> None:
        total, shares = sum(weights.values()), rotated(Rotation(), weights, 40.0)
        for name, weight in weights.items():
            assert shares[name] == pytest.approx(weight / total, abs=0.01)

    def test_rotation_never_disturbs_a_context_alone(self) -> None:
        rotation = Rotation()
        assert rotation.step({"a": 1.0}, 0.0) == "a"
        assert rotation.until == FOREVER

    def test_no_tenant_has_the_turn_when_none_has_work(self) -> None:
        rotation = Rotation()
        assert rotation.step({}, 0.0) is None
        assert rotation.until == FOREVER

    def test_rotation_ends_the_turn_of_an_idle_context_at_once(self) -> None:
        rotation = Rotation()
        assert rotation.step({"a": 1.0, "b": 1.0}, 0.0) == "a"
        assert rotation.step({"b": 1.0}, 0.001) == "b"

    def test_rotation_gives_no_credit_for_time_away(self) -> None:
        rotation = Rotation()
        rotation.step({"a": 1.0, "b": 1.0}, 0.0)
        now = 0.0
        while now < 10.0:
            rotation.step({"a": 1.0}, now)
            now += 0.01
        shares = Counter[str]()
        while now < 20.0:
            shares[rotation.step({"a": 1.0, "b": 1.0}, now) or ""] += 1
            now += 0.01
        assert shares["b"] / shares.total() == pytest.approx(0.5, abs=0.01)

    def test_next_turn_goes_by_time_had_and_not_by_number_of_turns(self) -> None:
        rotation, weights = Rotation(), {"a": 1.0, "b": 1.0}
        assert rotation.step(weights, 100.0) == "a"
        rotation.hold(weights, 100.01)
        assert rotation.step(weights, 100.01) == "b"
        assert rotation.step(weights, 100.06) == "a"
        rotation.hold(weights, 100.07)
        assert rotation.step(weights, 100.07) == "a", "it had 20 ms, the other one 50"

    def test_clock_that_went_back_takes_no_time_from_what_one_had(self) -> None:
        rotation, weights = Rotation(), {"a": 1.0, "b": 1.0}
        assert rotation.step(weights, 1.0) == "a"
        assert rotation.step(weights, 0.5) == "a"
        rotation.hold(weights, 0.51)
        assert rotation.step(weights, 0.51) == "b"

    def test_a_newcomer_comes_after_no_more_than_one_other(self) -> None:
        """It begins with as much as the one that had the least."""
        rotation, weights = Rotation(), {"a": 1.0, "b": 1.0}
        assert rotation.step(weights, 0.0) == "a"
        assert rotation.step(weights, 0.05) == "b"
        weights["c"] = 1.0
        assert rotation.step(weights, 0.06) == "b"
        assert rotation.step(weights, 0.1) == "c"

    def test_who_has_no_weight_has_one_turn_and_the_others_have_the_rest(self) -> None:
        assert rotated(Rotation(), {"a": 0.0, "b": 0.1}, 4.0)["a"] == pytest.approx(0.01)

    @settings(max_examples=30)
    @given(st.floats(0.005, 0.08), st.floats(0.005, 0.08))
    def test_holds_that_come_more_often_than_turns_end_starve_no_tenant(self, free: float, held: float) -> None:
        """Online work every now and then, release-delay short: each gap must not go to the same offline tenant."""
        rotation, weights, had, now = Rotation(), {"a": 0.5, "b": 0.5}, Counter[str](), 0.0
        for _ in range(400):
            end = now + free
            while now < end:
                turn = rotation.step(weights, now)
                then = min(rotation.until, end)
                had[turn or ""] += then - now  # type: ignore[assignment]
                now = then
            rotation.hold(weights, now)
            now += held
        assert had["a"] / (had["a"] + had["b"]) == pytest.approx(0.5, abs=0.02)

    @given(_weights, st.lists(st.floats(0.0, 0.1), max_size=30))
    def test_rotation_step_is_idempotent(self, weights: dict[str, float], steps: list[float]) -> None:
        rotation, now = Rotation(), 0.0
        for step in steps:
            now += step
            assert rotation.step(weights, now) == rotation.step(weights, now)
            assert rotation.until > now


def windowed(quotas: dict[str, float], seconds: float, lateness: random.Random | None, tail: float) -> dict[str, float]:
    """What each had, when every order takes effect late. One of twenty takes up to `tail`."""
    windows, had, now = Windows(), Counter[str](), 0.0
    runs: str | None = None
    while now < seconds:
        former = windows.turn
        turn = windows.step(quotas, now)
        if turn != former:
            late = 0.0
            if lateness is not None:
                late = lateness.uniform(0.0, tail) if lateness.random() < 0.05 else 0.0007
            had[runs or ""] += late  # type: ignore[assignment]
            now += late
            windows.switched(former, now, now)
            runs = turn
        then = min(windows.until, now + 0.01)  # activity is looked at in between
        assert then > now or windows.until <= now
        had[runs or ""] += max(0.0, then - now)  # type: ignore[assignment]
        now = max(now, then)
    return {name: had[name] / now for name in quotas}


_quotas = st.dictionaries(_names, st.floats(0.01, 1.0), min_size=1, max_size=6).map(
    lambda asked: {name: part / max(1.0, sum(asked.values())) for name, part in asked.items()}
)


class TestWindows:
    @settings(max_examples=20)
    @given(_quotas)
    def test_windows_give_each_its_quota_and_no_more(self, quotas: dict[str, float]) -> None:
        shares = windowed(quotas, 20.0, None, 0.0)
        for name, quota in quotas.items():
            assert shares[name] == pytest.approx(quota, abs=0.006)

    @settings(max_examples=20)
    @given(_quotas, st.integers(0, 2**32), st.floats(0.0, 0.02))
    def test_windows_carry_overruns_so_that_the_mean_is_right(
        self, quotas: dict[str, float], seed: int, tail: float
    ) -> None:
        shares = windowed(quotas, 30.0, random.Random(seed), tail)
        for name, quota in quotas.items():
            assert shares[name] <= quota + 0.01
        spare = 1.0 - sum(quotas.values())
        if spare > 0.1:  # otherwise the late orders cost what they cost, and all lose alike
            for name, quota in quotas.items():
                assert shares[name] == pytest.approx(quota, abs=0.01)

    @pytest.mark.parametrize("quota", [0.001, 0.002, 0.004])
    def test_even_the_smallest_quota_gets_windows(self, quota: float) -> None:
        """A tenth of a percent of a period is not worth two orders: it is saved up until it is."""
        assert windowed({"a": quota}, 60.0, None, 0.0)["a"] == pytest.approx(quota, rel=0.1)

    def test_the_rest_of_the_period_is_idle(self) -> None:
        windows = Windows()
        assert windows.step({"a": 0.3}, 0.0) == "a"
        assert windows.until == pytest.approx(0.03)
        assert windows.step({"a": 0.3}, 0.03) is None
        assert windows.until == pytest.approx(0.1)
        assert windows.step({"a": 0.3}, 0.1) == "a"

    def test_a_debt_is_paid_over_several_periods(self) -> None:
        """A pause that took 20 ms, of a tenant that has 5 ms in a period: it waits four periods."""
        windows = Windows()
        windows.step({"a": 0.05}, 0.0)
        assert windows.step({"a": 0.05}, 0.005) is None
        windows.switched("a", 0.025, None)
        began = [round(now, 3) for now in _turns(windows, {"a": 0.05}, 0.025, 0.8)]
        assert began[0] >= 0.5

    @pytest.mark.parametrize(("quota", "waits"), [(0.1, 1.1), (0.9, 0.3)])
    def test_a_debt_is_bounded(self, quota: float, waits: float) -> None:
        """After a minute in which nobody looked, the tenant does not wait for an hour: 0.1 s, or two windows."""
        windows = Windows()
        windows.step({"a": quota}, 0.0)
        began = _turns(windows, {"a": quota}, 60.0, 62.0)
        assert began[0] == pytest.approx(60.0 + waits, abs=0.01)

    def test_time_between_two_decisions_that_change_no_turn_is_charged(self) -> None:
        """Orders for another context take time too; the one whose window it is runs meanwhile."""
        windows = Windows()
        windows.step({"a": 0.3}, 0.0)
        former = windows.turn
        windows.step({"a": 0.3}, 0.01)
        windows.switched(former, None, 0.025)  # of another process of the same tenant
        assert windows.step({"a": 0.3}, 0.03) is None

    def test_a_window_begins_when_the_first_of_its_processes_runs_and_ends_when_the_last_stops(self) -> None:
        windows = Windows()
        windows.step({"a": 0.3, "b": 0.3}, 0.0)
        windows.switched(None, None, 0.01)
        assert windows.until == pytest.approx(0.04)
        windows.step({"a": 0.3, "b": 0.3}, 0.04)
        windows.switched("a", 0.05, 0.06)
        assert windows.turn == "b"
        assert windows.until == pytest.approx(0.09)

    def test_while_two_could_run_each_had_half(self) -> None:
        windows = Windows()
        windows.step({"a": 0.3, "b": 0.3}, 0.0)
        windows.step({"a": 0.3, "b": 0.3}, 0.03)
        windows.switched("a", 0.05, 0.03)
        assert windows.until == pytest.approx(0.07)

    def test_windows_give_a_newcomer_its_part_of_the_rest_of_the_period(self) -> None:
        windows = Windows()
        windows.step({"a": 0.3}, 0.0)
        windows.step({"a": 0.3}, 0.03)
        assert windows.step({"a": 0.3, "b": 0.5}, 0.06) == "b"
        assert windows.until == pytest.approx(0.08)

    def test_a_newcomer_owes_nothing_for_a_period_that_was_over(self) -> None:
        windows = Windows()
        windows.step({"a": 0.3}, 0.0)
        assert windows.step({"a": 0.3, "b": 0.3}, 0.5) == "b", "the other one ran all the time"
        assert windows.until == pytest.approx(0.56)

    def test_period_ends_when_too_little_of_it_is_left(self) -> None:
        windows = Windows(period=1.0, shortest=0.25)
        assert windows.step({"a": 0.5}, 0.0) == "a"
        assert windows.step({"a": 0.5}, 0.5) is None
        assert windows.step({"a": 0.5}, 0.75) == "a"

    def test_who_is_refunded_goes_on_for_as_long_before_the_next(self) -> None:
        windows, quotas = Windows(), {"a": 0.5, "b": 0.5}
        assert windows.step(quotas, 0.0) == "a"
        windows.refund(0.02)
        assert windows.step(quotas, 0.05) == "a"
        assert windows.until == pytest.approx(0.07)
        assert windows.step(quotas, 0.07) == "b"

    def test_a_window_that_outlasts_its_period_is_finished_before_the_next_period_begins(self) -> None:
        windows, quotas = Windows(), {"a": 0.5, "b": 0.5}
        windows.step(quotas, 0.0)
        windows.refund(0.07)
        assert windows.step(quotas, 0.1) == "a"
        assert windows.until == pytest.approx(0.12)
        assert windows.step(quotas, 0.12) == "b"
        assert windows.until == pytest.approx(0.17)

    def test_rest_of_a_window_that_is_too_short_is_left_for_later(self) -> None:
        windows, quotas = Windows(period=1.0, shortest=0.25), {"a": 0.5, "b": 0.5}
        assert windows.step(quotas, 0.0) == "a"
        assert windows.step(quotas, 0.125) == "a"
        assert windows.step(quotas, 0.25) == "b"

    def test_while_held_no_tenant_has_a_window(self) -> None:
        windows = Windows()
        windows.step({"a": 0.3}, 0.0)
        windows.hold(0.01)
        assert windows.turn is None
        assert windows.until == FOREVER
        assert windows.step({"a": 0.3}, 0.5) == "a"

    @given(st.floats(0, 1000), st.floats(0.2, 0.6), st.floats(0.0, 0.9), st.floats(0.0, 0.3))
    def test_a_hold_charges_the_time_before_it_and_none_while_it_lasts(
        self, began: float, quota: float, ran: float, held: float
    ) -> None:
        windows = Windows()
        window = quota * windows.period
        windows.step({"a": quota}, began)
        windows.hold(began + ran * window)
        now = began + ran * window + held * windows.period
        assert windows.step({"a": quota}, now) == "a"
        assert windows.until - now == pytest.approx((1 - ran) * window, abs=1e-9)

    @pytest.mark.parametrize(("quota", "window"), [(0.2, 0.04), (0.4, 0.08)])
    def test_what_was_due_in_two_periods_is_saved_up_and_no_more(self, quota: float, window: float) -> None:
        windows, now = Windows(), 0.0
        for _ in range(20):
            now = windows.until if windows.step({"a": quota}, now) == "a" else now
            windows.hold(now)  # its window is used up
            now += 10 * windows.period
        assert windows.step({"a": quota}, now) == "a"
        assert windows.until - now == pytest.approx(window)

    @pytest.mark.parametrize(("quota", "window"), [(0.5, 2.0), (0.1875, 1.0)])
    def test_what_was_not_worth_a_window_is_saved_up_to_two_windows_or_two_that_are_just_worth_it(
        self, quota: float, window: float
    ) -> None:
        windows = Windows(period=2.0, shortest=0.5)
        windows.step({"a": quota}, 0.0)
        assert windows.step({"a": quota}, 0.5) is None
        assert windows.step({"a": quota}, 8.0) == "a"
        assert windows.until == 8.0 + window

    def test_a_newcomer_gets_no_more_than_its_part_of_a_period_when_the_clock_went_back(self) -> None:
        windows = Windows()
        windows.step({"a": 0.3}, 1.0)
        windows.step({"a": 0.3, "b": 0.5}, 0.5)
        windows.hold(0.5)
        assert windows.step({"b": 0.5}, 0.5) == "b"
        assert windows.until == pytest.approx(0.55)

    @pytest.mark.parametrize("decide", [Windows.hold, lambda windows, now: windows.step({"a": 0.3}, now)])
    def test_a_decision_before_the_window_began_charges_nothing(
        self, decide: Callable[[Windows, float], object]
    ) -> None:
        """An order may take effect after the time at which the next decision was begun."""
        windows = Windows()
        windows.step({"a": 0.3}, 0.0)
        windows.switched(None, None, 0.01)
        decide(windows, 0.005)
        windows.hold(0.005)
        windows.step({"a": 0.3}, 0.02)
        assert windows.until == pytest.approx(0.05)

    @given(_quotas, st.lists(st.floats(0.0, 0.3), max_size=40))
    def test_the_next_decision_is_always_ahead_and_asking_twice_changes_nothing(
        self, quotas: dict[str, float], steps: list[float]
    ) -> None:
        windows, now = Windows(), 0.0
        for step in steps:
            now += step
            assert windows.step(quotas, now) == windows.step(quotas, now)
            assert now < windows.until < math.inf


def _turns(windows: Windows, quotas: dict[str, float], now: float, end: float) -> list[float]:
    """When turns began."""
    asked: list[tuple[float, str | None]] = [(now, None)]
    while now < end:
        asked.append((now, windows.step(quotas, now)))
        now = windows.until
    return [at for (_, before), (at, turn) in pairwise(asked) if turn is not None and turn != before]


def test_order_that_took_effect_before_the_step_gives_no_context_time() -> None:
    """A context that leaves the card is not paused: when it was last drained is long ago, or never."""
    windows = Windows()
    windows.step({"a": 0.5, "b": 0.5}, 100_000.0)
    assert windows.step({"a": 0.5, "b": 0.5}, 100_000.05) == "b"
    windows.switched("a", 0.0, 0.0)
    assert windows.until == pytest.approx(100_000.1)
    assert windows.step({"a": 0.5, "b": 0.5}, 100_000.06) == "b"
    assert windows.until == pytest.approx(100_000.1)
    for round_ in range(1, 40):
        windows.step({"a": 0.5, "b": 0.5}, 100_000.05 + round_ * 0.01)
        assert windows.until <= 100_000.05 + round_ * 0.01 + 0.06


def test_time_in_which_none_could_run_pays_no_debt_beyond_two_periods() -> None:
    windows = Windows()
    windows.step({"a": 0.3}, 0.0)
    windows.step({"a": 0.3}, 0.13)  # it could not be stopped for 0.1 s: it owes that
    windows.hold(0.13)
    assert windows.step({"a": 0.3}, 60.0) is None


def test_former_one_that_is_gone_is_charged_nothing() -> None:
    windows = Windows()
    windows.step({"a": 0.5, "b": 0.5}, 1.0)
    assert windows.step({"b": 0.5}, 1.01) == "b"
    windows.switched("a", 1.02, 1.02)
    assert windows.turn == "b"
    assert windows.until == pytest.approx(1.07)
