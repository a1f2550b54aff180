"""How long online work keeps the card, and what it takes from offline work."""

from __future__ import annotations

import pytest

from aliquot.arbiter.card import SAMPLE, CardArbiter
from aliquot.arbiter.gaps import FIRST
from aliquot.arbiter.roster import IDLE_AFTER, Member
from aliquot.arbiter.timeline import Taken
from aliquot.model.tenant import SharingRules
from kit.cards.arbiters import BEST, NORMAL, OFFLINE, ONLINE, card, look


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
def test_release_delay_is_learned_only_from_online_tenants(of_node: float | None, delay: float) -> None:
    arbiter = CardArbiter(SharingRules(release_delay=of_node))
    arbiter.admit(Member("off", OFFLINE, None))
    assert arbiter.delay_of("off") == arbiter.delay_of("nobody") == delay
    assert arbiter.missed_of("off") == arbiter.missed_of("nobody") == 0


@pytest.mark.parametrize(("latency", "missed"), [(0.001, 3), (None, 0)])
def test_latency_is_missed_only_by_tenants_that_accept_one(latency: float | None, missed: int) -> None:
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
def test_work_that_begins_while_the_card_is_held_loses_it_and_without_a_delay_nothing(
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
    arbiter.read({}, 1.001, {"on": (*[0] * 23, 5)})
    assert arbiter._gaps["on"]._switches == (5 if contended else 0)
