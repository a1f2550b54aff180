"""The rules of one card, one by one: what a context is said to do, who holds the card for how long, and who may run."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from aliquot.arbiter import slices
from aliquot.arbiter.card import DOZE, REST, SAMPLE, CardArbiter
from aliquot.arbiter.gaps import FIRST
from aliquot.arbiter.orders import Arm, Pause, Resume
from aliquot.arbiter.proof import EVEN_US, LONG_US, SHORT_US, Phase, Trial
from aliquot.arbiter.roster import (
    BETWEEN_BATCHES,
    BUSY,
    DOUBT_AFTER,
    IDLE_AFTER,
    NEVER_DRY,
    STILL_BUSY,
    Context,
    Member,
    Reading,
)
from aliquot.arbiter.timeline import Taken
from aliquot.model.claim import AppClass
from aliquot.model.node import Isolation
from aliquot.model.tenant import SharingRules, State

ONLINE, OFFLINE, NORMAL = AppClass.ONLINE, AppClass.OFFLINE, AppClass.NORMAL
FIXED, BURST, BEST = Isolation.FIXED_SHARE, Isolation.BURST_SHARE, Isolation.BEST_EFFORT
WORKS, IDLE = Reading(1, True, True), Reading(1, False)


def card(
    isolation: Isolation = BEST, delay: float | None = 0.0, quota: int | None = 250, /, **classes: AppClass
) -> CardArbiter:
    """A card with these tenants, each with one process, `1`."""
    arbiter = CardArbiter(SharingRules(isolation, delay))
    for tenant, app_class in classes.items():
        arbiter.admit(Member(tenant, app_class, quota))
        arbiter.join(f"{tenant}/1", tenant)
    return arbiter


def look(arbiter: CardArbiter, now: float, busy: str) -> CardArbiter:
    """A round in which these tenants have work and all others none."""
    at_work = busy.split()
    contexts = arbiter.roster.contexts.items()
    arbiter.read({name: WORKS if context.tenant in at_work else IDLE for name, context in contexts}, now)
    arbiter.tick(now)
    return arbiter


def stopped(arbiter: CardArbiter) -> list[str]:
    """The contexts that may not run."""
    states = {name: arbiter.state(name) for name in sorted(arbiter.roster.contexts)}
    return [name for name, state in states.items() if state in (State.PAUSED, State.WAITING)]


# --- what a context does ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("idle_for", "outstanding", "settling", "state"),
    [
        (0.0, False, False, State.RUNNING),
        (0.0, True, True, State.RUNNING),
        (IDLE_AFTER - 0.001, False, False, State.RUNNING),
        (IDLE_AFTER, False, False, State.IDLE),
        (IDLE_AFTER, True, False, State.RUNNING),  # in a long kernel, as far as is known
        (IDLE_AFTER, True, True, State.IDLE),
    ],
)
def test_context_runs_while_it_was_heard_of_or_has_work_that_may_be_stopped(
    idle_for: float, outstanding: bool, settling: bool, state: State
) -> None:
    arbiter = card(a=NORMAL)
    context = arbiter.roster.contexts["a/1"]
    context.idle_for, context.settling, context.reading = idle_for, settling, Reading(1, False, outstanding)
    assert arbiter.state("a/1") is state


def test_context_is_paused_for_online_work_and_waits_for_all_others() -> None:
    held = look(card(BEST, 0.1, on=ONLINE, a=OFFLINE), 1.0, "on a")
    assert held.state("a/1") is State.PAUSED
    free = look(card(BEST, 0.0, on=ONLINE, a=OFFLINE, b=OFFLINE), 1.0, "a b")
    assert (free.state("a/1"), free.state("b/1")) == (State.RUNNING, State.WAITING)
    windows = look(card(FIXED, a=NORMAL, b=NORMAL), 1.0, "a b")
    assert (windows.state("a/1"), windows.state("b/1")) == (State.RUNNING, State.WAITING)


def test_ordinary_work_that_waits_while_offline_work_has_its_turn_is_not_paused() -> None:
    arbiter = look(card(BEST, 0.0, on=ONLINE, a=OFFLINE, n=NORMAL), 1.0, "a n")
    assert (arbiter.state("a/1"), arbiter.state("n/1")) == (State.RUNNING, State.WAITING)


def test_unknown_context_is_idle() -> None:
    assert CardArbiter().state("a/1") is State.IDLE


def test_weights_are_fair_where_no_slice_was_ordered_and_without_those_that_may_not_run() -> None:
    arbiter = look(card(BEST, 0.1, on=ONLINE, a=OFFLINE), 1.0, "on a")
    assert arbiter.weights() == ({"on/1": slices.LONG}, {})
    arbiter.forget("a/1")
    assert arbiter.weights() == ({"on/1": slices.LONG}, {"a/1": slices.FAIR})


# --- how long online work keeps the card --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of_node", "latency", "own", "delay"),
    [
        (None, None, None, FIRST),  # learned
        (0.25, None, None, 0.25),
        (0.0, None, None, 0.0),
        (None, None, 0.5, 0.5),
        (0.25, None, 0.5, 0.25),  # the node's goes before the tenant's
        (0.0, None, 0.5, 0.0),
        (0.25, 0.001, None, FIRST),  # the latency goes before both
        (None, 0.001, 0.5, FIRST),
        (0.25, 0.001, 0.5, FIRST),
    ],
)
def test_delay_is_by_latency_then_the_nodes_then_the_tenants_and_learned_without_any(
    of_node: float | None, latency: float | None, own: float | None, delay: float
) -> None:
    arbiter = CardArbiter(SharingRules(release_delay=of_node))
    arbiter.admit(Member("on", ONLINE, None, latency, own))
    assert arbiter.delay_of("on") == delay


@pytest.mark.parametrize(("of_node", "delay"), [(None, 0.0), (0.25, 0.25)])
def test_of_who_is_not_online_nothing_is_learned(of_node: float | None, delay: float) -> None:
    arbiter = CardArbiter(SharingRules(release_delay=of_node))
    arbiter.admit(Member("off", OFFLINE, None))
    assert arbiter.delay_of("off") == arbiter.delay_of("nobody") == delay
    assert arbiter.missed_of("off") == arbiter.missed_of("nobody") == 0


@pytest.mark.parametrize(("latency", "missed"), [(0.001, 3), (None, 0)])
def test_latency_is_missed_only_by_who_said_what_it_accepts(latency: float | None, missed: int) -> None:
    arbiter = CardArbiter()
    arbiter.admit(Member("on", ONLINE, None, latency))
    arbiter._gaps["on"].missed = 3
    assert arbiter.missed_of("on") == missed


@pytest.mark.parametrize(
    ("delay", "preemptible", "holds"),
    [(0.1, True, 0.1), (0.1, False, 0.1), (0.01, False, IDLE_AFTER), (0.0, False, IDLE_AFTER), (0.0, True, 0.0)],
)
def test_offline_work_that_only_the_gate_stops_is_held_for_as_long_as_online_work_is_not_idle(
    delay: float, preemptible: bool, holds: float
) -> None:
    arbiter = card(BEST, delay, on=ONLINE, a=OFFLINE, b=OFFLINE)
    arbiter.join("a/1", "a", preemptible=preemptible)
    look(arbiter, 1.0, "a b")
    arbiter.wake("on/1", 2.0)
    arbiter.tick(2.0)
    assert arbiter.held is (holds > 0)
    if holds:
        assert arbiter.deadline == min(2.0 + holds, 2.0 + SAMPLE)
        arbiter.tick(2.0 + holds - 0.0001)
        assert arbiter.held
        assert arbiter.deadline == pytest.approx(2.0 + holds)
    arbiter.tick(2.0 + holds)
    assert not arbiter.held


@pytest.mark.parametrize(
    ("first", "second", "by"),
    [
        ((2.0, 0.5), (2.1, 0.3), "x"),  # it holds the card until 2.5, the other one until 2.4
        ((2.0, 0.5), (2.1, 0.5), "y"),
        ((2.125, 0.375), (2.0, 0.5), "x"),  # both until 2.5: the one that was active last
        ((2.0, 0.5), (2.125, 0.375), "y"),
    ],
)
def test_card_is_held_by_the_one_that_holds_it_longest(
    first: tuple[float, float], second: tuple[float, float], by: str
) -> None:
    arbiter = card(BEST, None, x=ONLINE, y=ONLINE, a=OFFLINE)
    for tenant, (_, own) in (("x", first), ("y", second)):
        arbiter.admit(Member(tenant, ONLINE, None, release_delay=own))
    look(arbiter, 1.9, "a")
    for tenant, (at, _) in (("x", first), ("y", second)):
        arbiter.wake(f"{tenant}/1", at)
    arbiter.tick(2.2)
    assert arbiter.held_by == by
    assert list(arbiter.takings) == [Taken(2.2, by, ("a",))]


def test_card_is_taken_once_however_long_it_is_held() -> None:
    arbiter = look(card(BEST, 0.1, on=ONLINE, a=OFFLINE), 1.0, "a")
    for at in (2.0, 2.05, 2.1):
        look(arbiter, at, "on a")
    assert arbiter.preemptions == {"a": 1}
    look(arbiter, 2.5, "a")
    look(arbiter, 2.6, "a")
    assert not arbiter.held
    look(arbiter, 3.0, "on a")
    assert arbiter.preemptions == {"a": 2}
    assert [taken.at for taken in arbiter.takings] == [2.0, 3.0]


@pytest.mark.parametrize(("gap", "taken"), [(IDLE_AFTER - 0.01, 1), (IDLE_AFTER, 2), (IDLE_AFTER + 0.01, 2)])
def test_where_nothing_is_held_the_card_is_taken_anew_after_online_work_was_idle(gap: float, taken: int) -> None:
    arbiter = look(card(BEST, 0.0, on=ONLINE, other=ONLINE, a=OFFLINE), -1.0, "a")
    assert arbiter.preemptions == {}, "online work that did nothing yet takes nothing"
    arbiter.wake("on/1", 0.0)
    arbiter.tick(0.0)
    arbiter.tick(gap)
    arbiter.wake("on/1", gap)
    arbiter.tick(gap)
    assert arbiter.preemptions == {"a": taken}


@pytest.mark.parametrize(("delay", "taken"), [(0.1, {"a": 1}), (0.0, {})])
def test_work_that_begins_while_online_work_holds_the_card_loses_it_and_beside_it_nothing(
    delay: float, taken: dict[str, int]
) -> None:
    arbiter = look(card(BEST, delay, on=ONLINE, a=OFFLINE), 2.0, "on")
    assert arbiter.preemptions == {}
    look(arbiter, 2.02, "on a")
    assert arbiter.preemptions == taken


def test_card_that_was_held_is_not_taken_anew_when_the_delay_is_set_to_nothing() -> None:
    arbiter = look(card(BEST, 0.1, on=ONLINE, a=OFFLINE), 1.0, "a")
    arbiter.wake("on/1", 2.0)
    for now, delay in ((2.0, 0.1), (2.08, 0.1), (2.09, 0.0)):
        arbiter.rules = SharingRules(BEST, delay)
        if not delay:
            arbiter.wake("on/1", now)
        arbiter.tick(now)
    assert arbiter.preemptions == {"a": 1}


@pytest.mark.parametrize(("delay", "held"), [(0.0, False), (0.001, True)])
def test_without_a_delay_nothing_is_held_not_even_by_work_that_came_after_the_decision_began(
    delay: float, held: bool
) -> None:
    arbiter = look(card(BEST, delay, on=ONLINE, a=OFFLINE), 1.0, "a")
    arbiter.wake("on/1", 2.0)
    arbiter.tick(1.9)
    assert arbiter.held is held


def test_nothing_is_taken_from_offline_work_that_has_none() -> None:
    arbiter = look(card(BEST, 0.1, on=ONLINE, a=OFFLINE), 1.0, "")
    look(arbiter, 2.0, "on")
    assert not arbiter.held
    assert arbiter.preemptions == {}
    assert arbiter.deadline == 2.0 + SAMPLE


@pytest.mark.parametrize(("busy", "contended"), [("", False), ("a", True), ("a b", True), ("n", False)])
def test_gaps_cost_a_switch_only_while_some_offline_work_is_there_to_be_let_in(busy: str, contended: bool) -> None:
    arbiter = look(card(BEST, None, on=ONLINE, n=NORMAL, a=OFFLINE, b=OFFLINE), 1.0, busy)
    look(arbiter, 1.001, busy)
    assert arbiter._gaps["on"]._contended is contended


@pytest.mark.parametrize(("before", "after", "read"), [(1.0, 1.0, 0), (1.0, 1.25, 1)])
def test_gaps_are_read_from_what_passed_since_the_reading_before(before: float, after: float, read: int) -> None:
    arbiter = card(BEST, None, on=ONLINE, a=OFFLINE)
    arbiter.read({"on/1": Reading(3, False), "a/1": Reading(3, False)}, before)
    arbiter.read({"on/1": Reading(3, False), "a/1": Reading(3, False), "nobody/1": IDLE}, after)
    assert arbiter._gaps["on"]._open == ({"on/1": after - before} if read else {})
    arbiter.read({"on/1": Reading(5, False, True, busy=0.25)}, after + 0.25)
    assert arbiter._gaps["on"]._open == {}, "launches end a gap"
    assert set(arbiter._gaps) == {"on"}


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


# --- burst-share with queues that run dry -------------------------------------------------------------------------


def with_gaps(parts: Mapping[str, float], isolation: Isolation = BURST, **more: AppClass) -> CardArbiter:
    """A card on which these contexts had work for this part of the time."""
    arbiter = CardArbiter(SharingRules(isolation, 0.0))
    for tenant, app_class in more.items():
        arbiter.admit(Member(tenant, app_class, 250))
        arbiter.join(f"{tenant}/1", tenant)
    for name, part in parts.items():
        tenant = name.partition("/")[0]
        arbiter.admit(Member(tenant, NORMAL, 250))
        arbiter.join(name, tenant)
        context = arbiter.roster.contexts[name]
        context.idle_for, context.reading, context.part_busy = 0.0, WORKS, part
    arbiter.tick(5.0)
    return arbiter


GAPS = (BUSY + NEVER_DRY) / 2


@pytest.mark.parametrize(
    ("parts", "dry"),
    [
        ({"a/1": GAPS, "b/1": GAPS}, True),
        ({"a/1": GAPS, "b/1": 1.0}, True),  # one with gaps is enough
        ({"a/1": 1.0, "b/1": 1.0}, False),
        ({"a/1": NEVER_DRY, "b/1": 1.0}, False),
        ({"a/1": BUSY, "b/1": 1.0}, True),
        ({"a/1": BUSY - 0.01, "b/1": 1.0}, False),  # it would waste its windows
        ({"a/1": GAPS}, False),
        ({"a/1": GAPS, "a/2": GAPS}, False),  # of one tenant
        ({"a/1": GAPS, "a/2": GAPS, "b/1": 1.0}, True),
    ],
)
def test_burst_share_has_windows_where_all_have_work_nearly_always_and_some_with_gaps(
    parts: dict[str, float], dry: bool
) -> None:
    arbiter = with_gaps(parts)
    assert bool(stopped(arbiter)) is dry
    assert arbiter.deadline == 5.0 + (SAMPLE if dry else DOZE), "who is alone has no windows either"


@pytest.mark.parametrize(("isolation", "classes"), [(BEST, {}), (BURST, {"on": ONLINE})])
def test_queues_that_run_dry_matter_only_under_burst_share_without_online_work(
    isolation: Isolation, classes: dict[str, AppClass]
) -> None:
    assert stopped(with_gaps({"a/1": GAPS, "b/1": GAPS}, isolation, **classes)) == []


def test_queues_that_run_dry_make_no_window_of_fixed_share_longer() -> None:
    arbiter = with_gaps({"a/1": GAPS, "b/1": GAPS}, FIXED)
    assert stopped(arbiter) == ["b/1"]
    arbiter.tick(5.025)
    assert stopped(arbiter) == ["a/1"]


@pytest.mark.parametrize(("part", "dry"), [(STILL_BUSY, True), (STILL_BUSY - 0.01, False)])
def test_windows_stay_until_one_is_clearly_less_busy(part: float, dry: bool) -> None:
    arbiter = with_gaps({"a/1": GAPS, "b/1": GAPS})
    arbiter.roster.contexts["a/1"].part_busy = part
    arbiter.tick(5.001)
    assert bool(stopped(arbiter)) is dry


@pytest.mark.parametrize(("idle_for", "dry"), [(BETWEEN_BATCHES - 0.001, True), (BETWEEN_BATCHES, False)])
def test_windows_end_when_one_of_them_pauses_for_longer_than_between_two_batches(idle_for: float, dry: bool) -> None:
    arbiter = with_gaps({"a/1": GAPS, "b/1": GAPS})
    context = arbiter.roster.contexts["a/1"]
    context.idle_for, context.reading = idle_for, Reading(1, False, False)
    arbiter.tick(5.001)
    assert bool(stopped(arbiter)) is dry


def test_windows_do_not_begin_sooner_because_a_tenant_at_the_gate_was_busy_before() -> None:
    arbiter = with_gaps({"a/1": 0.1, "b/1": 0.1})
    for now, preemptible, part in ((5.001, False, GAPS), (5.002, True, BUSY - 0.01)):
        arbiter.join("b/1", "b", preemptible=preemptible)
        for context in arbiter.roster.contexts.values():
            context.part_busy = part
        arbiter.tick(now)
    assert stopped(arbiter) == []


def test_windows_of_burst_share_leave_no_rest() -> None:
    """Two quotas of a quarter: half of the period each."""
    arbiter = with_gaps({"a/1": GAPS, "b/1": GAPS})
    assert stopped(arbiter) == ["b/1"]
    arbiter.tick(5.049)
    assert stopped(arbiter) == ["b/1"]
    assert arbiter.deadline == pytest.approx(5.05)
    arbiter.tick(5.05)
    assert stopped(arbiter) == ["a/1"]
    arbiter.tick(5.099)
    assert stopped(arbiter) == ["a/1"]
    assert arbiter.deadline == pytest.approx(5.1)
    arbiter.tick(5.1)
    assert stopped(arbiter) == ["b/1"]


def test_newcomer_under_burst_share_makes_no_window_longer() -> None:
    """Only under fixed-share its tenant pays for what it had meanwhile."""
    arbiter = with_gaps({"a/1": GAPS, "b/1": GAPS})
    arbiter.admit(Member("c", NORMAL, 250))
    arbiter.join("c/1", "c", now=5.0)
    arbiter.tick(5.0)
    arbiter.read({"c/1": Reading(1, True, True, had=0.02)}, 5.01)
    arbiter.tick(5.049)
    assert stopped(arbiter) == ["b/1"]
    arbiter.tick(5.05)
    assert stopped(arbiter) == ["a/1"]


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


# --- when orders took effect --------------------------------------------------------------------------------------


def test_window_begins_with_the_first_process_that_runs_and_ends_with_the_last_that_stops() -> None:
    arbiter = card(FIXED, a=NORMAL, b=NORMAL)
    for name in ("a/2", "b/2"):
        arbiter.join(name, name[0])
    look(arbiter, 5.0, "a b")
    look(arbiter, 5.025, "a b")
    assert stopped(arbiter) == ["a/1", "a/2"]
    arbiter.performed(
        [
            (Pause("a/1"), 5.026),
            (Pause("a/2"), 5.027),
            (Resume("b/1"), 5.028),
            (Resume("b/2"), 5.029),
            (Pause("x"), 9.0),
        ]
    )
    arbiter.tick(5.052)
    assert stopped(arbiter) == ["a/1", "a/2"]
    assert arbiter.deadline == pytest.approx(5.053)
    arbiter.tick(5.053)
    assert stopped(arbiter) == ["a/1", "a/2", "b/1", "b/2"]
    look(arbiter, 5.1, "a b")
    arbiter.tick(5.122)
    assert stopped(arbiter) == ["b/1", "b/2"]
    assert arbiter.deadline == pytest.approx(5.123), "the first had 2 ms more"


# --- how often ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("isolation", "classes", "busy", "seconds"),
    [
        (BEST, {"a": NORMAL, "b": NORMAL}, "", REST),
        (BEST, {"a": NORMAL, "b": NORMAL}, "a", DOZE),  # nothing is decided by it
        (BURST, {"a": NORMAL, "b": NORMAL}, "a b", DOZE),
        (FIXED, {"a": NORMAL, "b": NORMAL}, "a", SAMPLE),
        (BEST, {"on": ONLINE, "b": OFFLINE}, "b", SAMPLE),
        (BEST, {"on": ONLINE, "b": OFFLINE}, "on", SAMPLE),
        (BEST, {"on": ONLINE, "b": NORMAL}, "b", DOZE),
        (BEST, {"on": ONLINE, "b": OFFLINE}, "", REST),
    ],
)
def test_activity_is_read_often_only_where_it_decides_something(
    isolation: Isolation, classes: dict[str, AppClass], busy: str, seconds: float
) -> None:
    assert look(card(isolation, **classes), 5.0, busy).deadline == 5.0 + seconds


@pytest.mark.parametrize(
    ("delay", "armed"),
    [
        (0.0, ["on/1"]),  # it was let go: its next launch is to be heard of at once
        (0.1, []),  # it holds the card and is read often
    ],
)
def test_online_work_is_armed_as_soon_as_it_rests_and_others_when_they_are_quiet(
    delay: float, armed: list[str]
) -> None:
    arbiter = card(BEST, delay, on=ONLINE, n=NORMAL, a=OFFLINE)
    look(arbiter, 4.9, "")
    names = ("on/1", "n/1", "a/1")
    arbiter.read({name: Reading(2, False) for name in names}, 5.0)
    arbiter.tick(5.0)
    arbiter.read({name: Reading(2, False) for name in names}, 5.01)
    assert [order.context for order in arbiter.tick(5.01) if isinstance(order, Arm)] == armed


# --- a trial decides while it lasts -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "sensor", "other", "waiting"),
    [
        (Phase.EVEN, EVEN_US, EVEN_US, []),
        (Phase.FAVOURED, LONG_US, SHORT_US, []),
        (Phase.PAUSED, EVEN_US, EVEN_US, ["b/1"]),
        (Phase.GATED, EVEN_US, EVEN_US, []),
        (Phase.EVEN_AGAIN, EVEN_US, EVEN_US, []),
    ],
)
def test_trial_decides_slices_and_pauses_of_those_that_take_part(
    phase: Phase, sensor: int, other: int, waiting: list[str]
) -> None:
    arbiter = card(FIXED, a=NORMAL, b=NORMAL, c=NORMAL, d=NORMAL, e=NORMAL)
    arbiter.trial = Trial("a/1", frozenset({"b/1", "c/1", "gone/1"}), phase=phase, until=5.001)
    look(arbiter, 5.0, "a b d")
    assert [arbiter.slice_of(f"{tenant}/1") for tenant in "abcd"] == [sensor, other, other, slices.FAIR]
    assert stopped(arbiter) == [*waiting, "d/1"], (
        "who is idle is not paused, and who takes no part waits for its window"
    )
    assert arbiter.deadline == 5.001


def test_trial_that_waits_for_longer_does_not_move_the_next_decision() -> None:
    arbiter = card(a=NORMAL, b=NORMAL)
    arbiter.trial = Trial("a/1", frozenset({"b/1"}), until=9.0)
    assert look(arbiter, 5.0, "a b").deadline == 5.0 + DOZE
