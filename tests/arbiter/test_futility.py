"""Allocations for which waiting does not help are refused; others are not, whatever a single reading says."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from aliquot.arbiter.residency import FUTILE, Decision, Futility, Memory, Occupant, decide, most_room
from aliquot.model.claim import AppClass
from aliquot.model.residency import Where

GIB = 1 << 30
CARD = Memory(card=24 * GIB, pool=100 * GIB)
OFFLINE, NORMAL = AppClass.OFFLINE, AppClass.NORMAL


def judge(futility: Futility, occupants: list[Occupant], now: float, memory: Memory = CARD) -> set[str]:
    asking = [(one.tenant, 0, one.wants) for one in occupants if one.wants]
    found = futility.judge(asking, occupants, memory, decide(occupants, memory, now), now)
    return {tenant for tenant, _, _ in found}


def tenant(name: str, app_class: AppClass, gib: int, **more: object) -> Occupant:
    there = 0 if app_class is NORMAL else gib * GIB
    return replace(Occupant(name, app_class, Where.RESIDENT, there, fixed=gib * GIB - there), **more)  # type: ignore[arg-type]


def test_allocation_is_refused_at_once_where_no_other_tenant_could_leave() -> None:
    occupants = [tenant("a", NORMAL, 16), tenant("b", OFFLINE, 2, wants=10 * GIB)]
    assert judge(Futility(), occupants, 0.0) == {"b"}


def test_allocation_that_can_never_fit_is_refused_once_that_has_held() -> None:
    occupants = [tenant("a", NORMAL, 16), tenant("x", OFFLINE, 2), tenant("b", NORMAL, 0, wants=10 * GIB)]
    futility = Futility()
    assert [judge(futility, occupants, now) for now in (0.0, FUTILE / 2, FUTILE + 0.01)] == [set(), set(), {"b"}]


def test_one_reading_with_room_begins_the_wait_anew() -> None:
    """While an allocation is made piece by piece, the driver's figure counts what is given back a moment later."""
    occupants = [tenant("a", NORMAL, 14), tenant("x", OFFLINE, 4), tenant("b", OFFLINE, 0, wants=8 * GIB)]
    futility, fewer = Futility(), replace(CARD, card=CARD.card - 8 * GIB)
    for step in range(100):
        memory = CARD if step % 10 == 9 else fewer
        assert not judge(futility, occupants, step * FUTILE / 10 + 0.001, memory), step


def test_second_of_two_that_ask_waits_for_its_turn() -> None:
    asking = [tenant(name, OFFLINE, 0, wants=8 * GIB, wants_since=at) for at, name in enumerate("bc")]
    occupants = [tenant("a", NORMAL, 14), tenant("x", OFFLINE, 4, retry_at=1e9), *asking]
    futility = Futility()
    assert not any(judge(futility, occupants, now * 0.1) for now in range(300))


def test_second_is_not_judged_while_the_first_takes_its_memory() -> None:
    """Pieces of an allocation that is not complete are in no figure, and another tenant has left for it already."""
    left = tenant("x", OFFLINE, 4, where=Where.PARKED, parked=4 * GIB)
    first, second = (tenant(name, OFFLINE, 0, wants=8 * GIB, wants_since=at) for at, name in enumerate("bc"))
    futility, fewer = Futility(), replace(CARD, card=CARD.card - 8 * GIB)
    for now in (0.0, FUTILE + 0.01):
        assert "c" not in judge(futility, [tenant("a", NORMAL, 12), left, first, second], now, fewer)
    alone = [tenant("a", NORMAL, 12), left, second]
    assert [judge(futility, alone, 5.0 + now, fewer) for now in (0.0, FUTILE + 0.01)] == [set(), {"c"}]


def test_room_that_the_driver_refuses_is_not_waited_for_long() -> None:
    occupants = [tenant("x", OFFLINE, 4), tenant("b", NORMAL, 0, wants=8 * GIB)]
    futility = Futility()
    assert [judge(futility, occupants, now) for now in (0.0, FUTILE + 0.01)] == [set(), {"b"}]


def test_allocation_is_refused_only_beyond_what_all_others_would_leave_and_after_more_than_its_time() -> None:
    there = [tenant("a", NORMAL, 16), tenant("x", OFFLINE, 2, retry_at=1e9)]
    for size, refused in ((8 * GIB, set()), (8 * GIB + 1, {"b"})):
        futility = Futility()
        occupants = [*there, tenant("b", NORMAL, 0, wants=size)]
        assert not judge(futility, occupants, 0.0)
        assert not judge(futility, occupants, FUTILE)
        assert judge(futility, occupants, FUTILE + 0.01) == refused


def test_another_size_is_another_allocation() -> None:
    occupants = [tenant("a", NORMAL, 16), tenant("x", OFFLINE, 2), tenant("b", NORMAL, 0, wants=10 * GIB)]
    smaller = [*occupants[:2], tenant("b", NORMAL, 0, wants=9 * GIB)]
    futility = Futility()
    assert not judge(futility, occupants, 0.0)
    assert not judge(futility, smaller, FUTILE + 0.01)
    assert judge(futility, smaller, 2 * FUTILE + 0.1) == {"b"}


@given(
    st.lists(st.tuples(st.sampled_from([OFFLINE, NORMAL]), st.integers(0, 12)), min_size=1, max_size=5),
    st.integers(1, 30),
)
def test_what_would_fit_if_all_left_that_may_is_never_refused_while_something_moves_or_waits(
    others: list[tuple[AppClass, int]], size: int
) -> None:
    occupants = [tenant(f"t{at}", app_class, gib) for at, (app_class, gib) in enumerate(others)]
    occupants.append(tenant("asks", NORMAL, 0, wants=size * GIB))
    stay = sum(gib for app_class, gib in others if app_class is NORMAL)
    assert most_room(occupants, CARD, "asks") == CARD.card - stay * GIB
    futility = Futility()
    waits = Decision(waiting=dict(decide(occupants, CARD, 0.0).waiting or {}))
    for now in (0.0, FUTILE + 0.01):
        refused = futility.judge([("asks", 0, size * GIB)], occupants, CARD, waits, now)
    nobody = not any(gib for app_class, gib in others if app_class is OFFLINE)
    if "asks" in (waits.waiting or {}):
        assert bool(refused) == (nobody or size * GIB > CARD.card - stay * GIB)
