"""Victims: never more important than allowed, as few and as unimportant as possible, and enough."""

from __future__ import annotations

from itertools import chain, combinations, pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from aliquot.model.claim import AppClass, Claim, Usage
from aliquot.model.grant import Grant
from aliquot.placement.board import Board, Occupant
from aliquot.placement.choose import POLICIES, Chooser
from aliquot.placement.preemption import victims
from aliquot.placement.preemption.reservations import free_part
from aliquot.placement.preemption.victims import Outlook, Plan, Tenant, plan_on
from kit.values.boards import NAMES, boards, claims, occupants
from kit.values.builders import GIB, a_board, a_node, asking, whole_cards, whole_node


def _tenant(
    name: str, gib: int, *cards: int, priority: int = 0, app_class: AppClass = AppClass.NORMAL, protected: bool = False
) -> Tenant:
    usage = {card: Usage(gib * GIB, slices=1) for card in cards or (0,)}
    return Tenant(name, priority, Occupant(usage, app_class), protected)


def _chooser(tenants: list[Tenant], *sizes: int) -> Chooser:
    board = a_board(a_node("n1", *sizes))
    for tenant in tenants:
        board.take("n1", tenant.occupant)
    return Chooser(board, POLICIES["binpack"]())


def _victims(claim: Claim, tenants: list[Tenant], *sizes: int) -> set[str] | None:
    plan = plan_on(_chooser(tenants, *sizes), claim, "n1", tenants)
    return None if plan is None else {victim.uid for victim in plan.victims}


def test_victims_share_one_card() -> None:
    tenants = [_tenant("a", 8, 0), _tenant("b", 8, 0), _tenant("c", 8, 1), _tenant("d", 8, 1)]
    assert _victims(asking(16), tenants, 16, 16) in ({"a", "b"}, {"c", "d"})


def test_fewest_victims_go() -> None:
    tenants = [_tenant("a", 4), _tenant("b", 4), _tenant("c", 8)]
    assert _victims(asking(8), tenants, 16) == {"c"}


@pytest.mark.parametrize(("most", "gone"), [(3, {"c"}), (2, {"a", "b"})])
def test_fewest_victims_are_searched_for_within_the_limit(
    monkeypatch: pytest.MonkeyPatch, most: int, gone: set[str]
) -> None:
    """One of three takes three trials; beyond the limit the last that can be spared is."""
    monkeypatch.setattr(victims, "_MOST_TRIALS", most)
    assert _victims(asking(8), [_tenant("a", 4), _tenant("b", 4), _tenant("c", 8)], 16) == gone


@pytest.mark.parametrize(("most", "gone"), [(10, {"a", "d"}), (9, {"a", "b", "c"})])
def test_victims_of_all_numbers_are_searched_for_within_one_limit(
    monkeypatch: pytest.MonkeyPatch, most: int, gone: set[str]
) -> None:
    """Four of one and six of two."""
    monkeypatch.setattr(victims, "_MOST_TRIALS", most)
    tenants = [_tenant(name, size) for name, size in (("a", 3), ("b", 3), ("c", 3), ("d", 5))]
    assert _victims(asking(10), tenants, 16) == gone


def test_grant_is_on_the_card_that_the_victims_leave() -> None:
    """Not on the one that it would get if all tenants were gone."""
    tenants = [_tenant("a", 8, 0), _tenant("b", 8, 0), _tenant("c", 16, 1)]
    plan = plan_on(_chooser(tenants, 16, 16), asking(16), "n1", tenants)
    assert plan is not None
    assert ([victim.uid for victim in plan.victims], [*plan.grant.usage()]) == (["c"], [1])


def test_victims_are_of_a_card_that_is_large_enough_also_without_any_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(victims, "_MOST_TRIALS", 0)
    tenants = [_tenant("a", 4, 0), _tenant("b", 8, 1), _tenant("c", 8, 1)]
    assert _victims(asking(16), tenants, 8, 16) == {"b", "c"}


def test_less_important_victims_go_even_if_they_are_more() -> None:
    tenants = [_tenant("a", 4), _tenant("b", 4), _tenant("c", 8, priority=5)]
    assert _victims(asking(8), tenants, 16) == {"a", "b"}


def test_offline_victims_go_before_normal_before_online() -> None:
    online, normal = _tenant("on", 8, app_class=AppClass.ONLINE), _tenant("norm", 8, 1)
    offline = _tenant("off", 8, 2, app_class=AppClass.OFFLINE)
    assert _victims(asking(8), [online, normal, offline], 8, 8, 8) == {"off"}
    assert _victims(asking(8), [online, normal], 8, 8) == {"norm"}


def test_protected_victims_go_only_where_nothing_else_helps() -> None:
    tenants = [_tenant("a", 16, 0, protected=True), _tenant("b", 8, 1, priority=9), _tenant("c", 8, 1, priority=9)]
    assert _victims(asking(16), tenants, 16, 16) == {"b", "c"}
    assert _victims(asking(16), tenants[:1], 16) == {"a"}


def test_a_victim_of_several_cards_counts_once() -> None:
    tenants = [_tenant("wide", 8, 0, 1), _tenant("a", 8, 2), _tenant("b", 8, 3)]
    assert _victims(asking(8, count=2), tenants, 8, 8, 8, 8) == {"wide"}


@pytest.mark.parametrize("short", ["cpu_milli", "memory_mib"])
def test_victims_of_several_cards_go_where_the_host_is_short(short: str) -> None:
    more: dict[str, Any] = {short: 2000}
    tenants = [Tenant(name, 0, Occupant({at: Usage(GIB, slices=1)}, **more)) for at, name in enumerate("ab")]
    board = a_board(a_node("n1", 16, 16, 16, cpu_milli=4500, memory_mib=4500))
    for tenant in tenants:
        board.take("n1", tenant.occupant)
    for wanted, found in ((500, []), (2500, ["a"]), (4500, ["a", "b"])):
        more[short] = wanted
        plan = plan_on(Chooser(board, POLICIES["binpack"]()), asking(1, **more), "n1", tenants)
        assert plan is not None
        assert [victim.uid for victim in plan.victims] == found


