"""Events in, orders out. What was ordered is not ordered again; what may not hold any more is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.arbiter import slices
from aliquot.arbiter.card import DOZE, REST, SAMPLE, CardArbiter
from aliquot.arbiter.orders import Arm, Order, Pause, Resume, SetSlice
from aliquot.arbiter.roster import LONGEST_SETTLING, SETTLING, Member, Reading
from aliquot.model.claim import AppClass
from aliquot.model.node import Isolation
from aliquot.model.tenant import SharingRules, State

ONLINE, OFFLINE, NORMAL = AppClass.ONLINE, AppClass.OFFLINE, AppClass.NORMAL
ALONE = slices.FAIR + slices.SWITCH  # the slice where all are equal
BUSY, IDLE = Reading(1, True, True), Reading(1, False)


def card(
    *contexts: tuple[str, AppClass], isolation: Isolation = Isolation.BEST_EFFORT, delay: float = 0.1
) -> CardArbiter:
    """With a context of each name (tenant/process) and the class of its tenant."""
    arbiter = CardArbiter(SharingRules(isolation, delay))
    for name, app_class in contexts:
        tenant = name.partition("/")[0]
        arbiter.admit(Member(tenant, app_class, 250))
        arbiter.join(name, tenant)
    return arbiter


def look(arbiter: CardArbiter, now: float, **busy: bool) -> list[Order]:
    """A round in which these contexts (by tenant) have work and all others none."""
    readings = {name: BUSY if busy.get(context.tenant) else IDLE for name, context in arbiter.roster.contexts.items()}
    arbiter.read(readings, now)
    return arbiter.tick(now)


def kinds(orders: list[Order], kind: type[Order]) -> list[str]:
    return [order.context for order in orders if isinstance(order, kind)]


def test_an_empty_card_needs_nothing() -> None:
    arbiter = CardArbiter()
    assert arbiter.tick(0.0) == []
    assert arbiter.deadline == REST


def test_a_new_context_gets_its_slice_is_resumed_and_armed() -> None:
    """Resumed, since a daemon before us may have died with it paused."""
    arbiter = card(("a/1", NORMAL))
    assert look(arbiter, 0.0) == [SetSlice("a/1", ALONE), Resume("a/1"), Arm("a/1")]


@pytest.mark.parametrize("isolation", list(Isolation))
@pytest.mark.parametrize("second", [NORMAL, OFFLINE])
def test_tick_does_not_repeat_orders(isolation: Isolation, second: AppClass) -> None:
    arbiter = card(("a/1", ONLINE), ("b/1", second), ("c/1", OFFLINE), isolation=isolation)
    look(arbiter, 0.0, a=True, b=True, c=True)
    assert arbiter.tick(0.0) == []
    assert look(arbiter, 0.001, a=True, b=True, c=True) == []


def test_who_registers_again_is_ordered_everything_again() -> None:
    """Channels made while it was paused are not covered by the pause."""
    arbiter = card(("on/1", ONLINE), ("off/1", OFFLINE))
    look(arbiter, 0.0, on=True, off=True)
    assert arbiter.paused("off/1")
    arbiter.join("off/1", "off")
    assert look(arbiter, 0.01, on=True, off=True) == [Pause("off/1"), SetSlice("off/1", slices.TINY)]


def test_a_context_that_is_being_made_is_let_alone() -> None:
    """On an H200 one in two that were paused then never ran again."""
    arbiter = card(("on/1", ONLINE))
    arbiter.admit(Member("off", OFFLINE, None))
    arbiter.join("off/1", "off", now=5.0)
    look(arbiter, 5.1, on=True, off=True)
    assert not arbiter.paused("off/1")
    assert arbiter.slice_of("off/1") == slices.BRIEF
    assert arbiter.deadline <= 5.0 + SETTLING
    look(arbiter, 5.0 + SETTLING, on=True, off=True)
    assert arbiter.paused("off/1")


@given(st.floats(0.0, SETTLING - 0.001))
def test_deadline_is_not_after_a_new_context_is_made(after: float) -> None:
    """Nothing else wakes us then: it is quiet."""
    arbiter = card()
    arbiter.admit(Member("off", OFFLINE, None))
    arbiter.join("off/1", "off", now=5.0)
    arbiter.tick(5.0 + after)
    assert arbiter.deadline == 5.0 + SETTLING


def test_deadline_is_not_after_the_end_of_a_turn() -> None:
    windows = card(("a/1", NORMAL), ("b/1", NORMAL), isolation=Isolation.FIXED_SHARE)
    turns = card(("on/1", ONLINE), ("a/1", OFFLINE), ("b/1", OFFLINE), delay=0.0)
    for arbiter, length in ((windows, 0.025), (turns, 0.04)):
        look(arbiter, 0.0, a=True, b=True)
        look(arbiter, length - SAMPLE / 2, a=True, b=True)
        assert arbiter.deadline == pytest.approx(length)


def test_a_context_that_registers_all_the_time_settles_nevertheless() -> None:
    arbiter = card(("on/1", ONLINE))
    arbiter.admit(Member("off", OFFLINE, None))
    now = 0.0
    while not arbiter.paused("off/1"):
        arbiter.join("off/1", "off", now=now)
        arbiter.settle("off/1", now)
        look(arbiter, now, on=True, off=True)
        now += 0.05
    assert now == pytest.approx(LONGEST_SETTLING + 0.05, abs=0.06)


def test_a_paused_context_stays_paused_when_it_registers_more() -> None:
    arbiter = card(("on/1", ONLINE), ("off/1", OFFLINE))
    look(arbiter, 5.0, on=True, off=True)
    arbiter.settle("off/1", 5.1)
    look(arbiter, 5.1, on=True, off=True)
    assert arbiter.paused("off/1")


def test_forget_orders_everything_again() -> None:
    arbiter = card(("a/1", NORMAL))
    look(arbiter, 0.0, a=True)
    arbiter.forget("a/1")
    assert SetSlice("a/1", ALONE) in look(arbiter, 0.01, a=True)
    arbiter.forget("nobody")
    assert look(arbiter, 0.02, a=True) == []


def test_a_context_that_left_is_ordered_nothing() -> None:
    arbiter = card(("a/1", NORMAL), ("b/1", NORMAL))
    look(arbiter, 0.0)
    arbiter.join("b/1", "b")
    arbiter.dismiss("b")
    arbiter.wake("b/1", 0.0)
    assert look(arbiter, 0.01) == []
    assert arbiter.state("b/1") is State.IDLE


def test_a_context_is_ordered_nothing_before_its_tenant_is_known() -> None:
    arbiter = CardArbiter()
    arbiter.join("a/1", "a")
    assert look(arbiter, 0.0, a=True) == []
    arbiter.admit(Member("a", NORMAL, None))
    assert Resume("a/1") in look(arbiter, 0.1, a=True)


def test_the_pause_comes_first_where_a_slice_is_tiny() -> None:
    """Two tiny slices that contend get nothing done, not even for the time of an order."""
    arbiter = card(("on/1", ONLINE), ("a/1", OFFLINE), ("b/1", OFFLINE), delay=0.0)
    look(arbiter, 0.0, a=True, b=True)
    orders = look(arbiter, 0.05, a=True, b=True)
    assert orders == [Pause("a/1"), Resume("b/1")]


def test_the_next_is_resumed_first_where_none_is_so_that_the_card_is_never_without_work() -> None:
    arbiter = card(("a/1", NORMAL), ("b/1", NORMAL), isolation=Isolation.FIXED_SHARE)
    look(arbiter, 0.0, a=True, b=True)
    orders = look(arbiter, 0.03, a=True, b=True)
    assert orders == [Resume("b/1"), Pause("a/1")]


def test_an_idle_front_context_takes_the_card_when_it_wakes() -> None:
    arbiter = card(("on/1", ONLINE), ("off/1", OFFLINE))
    look(arbiter, 0.0, off=True)
    arbiter.wake("on/1", 0.2)
    assert arbiter.tick(0.2) == [Pause("off/1")]
    assert arbiter.held
    assert arbiter.state("off/1") is State.PAUSED
    assert arbiter.preemptions == {"off": 1}


def test_held_work_is_let_go_exactly_when_the_delay_is_over() -> None:
    arbiter = card(("on/1", ONLINE), ("off/1", OFFLINE), delay=0.1)
    look(arbiter, 7.0, on=False, off=True)
    arbiter.wake("on/1", 7.3)
    arbiter.tick(7.3)
    now = 7.3
    while arbiter.held:
        now = arbiter.deadline
        orders = look(arbiter, now, off=True)
    assert now == 7.3 + 0.1
    assert orders[0] == Resume("off/1")


def test_an_idle_context_is_never_paused() -> None:
    """It may be inside some call of the driver that needs the card and is no launch."""
    for isolation in Isolation:
        arbiter = card(("on/1", ONLINE), ("a/1", OFFLINE), ("b/1", OFFLINE), isolation=isolation)
        look(arbiter, 0.0, on=True)
        assert not arbiter.paused("a/1")
        assert not arbiter.paused("b/1")
        look(arbiter, 0.01, on=True, a=True)
        assert arbiter.paused("a/1")
        assert not arbiter.paused("b/1")


def test_exactly_one_offline_context_with_work_may_run_beside_the_front() -> None:
    arbiter = card(("on/1", ONLINE), *((f"{name}/1", OFFLINE) for name in "abcd"), delay=0.0)
    now, seen = 0.0, set()
    while now < 1.0:
        look(arbiter, now, a=True, b=True, c=True, d=True)
        running = [name for name in "abcd" if not arbiter.paused(f"{name}/1")]
        assert len(running) == 1
        seen |= set(running)
        now = arbiter.deadline
    assert seen == set("abcd")


def test_without_anybody_in_front_offline_tenants_share_as_all_others_do() -> None:
    arbiter = card(("a/1", OFFLINE), ("b/1", OFFLINE))
    look(arbiter, 0.0, a=True, b=True)
    assert arbiter.slice_of("a/1") == arbiter.slice_of("b/1") == ALONE
    assert not arbiter.paused("a/1")
    assert not arbiter.paused("b/1")


def test_when_the_last_in_front_leaves_those_behind_are_put_in_front() -> None:
    arbiter = card(("on/1", ONLINE), ("a/1", OFFLINE), ("b/1", OFFLINE))
    look(arbiter, 0.0, on=True, a=True, b=True)
    arbiter.leave("on/1")
    orders = look(arbiter, 0.01, a=True, b=True)
    assert orders == [SetSlice("a/1", ALONE), SetSlice("b/1", ALONE), Resume("a/1"), Resume("b/1")]


def test_a_change_of_class_changes_the_ranks() -> None:
    arbiter = card(("on/1", ONLINE), ("a/1", NORMAL))
    look(arbiter, 0.0, on=True, a=True)
    assert not arbiter.paused("a/1")
    arbiter.admit(Member("a", OFFLINE, None))
    assert Pause("a/1") in look(arbiter, 0.01, on=True, a=True)


@pytest.mark.parametrize(("delay", "longer"), [(0.0, True), (0.1, False)])
def test_the_one_busy_online_tenant_has_a_longer_slice_only_where_offline_work_may_cut_in(
    delay: float, longer: bool
) -> None:
    """It gains nothing by it when it is alone on the card, and another online tenant would wait for its end."""
    arbiter = card(("a/1", ONLINE), ("b/1", ONLINE), ("off/1", OFFLINE), delay=delay)
    look(arbiter, 0.0, a=True)
    first, second = arbiter.slice_of("a/1"), arbiter.slice_of("b/1")
    assert first is not None
    assert second is not None
    assert (first > second) is longer


def test_activity_is_sampled_often_only_while_it_decides_something() -> None:
    alone = card(("a/1", NORMAL), ("b/1", NORMAL))
    look(alone, 0.0, a=True, b=True)
    assert alone.deadline == DOZE
    beside = card(("on/1", ONLINE), ("off/1", OFFLINE), delay=0.0)
    look(beside, 0.0, off=True)
    assert beside.deadline == SAMPLE
    look(beside, 1.0)
    look(beside, 2.0)
    assert beside.deadline == 2.0 + REST


def test_the_deadline_is_finite_for_any_tenants() -> None:
    for isolation in Isolation:
        arbiter = card(("a/1", NORMAL), ("b/1", OFFLINE), isolation=isolation)
        now = 0.0
        for _ in range(50):
            look(arbiter, now, a=True, b=True)
            assert now < arbiter.deadline < math.inf
            now = arbiter.deadline


def test_weights_are_the_slices_of_those_that_may_run() -> None:
    arbiter = card(("on/1", ONLINE), ("a/1", OFFLINE), ("b/1", OFFLINE), delay=0.0)
    look(arbiter, 0.0, a=True, b=True)
    assert arbiter.weights() == ({"on/1": slices.LONG}, {"a/1": slices.TINY})


def test_a_context_without_orders_weighs_a_fair_slice() -> None:
    arbiter = card(("a/1", NORMAL))
    assert arbiter.weights() == ({"a/1": slices.FAIR}, {})


@pytest.mark.parametrize("isolation", [Isolation.FIXED_SHARE, Isolation.BURST_SHARE])
def test_contexts_at_the_gate_take_turns(isolation: Isolation) -> None:
    arbiter = card(("a/1", NORMAL), ("b/1", NORMAL), isolation=isolation)
    arbiter.join("b/1", "b", preemptible=False)
    look(arbiter, 0.0, a=True, b=True)
    assert [arbiter.paused("a/1"), arbiter.paused("b/1")] == [False, True]
    assert arbiter.state("b/1") is State.WAITING


def test_nothing_is_kept_of_a_tenant_that_is_gone() -> None:
    """Pods come and go by the thousand, and none has the id of another."""
    arbiter = card(("on/1", ONLINE), ("off/1", OFFLINE))
    look(arbiter, 0.0, on=False, off=True)
    look(arbiter, 1.0, on=True, off=True)
    assert arbiter.preemptions["off"] == 1
    arbiter.dismiss("off")
    assert "off" not in arbiter.preemptions


def test_online_work_is_looked_at_no_more_often_than_asked() -> None:
    """Where many cards hold offline work, each is looked at less often."""
    arbiter = card(("on/1", ONLINE), ("off/1", OFFLINE), delay=0.001)
    look(arbiter, 1.0, on=True, off=True)
    assert arbiter.held
    assert arbiter.deadline == pytest.approx(1.001)
    arbiter.look = 0.003
    look(arbiter, 1.001, on=True, off=True)
    assert arbiter.deadline == pytest.approx(1.004)
    look(arbiter, 1.004, off=True)
    look(arbiter, 1.008, off=True)
    assert not arbiter.held


def test_the_processes_of_a_tenant_begin_its_windows_in_turn() -> None:
    arbiter = card(("a/1", NORMAL), ("a/2", NORMAL), ("a/3", NORMAL), ("b/1", NORMAL), isolation=Isolation.FIXED_SHARE)
    now, begun = 0.0, []
    while now < 2.0:
        resumed = kinds(look(arbiter, now, a=True, b=True), Resume)
        begun += [name for name in resumed[:1] if name.startswith("a") and now > 0.5]
        now = max(now + 1e-6, min(arbiter.deadline, now + SAMPLE))
    order = ["a/1", "a/2", "a/3"]
    at = order.index(begun[0])
    assert len(begun) >= 10
    assert begun == [order[(at + n) % 3] for n in range(len(begun))]
    arbiter.leave("a/2", now)
    arbiter.dismiss("a")
    assert arbiter._first.keys() == {"b"}
