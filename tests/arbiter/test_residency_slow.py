"""Tenants that only the driver's checkpoint can move: slowly, as a whole, and not to the pool."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aliquot.arbiter.residency import SHORTEST_TURN, STARVES, Leave, Memory, Obstacle, Occupant, Return, decide
from aliquot.model.claim import AppClass
from aliquot.model.residency import Where

GIB = 1 << 30
CARD = Memory(card=100 * GIB, pool=200 * GIB)


def fast(name: str, gib: int, **more: object) -> Occupant:
    return replace(Occupant(name, AppClass.OFFLINE, Where.RESIDENT, gib * GIB), **more)  # type: ignore[arg-type]


def slow(name: str, gib: int, **more: object) -> Occupant:
    return fast(name, gib, **{"slow": gib * GIB, **more})


def away(name: str, gib: int, **more: object) -> Occupant:
    return slow(name, gib, where=Where.PARKED, parked=gib * GIB, slow_away=True, **more)


def online(gib: int) -> Occupant:
    return Occupant("online", AppClass.ONLINE, Where.RESIDENT, 0, wants=gib * GIB)


def test_others_leave_first_even_if_more_of_them_have_to() -> None:
    tenants = [slow("slow", 40), fast("a", 20), fast("b", 20), online(50)]
    assert decide(tenants, CARD, 100.0).orders == (Leave("a"), Leave("b"))


def test_slow_one_leaves_where_the_others_do_not_make_enough_room() -> None:
    tenants = [slow("slow", 40), fast("a", 20), fast("b", 20), online(70)]
    assert decide(tenants, CARD, 100.0).orders == (Leave("slow"), Leave("a"))


def test_of_two_sets_the_one_with_fewer_slow_bytes_leaves() -> None:
    tenants = [slow("one", 40), slow("two", 35), fast("a", 25), online(55)]
    assert decide(tenants, CARD, 100.0).orders == (Leave("two"), Leave("a"))


def test_slow_one_needs_no_room_in_the_pool_and_takes_none() -> None:
    without = replace(CARD, pool=0)
    assert decide([slow("slow", 80), online(50)], without, 100.0).orders == (Leave("slow"),)
    assert decide([fast("fast", 80), online(50)], without, 100.0).orders == ()
    small = replace(CARD, pool=30 * GIB)
    tenants = [away("slow", 60), fast("fast", 30), fast("stays", 30, app_class=AppClass.NORMAL), online(60)]
    assert decide(tenants, small, 100.0).orders == (Leave("fast"),)


def test_only_the_part_that_is_copied_takes_the_pool() -> None:
    mixed = slow("mixed", 80, slow=60 * GIB)
    assert decide([mixed, online(50)], replace(CARD, pool=20 * GIB), 100.0).orders == (Leave("mixed"),)
    assert decide([mixed, online(50)], replace(CARD, pool=19 * GIB), 100.0).orders == ()


def test_slow_one_returns_when_all_of_its_room_is_there() -> None:
    asking = away("slow", 60, wants=0, wants_since=0.0)
    tenants = [asking, fast("a", 80, where=Where.LEAVING, parked=10 * GIB)]
    decision = decide(tenants, CARD, 100.0)
    assert (decision.orders, decision.waiting) == ((), {"slow": Obstacle.TURN})
    tenants = [asking, fast("a", 80, where=Where.PARKED, parked=80 * GIB)]
    assert decide(tenants, CARD, 100.0).orders == (Return("slow"),)


def test_slow_one_that_asks_makes_others_leave_without_returning_at_once() -> None:
    tenants = [away("slow", 60, wants=0, wants_since=0.0), fast("a", 80)]
    assert decide(tenants, CARD, 100.0).orders == (Leave("a"),)


def test_no_tenant_returns_into_the_room_of_a_slow_one_before_it_has_left() -> None:
    asking = fast("a", 60, where=Where.PARKED, parked=60 * GIB, wants=0, wants_since=0.0)
    assert decide([asking, slow("slow", 80)], CARD, 100.0).orders == (Leave("slow"),)
    leaving = slow("slow", 80, where=Where.LEAVING)
    assert decide([asking, leaving], CARD, 100.0).orders == ()
    assert decide([asking, away("slow", 80)], CARD, 100.0).orders == (Return("a"),)


@pytest.mark.parametrize(("make", "turn"), [(fast, SHORTEST_TURN), (slow, 9 * 4 * GIB * (1 / 2e9 + 1 / 40e9))])
def test_turn_of_a_slow_one_is_long_enough_for_what_it_costs(make: object, turn: float) -> None:
    there = make("there", 4, last_active=1000.0, since=0.0)  # type: ignore[operator]
    asking = fast("asks", 4, where=Where.PARKED, parked=4 * GIB, wants=0, wants_since=0.0)
    decision = decide([there, asking], replace(CARD, card=5 * GIB), 0.5)
    assert decision.orders == ()
    assert decision.deadline == pytest.approx(turn)
    assert turn < STARVES


def test_one_returns_only_after_a_slow_one_has_left_although_others_leave_too() -> None:
    """What a slow one frees comes at once, at its end."""
    back = replace(fast("back", 30, where=Where.PARKED, parked=30 * GIB), wants=0)
    there = [fast("f", 20, where=Where.LEAVING), fast("g", 40, where=Where.LEAVING)]
    memory = replace(CARD, card=60 * GIB)
    assert decide([*there, back], memory, 100.0).orders == (Return("back"),)
    there[0] = slow("f", 20, where=Where.LEAVING)
    found = decide([*there, back], memory, 100.0)
    assert (found.orders, found.waiting) == ((), {"back": Obstacle.TURN})