def test_victims_cost_by_the_most_important_then_by_number() -> None:
    low, high, guarded = _tenant("a", 1), _tenant("b", 1, priority=1), _tenant("c", 1, protected=True)
    grant = Grant("pod", "n1", ())
    plans = [Plan(grant, gone) for gone in ((), (low,), (low, low), (high,), (high, low), (high, high), (guarded,))]
    assert all(before.cost < after.cost for before, after in pairwise(plans))


def test_victims_of_whole_cards_and_nodes() -> None:
    tenants = [_tenant("a", 1, 0), _tenant("b", 1, 1), _tenant("plain", 0, 1)]
    assert _victims(whole_cards(1), tenants[:2], 16, 16) in ({"a"}, {"b"})
    assert _victims(whole_node(), tenants, 16, 16) == {"a", "b", "plain"}


def test_of_very_many_tenants_the_least_important_of_one_card_go() -> None:
    """More sets of them than are tried one by one."""
    tenants = [_tenant(f"{card}-{at}", 1, card, priority=at % 2) for card in (0, 1) for at in range(16)]
    found = _victims(asking(8), tenants, 16, 16)
    assert any(found == {f"{card}-{at}" for at in range(0, 16, 2)} for card in (0, 1))


def test_no_victims_where_a_card_is_too_small() -> None:
    assert _victims(asking(24), [_tenant("a", 16)], 16) is None


def test_pods_that_terminate_cost_nothing() -> None:
    tenants = [_tenant("a", 16, 0), _tenant("b", 16, 1)]
    outlook = Outlook((tenants[1].occupant,))
    plan = plan_on(_chooser(tenants, 16, 16), asking(16), "n1", tenants[:1], outlook)
    assert plan is not None
    assert not plan.victims
    assert plan.grant.usage().keys() == {1}


def test_room_that_is_kept_for_another_is_not_planned_twice() -> None:
    tenants = [_tenant("a", 16, 0), _tenant("b", 16, 1)]
    outlook = Outlook((tenants[1].occupant,), (Occupant({1: Usage(16 * GIB, slices=1)}),))
    plan = plan_on(_chooser(tenants, 16, 16), asking(16), "n1", tenants[:1], outlook)
    assert plan is not None
    assert [victim.uid for victim in plan.victims] == ["a"]


# --- any board -------------------------------------------------------------------------------------------------------


@st.composite
def _full(draw: st.DrawFn) -> tuple[Chooser, str, list[Tenant]]:
    """A board, one of its nodes, and those there that may be evicted."""
    board: Board = draw(boards())
    node = draw(st.sampled_from(NAMES))
    tenants = [
        Tenant(f"t{at}", draw(st.integers(-1, 1)), occupant, draw(st.integers(0, 3)) == 0)
        for at, occupant in enumerate(draw(st.lists(occupants(), max_size=5)))
    ]
    for tenant in tenants:
        board.take(node, tenant.occupant)
    return Chooser(board, POLICIES["binpack"]()), node, tenants


def _grant_without(chooser: Chooser, node: str, claim: Claim, gone: list[Tenant]) -> Grant | None:
    for tenant in gone:
        chooser.board.release(node, tenant.occupant)
    row = chooser.board.row_of.get(node)
    grant = None if row is None or not chooser.board.present[row] else chooser.seat(claim, row)
    for tenant in gone:
        chooser.board.take(node, tenant.occupant)
    return grant


@given(_full(), claims())
def test_victims_are_enough_and_none_could_stay(full: tuple[Chooser, str, list[Tenant]], claim: Claim) -> None:
    chooser, node, tenants = full
    used = chooser.board.used_memory.copy()
    plan = plan_on(chooser, claim, node, tenants)
    assert (chooser.board.used_memory == used).all(), "the board is as it was"
    if plan is None:
        assert _grant_without(chooser, node, claim, tenants) is None
        return
    chosen = list(plan.victims)
    assert all(victim in tenants for victim in chosen)
    assert _grant_without(chooser, node, claim, chosen) == plan.grant
    for victim in chosen:
        others = [other for other in chosen if other is not victim]
        assert _grant_without(chooser, node, claim, others) is None, "it need not have gone"


@given(_full(), claims())
def test_no_cheaper_victims_are_enough(full: tuple[Chooser, str, list[Tenant]], claim: Claim) -> None:
    """Neither less important ones, nor fewer of that importance; protected ones go last."""
    chooser, node, tenants = full
    plan = plan_on(chooser, claim, node, tenants)
    if plan is None:
        return
    every = chain.from_iterable(combinations(tenants, size) for size in range(len(tenants) + 1))
    enough = [Plan(plan.grant, gone) for gone in every if _grant_without(chooser, node, claim, list(gone)) is not None]
    assert plan.cost == min(other.cost for other in enough)


@given(boards(), occupants())
def test_room_kept_meanwhile_overbooks_nothing_more(board: Board, occupant: Occupant) -> None:
    assume(board.row_of)
    node, row = next(iter(board.row_of.items()))
    before = {name: getattr(board, name)[row].copy() for name in ("room_core", "room_greedy", "room_cpu", "room_host")}
    board.take(node, free_part(board, node, occupant))
    for name, room in before.items():
        after = getattr(board, name)[row]
        assert ((after >= 0) | (after >= room) | (board.taken[row] > 0)).all(), name
