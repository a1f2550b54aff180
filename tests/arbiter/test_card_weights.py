"""Slices of one card, and whose turn it is."""

from __future__ import annotations

import pytest

from aliquot.arbiter import slices
from aliquot.arbiter.roster import DOUBT_AFTER, Context, Member, Reading
from aliquot.model.claim import AppClass
from aliquot.model.node import Isolation
from kit.cards.arbiters import BEST, BURST, FIXED, NORMAL, OFFLINE, ONLINE, WORKS, card, look, stopped

# --- slices -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("busy", "length"), [("a", slices.TINY), ("", slices.BRIEF)])
def test_offline_work_beside_online_work_is_cut_at_once_unless_it_has_nothing_to_do(busy: str, length: int) -> None:
    assert look(card(on=ONLINE, a=OFFLINE), 1.0, busy).slice_of("a/1") == length


SHORT, FOR_NOW = slices._ONLINE_AMONG_ONLINE, slices._ONLINE_FOR_NOW


@pytest.mark.parametrize(
    ("delay", "classes", "busy", "length"),
    [
        (0.0, {"x": ONLINE, "y": ONLINE, "a": OFFLINE}, "x", FOR_NOW),  # offline work cuts in,
        (None, {"x": ONLINE, "y": ONLINE, "a": OFFLINE}, "x", FOR_NOW),
        (0.1, {"x": ONLINE, "y": ONLINE, "a": OFFLINE}, "x", SHORT),  # unless it is held,
        (0.0, {"x": ONLINE, "y": ONLINE}, "x", SHORT),  # or there is none;
        (0.0, {"x": ONLINE, "y": ONLINE, "a": OFFLINE}, "x y", SHORT),  # several that are busy take short turns
        (0.0, {"x": ONLINE, "n": NORMAL, "a": OFFLINE}, "x", FOR_NOW),
        (0.0, {"n": NORMAL, "x": NORMAL, "y": ONLINE, "a": OFFLINE}, "x", SHORT),  # ordinary work is not cut into
        (0.1, {"x": ONLINE}, "", slices.LONG),
    ],
)
def test_online_context_has_longer_slices_only_where_offline_work_would_cut_in(
    delay: float | None, classes: dict[str, AppClass], busy: str, length: int
) -> None:
    assert look(card(BEST, delay, **classes), 5.0, busy).slice_of("x/1") == length


@pytest.mark.parametrize(
    ("isolation", "busy", "lengths"),
    [
        # Those that were not busy lately keep the slice that they would have among all.
        (BEST, "a b", {"a/1": 12_180, "b/1": 12_180, "c/1": 12_180, "c/2": 12_180}),
        (BEST, "a c", {"a/1": 24_180, "b/1": 24_180, "c/1": 12_180, "c/2": 12_180}),
        (FIXED, "a c", {"a/1": 12_000, "b/1": 12_000, "c/1": 12_000, "c/2": 12_000}),
        (BURST, "a b", {"a/1": 8_180, "b/1": 8_180, "c/1": 8_180, "c/2": 8_180}),
        (BURST, "a c", {"a/1": 16_180, "b/1": 16_180, "c/1": 8_180, "c/2": 8_180}),
    ],
)
def test_slices_are_divided_among_those_that_were_busy_lately(
    isolation: Isolation, busy: str, lengths: dict[str, int]
) -> None:
    arbiter = card(isolation, a=NORMAL, b=NORMAL, c=NORMAL)
    arbiter.join("c/2", "c")
    look(arbiter, 5.0, busy)
    assert {name: arbiter.slice_of(name) for name in lengths} == lengths


# --- turns --------------------------------------------------------------------------------------------------------


def test_turns_at_the_gate_under_burst_share_leave_no_rest() -> None:
    arbiter = card(BURST, a=NORMAL, b=NORMAL)
    arbiter.join("b/1", "b", preemptible=False)
    look(arbiter, 5.0, "a b")
    look(arbiter, 5.049, "a b")
    assert stopped(arbiter) == ["b/1"]
    assert arbiter.deadline == pytest.approx(5.05)
    look(arbiter, 5.05, "a b")
    assert stopped(arbiter) == ["a/1"]
    look(arbiter, 5.1, "a b")
    assert stopped(arbiter) == ["b/1"]


def test_windows_of_fixed_share_leave_a_rest() -> None:
    arbiter = card(FIXED, a=NORMAL, b=NORMAL)
    for now, waiting in (
        (5.0, ["b/1"]),
        (5.025, ["a/1"]),
        (5.05, ["a/1", "b/1"]),
        (5.099, ["a/1", "b/1"]),
        (5.1, ["b/1"]),
    ):
        look(arbiter, now, "a b")
        assert stopped(arbiter) == waiting, now


def test_idle_processes_run_in_windows_of_others() -> None:
    arbiter = card(FIXED, a=NORMAL, b=NORMAL)
    arbiter.join("a/2", "a")
    look(arbiter, 5.0, "b")
    assert stopped(arbiter) == []
    look(arbiter, 5.01, "a b")
    assert stopped(arbiter) == ["a/1", "a/2"]


