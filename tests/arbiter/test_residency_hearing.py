"""Tenants that do not obey an order to move, or take too long: how often they are asked again."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.arbiter.residency import (
    ASK_AGAIN_MOST,
    RETRY_MOST,
    UNHEARD,
    Errand,
    Hearing,
    Occupant,
    decide,
    pause_after,
)
from aliquot.model.residency import Where
from kit.cards.occupants import GIB, H200, ONLINE, offline


def test_tenant_that_does_not_hear_is_passed_over_and_asked_again_less_and_less_often() -> None:
    """`deaf` is the first choice, because it is the smaller one: it is stopped, for 20 minutes."""
    deaf, other = offline("deaf", 40), offline("other", 60)
    online = Occupant("online", ONLINE, Where.RESIDENT, 0, wants=60 * GIB)
    hearing, asked, now, ordered, left_at = Hearing(), [], 0.0, False, None
    while now < 1200:
        if hearing.note(pending=ordered, works=False, now=now):
            ordered = False
        there = [replace(deaf, retry_at=hearing.ask_at), other, online]
        for order in decide(there, replace(H200, card=141 * GIB), now).orders:
            if order.tenant == "deaf" and not ordered:
                asked.append(now)
                ordered = True
            elif order.tenant == "other" and left_at is None:
                left_at = now
        now += 0.5
    assert asked[0] == 0.0
    assert left_at is not None
    assert left_at <= UNHEARD + 1  # long before its allocation gives up
    gaps = [later - before for before, later in pairwise(asked)]
    assert len(asked) >= 4
    assert gaps == sorted(gaps)
    assert gaps[-1] <= ASK_AGAIN_MOST + UNHEARD + 1


def test_tenant_that_works_on_and_ignores_orders_does_not_keep_others_from_leaving() -> None:
    """`deaf` is the first choice, and launches something in every round."""
    deaf, other = offline("deaf", 40), offline("other", 60)
    online = Occupant("online", ONLINE, Where.RESIDENT, 0, wants=60 * GIB)
    hearing, now, ordered = Hearing(), 0.0, False
    while other.where is Where.RESIDENT:
        assert now <= UNHEARD + 1, "long before its allocation gives up"
        if hearing.note(pending=ordered, works=True, now=now):
            ordered = False
        there = [replace(deaf, retry_at=hearing.ask_at), other, online]
        for order in decide(there, replace(H200, card=141 * GIB), now).orders:
            if order.tenant == "deaf":
                ordered = True
            else:
                other = replace(other, where=Where.LEAVING)
        now += 0.5


def test_tenant_that_works_again_may_be_asked_at_once() -> None:
    hearing = Hearing()
    assert not hearing.note(pending=True, works=False, now=0.0)
    assert hearing.note(pending=True, works=False, now=UNHEARD + 0.1)
    assert hearing.ask_at > UNHEARD + 1
    assert not hearing.note(pending=False, works=True, now=UNHEARD + 1)
    assert hearing == Hearing()


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.floats(0.0, 20.0)), max_size=60))
def test_order_is_withdrawn_only_after_its_time_and_asking_always_comes_again(
    seen: list[tuple[bool, bool, float]],
) -> None:
    hearing, now, pending_for = Hearing(), 0.0, 0.0
    for pending, works, passes in seen:
        now += passes
        pending_for = pending_for + passes if pending and hearing.since is not None else 0.0
        withdrawn = hearing.note(pending=pending, works=works, now=now)
        assert withdrawn == (pending and pending_for > UNHEARD)
        assert hearing.ask_at <= now + ASK_AGAIN_MOST
        assert not withdrawn or hearing.ask_at > now


@given(st.integers(1, 10_000), st.floats(0.1, 60.0))
def test_pauses_between_tries_double_up_to_the_longest(failures: int, first: float) -> None:
    pause = pause_after(failures, first)
    assert first <= pause <= max(first, RETRY_MOST)
    assert pause_after(failures + 1, first) == min(2 * pause, max(first, RETRY_MOST))
    assert pause_after(1, first) == first


@pytest.mark.parametrize(("failures", "pause"), [(16, 2.0), (17, 4.0), (18, 4.0), (10_000, 4.0)])
def test_pause_doubles_sixteen_times_at_most(failures: int, pause: float) -> None:
    assert pause_after(failures, 2.0**-14) == pause


def test_errand_ends_when_nothing_is_under_way_or_when_it_takes_too_long() -> None:
    errand = Errand()
    errand.note(under_way=True, takes=0.0, now=5.0)  # not ordered: what its page says is nothing to us
    assert (errand.is_on, errand.ask_at, errand.overdue) == (False, -inf, 0)
    errand.begin(True, 10.0)
    errand.begin(True, 12.0)  # told again: it began when it was told first
    assert (errand.is_on, errand.since) == (True, 10.0)
    errand.begin(False, 13.0)
    assert (errand.leave, errand.since) == (False, 13.0)
    errand.note(under_way=True, takes=3.0, now=16.0)
    assert errand.is_on
    errand.note(under_way=False, takes=3.0, now=16.0)
    assert (errand.is_on, errand.overdue, errand.ask_at) == (False, 0, -inf)


def test_tenant_whose_errands_take_too_long_is_asked_less_and_less_often_until_one_ends() -> None:
    errand, pauses = Errand(), []
    for at in range(20):
        errand.begin(True, 1000.0 * at)
        errand.note(under_way=True, takes=3.0, now=1000.0 * at + 4.0)
        assert not errand.is_on
        pauses.append(errand.ask_at - 1000.0 * at - 4.0)
    assert pauses == [10.0, 20.0, 40.0, 80.0, 160.0] + [300.0] * 15
    assert errand.overdue == 16
    errand.begin(True, 0.0)
    errand.note(under_way=False, takes=3.0, now=1.0)
    assert errand.overdue == 0


def test_order_is_withdrawn_after_more_than_its_time_and_asked_again_twice_as_late() -> None:
    hearing = Hearing()
    assert [hearing.note(pending=True, works=True, now=now) for now in (10.0, 15.0, 15.5)] == [False, False, True]
    assert (hearing.ask_at, hearing.unheard) == (25.5, 1)
    assert [hearing.note(pending=True, works=False, now=now) for now in (30.0, 36.0)] == [False, True]
    assert (hearing.ask_at, hearing.unheard) == (56.0, 2)
    assert hearing.note(pending=False, works=False, now=37.0) is False
    assert (hearing.ask_at, hearing.unheard) == (56.0, 2)
    assert hearing.note(pending=False, works=True, now=38.0) is False
    assert (hearing.ask_at, hearing.unheard) == (-inf, 0)
