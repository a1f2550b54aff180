"""Contexts come, register more, register again and go: when each may be paused, and what its tenant owes for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aliquot.arbiter.card import REST, SAMPLE, CardArbiter
from aliquot.arbiter.gaps import LATENCY
from aliquot.arbiter.orders import Arm, Hold, Order, Pause, Resume, SetSlice
from aliquot.arbiter.roster import LONGEST_SETTLING, SETTLING, Member, Reading
from aliquot.model.claim import AppClass
from aliquot.model.node import Isolation
from aliquot.model.tenant import SharingRules

ONLINE, OFFLINE, NORMAL = AppClass.ONLINE, AppClass.OFFLINE, AppClass.NORMAL
FIXED, BURST, BEST = Isolation.FIXED_SHARE, Isolation.BURST_SHARE, Isolation.BEST_EFFORT
WORKS, IDLE = Reading(1, True, True), Reading(1, False)


def card(isolation: Isolation = BEST, delay: float | None = 0.0, /, **members: AppClass) -> CardArbiter:
    """A card with these tenants, each with a quota of half the card."""
    arbiter = CardArbiter(SharingRules(isolation, delay))
    for tenant, app_class in members.items():
        arbiter.admit(Member(tenant, app_class, 500))
    return arbiter


def kinds(orders: list[Order]) -> list[type[Order]]:
    return [type(order) for order in orders]


Events = Callable[[CardArbiter], None]


@pytest.mark.parametrize(
    ("events", "settles"),
    [
        (lambda arbiter: arbiter.join("a/1", "a", now=5.0), 5.0 + SETTLING),
        (lambda arbiter: (arbiter.join("a/1", "a", now=5.0), arbiter.settle("a/1", 5.125)), 5.125 + SETTLING),
        (lambda arbiter: (arbiter.join("a/1", "a", now=5.0), arbiter.join("a/1", "a", now=5.125)), 5.125 + SETTLING),
        # However often it registers something, no longer than this from the first time on,
        (lambda arbiter: (arbiter.join("a/1", "a", now=5.0), arbiter.settle("a/1", 7.9)), 5.0 + LONGEST_SETTLING),
        (lambda arbiter: (arbiter.join("a/1", "a", now=5.0), arbiter.join("a/1", "a", now=7.9)), 5 + LONGEST_SETTLING),
        # unless it left in between.
        (
            lambda arbiter: (
                arbiter.join("a/1", "a", now=5.0),
                arbiter.leave("a/1", 6.0),
                arbiter.join("a/1", "a", now=7.9),
            ),
            7.9 + SETTLING,
        ),
        # The first of two decides when to look.
        (lambda arbiter: (arbiter.join("a/1", "a", now=5.0), arbiter.join("a/2", "a", now=5.125)), 5.0 + SETTLING),
    ],
)
def test_context_is_let_alone_for_a_while_after_it_registered_something(events: Events, settles: float) -> None:
    arbiter = card(a=NORMAL)
    events(arbiter)
    context = arbiter.roster.contexts["a/1"]
    arbiter.tick(settles - 0.0625)
    assert context.settling
    assert arbiter.deadline == settles
    arbiter.tick(settles)
    assert not context.settling


def test_context_that_was_there_before_us_is_not_being_made() -> None:
    arbiter = card(a=NORMAL)
    arbiter.join("a/1", "a")
    arbiter.tick(0.0)
    assert not arbiter.roster.contexts["a/1"].settling
    assert arbiter.deadline == REST


def test_what_nobody_knows_may_register_leave_and_be_forgotten() -> None:
    arbiter = card(a=NORMAL)
    arbiter.settle("a/1", 1.0)
    arbiter.leave("a/1", 1.0)
    arbiter.forget("a/1")
    arbiter.wake("a/1", 1.0)
    arbiter.dismiss("b")
    assert arbiter.tick(1.0) == []
    assert not arbiter.paused("a/1")
    assert arbiter.slice_of("a/1") is None


def test_context_held_at_the_gate_that_registers_more_is_still_being_made() -> None:
    """Only one that is paused was made before."""
    arbiter = card(FIXED, a=NORMAL)
    arbiter.join("a/1", "a", now=0.0)
    arbiter.read({"a/1": WORKS}, 0.0)
    arbiter.tick(0.0)
    arbiter.read({"a/1": Reading(2, True, True, had=SETTLING)}, 0.25)
    assert kinds(arbiter.tick(0.25)) == [Hold]
    arbiter.settle("a/1", 0.25)
    arbiter.tick(0.5)
    assert arbiter.roster.contexts["a/1"].settling
    assert not arbiter.paused("a/1")


@pytest.mark.parametrize(
    ("paused", "made"), [(True, [SetSlice, Resume, Arm]), (False, [SetSlice, Arm])], ids=["maybe-paused", "runs"]
)
def test_context_is_resumed_at_first_unless_it_is_known_to_run(paused: bool, made: list[type[Order]]) -> None:
    arbiter = card(a=NORMAL)
    arbiter.join("a/1", "a", paused=paused)
    assert kinds(arbiter.tick(0.0)) == made


@pytest.mark.parametrize("paused", [True, False])
def test_context_that_runs_and_registers_again_is_not_resumed_again(paused: bool) -> None:
    arbiter = card(a=NORMAL)
    arbiter.join("a/1", "a")
    arbiter.tick(0.0)
    arbiter.join("a/1", "a", paused=paused)
    assert kinds(arbiter.tick(0.1)) == [SetSlice, Arm]


def test_context_that_is_held_and_registers_again_is_held_again() -> None:
    """Nothing is known of what it registered since."""
    arbiter = card(BEST, 0.1, on=ONLINE, off=OFFLINE)
    arbiter.join("on/1", "on")
    arbiter.join("off/1", "off")
    arbiter.read({"on/1": WORKS, "off/1": WORKS}, 1.0)
    arbiter.tick(1.0)
    arbiter.join("off/1", "off", now=1.01, paused=False)
    assert kinds(arbiter.tick(1.01)) == [Pause, SetSlice]


def test_what_woke_up_is_armed_again_when_it_is_quiet() -> None:
    arbiter = card(a=NORMAL)
    arbiter.join("a/1", "a")
    assert Arm("a/1") in arbiter.tick(0.0)
    arbiter.wake("a/1", 0.1)
    assert arbiter.roster.contexts["a/1"].last_active == 0.1
    assert arbiter.tick(0.1) == []
    arbiter.read({"a/1": IDLE}, 0.1)
    arbiter.read({"a/1": IDLE}, 0.2)
    assert arbiter.tick(0.2) == [Arm("a/1")]


def test_what_woke_up_and_is_quiet_again_before_the_next_decision_is_armed_again() -> None:
    """Its message was sent: the next launch would send none."""
    arbiter = card(a=NORMAL)
    arbiter.join("a/1", "a")
    arbiter.read({"a/1": IDLE}, 4.9)
    assert Arm("a/1") in arbiter.tick(4.9)
    arbiter.wake("a/1", 5.0)
    arbiter.read({"a/1": IDLE}, 5.1)
    assert arbiter.tick(5.1) == [Arm("a/1")]


def test_what_registers_again_may_be_preemptible_no_more() -> None:
    arbiter = card(a=NORMAL)
    arbiter.join("a/1", "a")
    assert arbiter.roster.contexts["a/1"].preemptible
    arbiter.join("a/1", "a", preemptible=False)
    assert not arbiter.roster.contexts["a/1"].preemptible


def held_until(arbiter: CardArbiter, name: str, now: float) -> float | None:
    """When the context, which just joined, is let go: at the deadline; None: it was not held."""
    if Hold(name) not in arbiter.tick(now):
        return None
    until = arbiter.deadline
    for _ in range(100):  # other contexts are looked at in between
        if Resume(name) in arbiter.tick(until):
            return until
        until = arbiter.deadline
    raise AssertionError


@pytest.mark.parametrize(
    ("isolation", "members", "reading", "joined", "left", "until"),
    [
        # It worked: what it had since the last reading is owed, but no more than until the next would have come,
        (FIXED, {"a": NORMAL}, WORKS, 1.0, 1.004, 1.012),
        (FIXED, {"a": NORMAL}, WORKS, 1.0, 1.1, 1.1 + 2 * SAMPLE),
        (FIXED, {"a": OFFLINE}, WORKS, 1.0, 1.1, 1.1 + 2 * SAMPLE),
        (FIXED, {"on": ONLINE, "a": OFFLINE}, WORKS, 1.0, 1.1, 1.1 + 2 * SAMPLE),
        # and nothing by who did not, was made long ago, or is not bound by windows.
        (FIXED, {"a": NORMAL}, IDLE, 1.0, 1.1, None),
        (FIXED, {"a": NORMAL}, WORKS, 0.5, 1.1, None),
        (FIXED, {"on": ONLINE, "a": NORMAL}, WORKS, 1.0, 1.1, None),
        (BURST, {"a": NORMAL}, WORKS, 1.0, 1.1, None),
        (BEST, {"a": NORMAL}, WORKS, 1.0, 1.1, None),
    ],
)
def test_tenant_owes_for_a_context_that_left_before_it_could_be_paused(
    isolation: Isolation,
    members: dict[str, AppClass],
    reading: Reading,
    joined: float,
    left: float,
    until: float | None,
) -> None:
    arbiter = card(isolation, **members)
    for tenant in members:
        arbiter.join(f"{tenant}/1", tenant, now=joined)
    arbiter.read({"a/1": reading}, 1.0)
    arbiter.tick(1.0)
    arbiter.tick(left)
    arbiter.leave("a/1", left)
    arbiter.join("a/2", "a", now=left)
    assert held_until(arbiter, "a/2", left) == (None if until is None else pytest.approx(until))


def test_debt_of_a_tenant_goes_with_it() -> None:
    arbiter = card(FIXED, a=NORMAL)
    arbiter.join("a/1", "a", now=1.0)
    arbiter.read({"a/1": WORKS}, 1.0)
    arbiter.read({"a/1": Reading(2, True, True, had=0.2)}, 1.2)
    arbiter.tick(1.2)
    arbiter.dismiss("a")
    assert arbiter.roster.contexts == {}
    arbiter.admit(Member("a", NORMAL, 500))
    arbiter.join("a/2", "a", now=1.2)
    assert held_until(arbiter, "a/2", 1.2) is None


@pytest.mark.parametrize(
    ("members", "again", "until"),
    [
        ({"a": NORMAL}, True, 1.2),
        ({"on": ONLINE, "a": OFFLINE}, True, 1.2),
        ({"on": ONLINE, "a": NORMAL}, True, None),
        ({"a": NORMAL}, False, None),  # the same context registers again: it is no other
    ],
)
def test_what_a_context_had_while_it_was_made_is_paid_when_another_of_its_tenant_comes(
    members: dict[str, AppClass], again: bool, until: float | None
) -> None:
    arbiter = card(FIXED, **members)
    for tenant in members:
        arbiter.join(f"{tenant}/1", tenant, now=1.0)
    arbiter.read({"a/1": WORKS}, 1.0)
    arbiter.tick(1.0)
    arbiter.read({"a/1": Reading(2, True, True, had=0.1)}, 1.0)
    name = "a/2" if again else "a/1"
    arbiter.join(name, "a", now=1.0)
    assert held_until(arbiter, name, 1.0) == (None if until is None else pytest.approx(until))


@pytest.mark.parametrize("front", [True, False])
def test_who_ran_beside_one_that_was_made_gets_that_time_again(front: bool) -> None:
    """Its window is longer by what the newcomer had of it."""
    arbiter = card(FIXED, **({} if front else {"on": ONLINE}), a=OFFLINE, b=OFFLINE)
    if not front:
        arbiter.join("on/1", "on")
    arbiter.join("a/1", "a")
    arbiter.join("b/1", "b", now=1.0)
    arbiter.read({"a/1": WORKS, "b/1": WORKS}, 1.0)
    arbiter.tick(1.0)
    arbiter.tick(1.049)
    assert arbiter.deadline == pytest.approx(1.05)
    arbiter.read({"a/1": Reading(2, True, True), "b/1": Reading(2, True, True, had=0.02)}, 1.049)
    arbiter.tick(1.0695)
    assert arbiter.deadline == pytest.approx(1.07)


def test_what_was_learned_of_an_online_tenant_outlasts_a_change_of_it_and_not_its_end() -> None:
    arbiter = card(BEST, None, on=ONLINE, off=OFFLINE)
    gaps = arbiter._gaps["on"]
    assert gaps.latency == LATENCY
    arbiter.admit(Member("on", ONLINE, 500, latency=0.002))
    assert arbiter._gaps["on"] is gaps
    assert gaps.latency == 0.002
    arbiter.dismiss("on")
    assert "on" not in arbiter._gaps