@pytest.mark.parametrize(
    ("isolation", "working", "weights"),
    [
        (BEST, {"a/1": OFFLINE, "b/1": OFFLINE}, {"a/1": 1.0, "b/1": 1.0}),
        (BEST, {"a/1": OFFLINE, "a/2": OFFLINE, "b/1": NORMAL}, {"a/1": 0.5, "a/2": 0.5, "b/1": 1.0}),
        (BURST, {"a/1": OFFLINE, "b/1": NORMAL}, {"a/1": 0.1875, "b/1": 0.25}),  # of the three quarters that are left
        (FIXED, {"a/1": OFFLINE, "a/2": OFFLINE, "b/1": NORMAL}, {"a/1": 0.09375, "a/2": 0.09375, "b/1": 0.25}),
    ],
)
def test_weight_behind_online_work_is_the_tenants_quota_split_over_its_processes(
    isolation: Isolation, working: dict[str, AppClass], weights: dict[str, float]
) -> None:
    arbiter = card(isolation, on=ONLINE)
    for name, app_class in working.items():
        arbiter.admit(Member(name.partition("/")[0], app_class, 250))
        arbiter.join(name, name.partition("/")[0])
    assert arbiter._weights_behind([arbiter.roster.contexts[name] for name in working]) == weights


@pytest.mark.parametrize(
    ("isolation", "idle_for", "weight"),
    [
        (BEST, DOUBT_AFTER, 0.05),
        (BEST, DOUBT_AFTER - 0.01, 1.0),
        (BURST, DOUBT_AFTER, 0.0125),
        (FIXED, DOUBT_AFTER, 0.25),
    ],
)
def test_turn_that_is_likely_wasted_comes_seldom_but_a_window_takes_nothing_from_others(
    isolation: Isolation, idle_for: float, weight: float
) -> None:
    arbiter = card(isolation, on=ONLINE, a=OFFLINE)
    context = arbiter.roster.contexts["a/1"]
    context.idle_for = idle_for
    assert arbiter._weights_behind([context]) == {"a/1": pytest.approx(weight)}


def test_quotas_of_those_without_work_are_not_given_to_others_behind_online_work() -> None:
    arbiter = card(BURST, on=ONLINE, a=OFFLINE, n=NORMAL)
    contexts: list[Context] = [arbiter.roster.contexts["a/1"]]
    assert arbiter._weights_behind(contexts) == {"a/1": 0.1875}


def test_offline_work_has_what_ordinary_work_leaves_of_its_turn_once_that_was_seen_without_work() -> None:
    arbiter = card(on=ONLINE, n=NORMAL, off=OFFLINE, poor=OFFLINE, gate=OFFLINE)
    arbiter.join("gate/1", "gate", preemptible=False)
    works, done = WORKS, Reading(1, True, False)

    def round_(now: float, ordinary: Reading) -> list[str]:
        arbiter.read({"n/1": ordinary, "off/1": works, "poor/1": works}, now)
        arbiter.tick(now)
        return stopped(arbiter)

    assert round_(5.0, works) == ["off/1", "poor/1"], "its turn, and it has work"
    assert round_(5.01, done) == ["poor/1"], "the one that is next gets what it leaves"
    assert round_(5.02, works) == ["poor/1"], "and has it to the end of the turn"
    assert round_(5.04, works) == ["n/1", "poor/1"]
    assert round_(5.08, works) == ["n/1", "off/1"]
    assert round_(5.12, works) == ["off/1", "poor/1"], "in the next turn it was not seen without work yet"


def test_what_is_left_of_a_turn_goes_to_none_that_only_the_gate_stops() -> None:
    arbiter = card(on=ONLINE, n=NORMAL, off=OFFLINE)
    arbiter.join("off/1", "off", preemptible=False)
    arbiter.read({"n/1": Reading(1, True, False), "off/1": WORKS}, 5.0)
    arbiter.tick(5.0)
    assert stopped(arbiter) == ["off/1"]


def test_offline_work_leaves_nothing_of_its_turn_to_others() -> None:
    arbiter = card(on=ONLINE, n=NORMAL, a=OFFLINE, b=OFFLINE)
    arbiter.read({"n/1": WORKS, "a/1": Reading(1, True, False), "b/1": WORKS}, 5.0)
    arbiter.tick(5.0)
    assert stopped(arbiter) == ["b/1", "n/1"]


def test_ordinary_work_without_offline_work_beside_it_takes_no_turns() -> None:
    for isolation in Isolation:
        assert stopped(look(card(isolation, on=ONLINE, n=NORMAL, m=NORMAL, off=OFFLINE), 5.0, "n m")) == []


def test_held_time_counts_for_no_window_behind_online_work() -> None:
    arbiter = card(FIXED, 0.1, 500, on=ONLINE, a=OFFLINE, b=OFFLINE)
    look(arbiter, 5.0, "a b")
    assert stopped(arbiter) == ["b/1"]
    look(arbiter, 5.02, "on a b")
    assert stopped(arbiter) == ["a/1", "b/1"]
    look(arbiter, 5.07, "a b")
    look(arbiter, 5.17, "a b")
    assert stopped(arbiter) == ["b/1"]
    look(arbiter, 5.199, "a b")
    assert stopped(arbiter) == ["b/1"], "of its 50 ms it had 20 before the hold"
    look(arbiter, 5.2, "a b")
    assert stopped(arbiter) == ["a/1"]
