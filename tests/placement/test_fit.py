"""Fit: what a claim may have, and refusals as data for everything else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.model.claim import Claim, Slice, Usage
from aliquot.model.device import Card
from aliquot.model.node import Node, Offer
from aliquot.model.refusal import Reason, Refusal
from aliquot.model.withheld import MIG_MODE
from aliquot.placement.board import Board, Occupant
from aliquot.placement.book import Booking, Ledger
from aliquot.placement.choose import POLICIES, Chooser
from aliquot.placement.demand import demand_of
from aliquot.placement.fit import _room_in_all, _unlike, enough, fits, fitting_cards, fitting_nodes
from kit.values.boards import claims, nodes
from kit.values.builders import (
    GIB,
    a_board,
    a_claim,
    a_container,
    a_node,
    a_slice,
    asking,
    offline,
    online,
    whole_cards,
    whole_node,
)


def _refusals(board: Board, claim: Claim) -> list[Refusal]:
    return Chooser(board, POLICIES["binpack"]()).refusals(claim)


def _fits(board: Board, claim: Claim) -> list[str]:
    rows = Chooser(board, POLICIES["binpack"]()).fitting(claim)
    return [board.names[row] for row in rows.tolist()]


def test_memory_that_is_taken_now_is_a_busy_refusal_with_wanted_and_had() -> None:
    board = a_board(a_node("n1", 16))
    board.take("n1", Occupant({0: Usage(13 * GIB, slices=1)}))
    assert _refusals(board, asking(5)) == [Refusal("n1", 0, Reason.MEMORY, 5 * GIB, 3 * GIB, never=False)]


@given(st.lists(st.integers(1, 16), min_size=2, max_size=4, unique=True), st.integers(1, 100))
def test_containers_that_fill_every_card_exactly_fit(sizes: list[int], core: int) -> None:
    """One GiB or one percent more on any of them does not."""
    board = a_board(a_node("n1", *sizes))
    board.take("n1", Occupant({slot: Usage(0, 10 * (100 - core)) for slot in range(len(sizes))}))
    parts = [a_slice(size, core) for size in sizes]
    for wanted in (parts, [*parts[:-1], a_slice(sizes[-1] + 1, core)], [*parts[:-1], a_slice(sizes[-1], core + 1)]):
        claim = a_claim(*(a_container(part, name=f"c{at}", index=at) for at, part in enumerate(wanted)))
        assert _fits(board, claim) == (["n1"] if wanted == parts else [])


@given(st.integers(0, 100), st.integers(0, 16), st.integers(0, 16))
def test_a_percentage_and_an_amount_add_up(percent: int, gib: int, used: int) -> None:
    board = a_board(a_node("n1", 16))
    board.take("n1", Occupant({0: Usage(used * GIB)}))
    claim = a_claim(a_container(Slice(memory_percent=percent, memory_mib=gib * GIB)))
    assert bool(_fits(board, claim)) == (16 * GIB * percent // 100 + gib * GIB <= (16 - used) * GIB)


def test_whole_node_is_refused_with_the_number_of_pods() -> None:
    board = a_board(a_node("n1", 16))
    for _ in range(2):
        board.take("n1", Occupant({}))
    assert _refusals(board, whole_node()) == [Refusal("n1", None, Reason.WHOLE_NODE, 0, 2, never=False)]


def test_a_card_too_small_never_fits() -> None:
    assert _refusals(a_board(a_node("n1", 16)), asking(24)) == [
        Refusal("n1", 0, Reason.MEMORY, 24 * GIB, 16 * GIB, never=True)
    ]


def test_every_shortage_of_a_card_is_reported() -> None:
    board = a_board(Node("n1", (Card(0, 16 * GIB, max_slices=1),), frozenset(Offer)))
    board.take("n1", Occupant({0: Usage(13 * GIB, 800, slices=1)}))
    assert {refusal.reason for refusal in _refusals(board, asking(5, 30))} == {
        Reason.MEMORY,
        Reason.CORE,
        Reason.SLICES,
    }


def test_a_sick_card_takes_nothing_and_may_come_back() -> None:
    board = a_board(Node("n1", (Card(0, 16 * GIB, healthy=False),), frozenset(Offer)))
    assert _refusals(board, asking(1)) == [Refusal("n1", 0, Reason.HEALTH, 1, 0, never=False)]


def test_an_exclusive_card_takes_no_other_pod() -> None:
    board = a_board(a_node("n1", 16))
    board.take("n1", Occupant({0: Usage(16 * GIB, slices=1, exclusive=1)}))
    assert _refusals(board, asking(1)) == [Refusal("n1", 0, Reason.EXCLUSIVE, 0, 1, never=False)]


def test_a_shared_card_is_not_given_exclusively() -> None:
    board = a_board(a_node("n1", 16))
    board.take("n1", Occupant({0: Usage(GIB, slices=1)}))
    assert _refusals(board, whole_cards(1)) == [
        Refusal("n1", 0, Reason.EXCLUSIVE, 0, 1, never=False),
    ]


def test_several_slices_need_as_many_cards() -> None:
    board = a_board(a_node("n1", 16, 16, 4))
    assert _refusals(board, asking(8, count=3)) == [
        Refusal("n1", 2, Reason.MEMORY, 8 * GIB, 4 * GIB, never=True),
        Refusal("n1", None, Reason.CARDS, 3, 2, never=True),
    ]
    assert _fits(board, asking(8, count=2)) == ["n1"]


def test_a_node_with_too_few_cards_says_how_many_it_has_also_when_all_are_busy() -> None:
    board = a_board(a_node("n1", 16, 16, 16))
    board.take("n1", Occupant({card: Usage(GIB, slices=1) for card in range(3)}))
    counts = [refusal for refusal in _refusals(board, whole_cards(4)) if refusal.reason is Reason.CARDS]
    assert counts == [Refusal("n1", None, Reason.CARDS, 4, 3, never=True)]
    counts = [refusal for refusal in _refusals(board, whole_cards(2)) if refusal.reason is Reason.CARDS]
    assert counts == [Refusal("n1", None, Reason.CARDS, 2, 0, never=False)]


def test_a_node_of_another_mode_never_fits() -> None:
    board = a_board(a_node("n1", 16, offers=frozenset({Offer.GPUSHARE})))
    claim = asking(1, offer=Offer.QGPU)
    assert _refusals(board, claim) == [Refusal("n1", None, Reason.MODE, 1, 0, never=True)]


@pytest.mark.parametrize("claim", [online(1), offline(1, 50)], ids=["online", "offline"])
def test_pods_with_an_app_class_go_only_to_nodes_that_mix(claim: Claim) -> None:
    board = a_board(
        a_node("plain", 16, offers=frozenset({Offer.QGPU})),
        a_node("mixed", 16, offers=frozenset({Offer.QGPU, Offer.QGPU_MIXED})),
    )
    assert _fits(board, claim) == ["mixed"]
    assert _refusals(board, claim) == [Refusal("plain", None, Reason.MIXED, 1, 0, never=True)]


def test_online_core_is_no_capacity_dimension_and_offline_greedy_core_is() -> None:
    board = a_board(a_node("n1", 32))
    board.take("n1", Occupant({0: Usage(GIB, 1000, 600, 1)}))
    assert _fits(board, online(1)) == ["n1"]
    assert _fits(board, offline(1, 40)) == ["n1"]
    assert _refusals(board, offline(1, 50)) == [Refusal("n1", 0, Reason.GREEDY, 500, 400, never=False)]


def test_a_whole_node_needs_a_node_free_of_other_pods_daemons_excepted() -> None:
    board = a_board(a_node("busy", 16), a_node("quiet", 16), a_node("bare", offers=frozenset({Offer.T9K_EXCLUSIVE})))
    board.set_node(Node("bare", (), frozenset({Offer.T9K_EXCLUSIVE})))
    board.take("busy", Occupant({}))
    board.take("quiet", Occupant({}, of_node=True))
    assert _fits(board, whole_node()) == ["quiet"]
    assert {(refusal.node, refusal.reason, refusal.had) for refusal in _refusals(board, whole_node())} == {
        ("busy", Reason.WHOLE_NODE, 1),
        ("bare", Reason.HEALTH, 0),
    }


def test_a_node_that_is_taken_whole_is_blocked_for_all() -> None:
    board = a_board(a_node("n1", 16))
    board.take("n1", Occupant({0: Usage(16 * GIB, slices=1, exclusive=1)}, whole_node=True))
    assert _refusals(board, asking(1)) == [Refusal("n1", None, Reason.WHOLE_NODE, 0, 1, never=False)]


def test_cpu_and_memory_of_the_node_count_where_they_are_known() -> None:
    board = a_board(a_node("n1", 16, cpu_milli=4000, memory_mib=1024))
    board.take("n1", Occupant({}, cpu_milli=3000))
    found = _refusals(board, asking(1, cpu_milli=2000, memory_mib=2048))
    assert found == [
        Refusal("n1", None, Reason.CPU, 2000, 1000, never=False),
        Refusal("n1", None, Reason.HOST_MEMORY, 2048, 1024, never=True),
    ]


def test_a_percentage_is_of_the_card_chosen() -> None:
    board = a_board(a_node("n1", 16, 80))
    board.take("n1", Occupant({0: Usage(12 * GIB, slices=1), 1: Usage(50 * GIB, slices=1)}))
    claim = a_claim(a_container(Slice(memory_percent=30)))
    assert Chooser(board, POLICIES["binpack"]()).fitting(claim).tolist() == [0]
    grant = Chooser(board, POLICIES["binpack"]()).choose(claim)
    assert grant is not None
    assert [(share.card, share.memory_mib) for share in grant.containers[0].shares] == [(1, 24 * GIB)]


def test_only_the_models_asked_for() -> None:
    board = a_board(
        Node("a", (Card(0, 16 * GIB, model="A10"),), frozenset(Offer)),
        Node("t", (Card(0, 16 * GIB, model="T4"),), frozenset(Offer)),
    )
    claim = asking(1, models=frozenset({"T4"}))
    assert _fits(board, claim) == ["t"]
    assert _refusals(board, claim) == [Refusal("a", 0, Reason.MODEL, 1, 0, never=True)]


def test_containers_that_only_fit_one_by_one_are_refused_together() -> None:
    board = a_board(a_node("n1", 8))
    claim = a_claim(a_container(a_slice(5), name="a"), a_container(a_slice(5), name="b", index=1))
    assert _fits(board, claim) == []
    assert [refusal.reason for refusal in _refusals(board, claim)] == [Reason.CONTAINERS]


def test_containers_of_one_kind_around_another_find_their_cards() -> None:
    """The cards for the first container were taken from those for the second."""
    board = a_board(Node("n1", (Card(0, 24_000), Card(1, 8_000)), frozenset({Offer.HAMI})))
    small, large = Slice(memory_mib=1_000), Slice(memory_mib=14_000)
    claim = a_claim(
        a_container(small, 2, name="a"),
        a_container(large, name="b", index=1),
        a_container(small, 2, name="c", index=2),
        offer=Offer.HAMI,
    )
    grant = Chooser(board, POLICIES["binpack"]()).choose(claim)
    assert grant is not None
    assert isinstance(Ledger(board).assume(claim, grant, 1.0), Booking)


# --- the fast answer and the slow one agree ----------------------------------------------------------------------


@st.composite
def _boards(draw: st.DrawFn) -> Board:
    board = Board()
    for at in range(draw(st.integers(1, 4))):
        node = draw(nodes(f"n{at}"))
        board.set_node(node)
        for card in node.cards:
            if draw(st.booleans()):
                use = Usage(draw(st.integers(0, 26)) * GIB, draw(st.integers(0, 1000)), draw(st.integers(0, 1000)), 1,
                            draw(st.integers(0, 1)))  # fmt: skip
                board.take(node.name, Occupant({card.index: use}, of_node=draw(st.booleans())))
    return board


@pytest.mark.parametrize("policy", POLICIES)
@given(board=_boards(), claim=claims())
def test_a_node_has_refusals_exactly_when_the_claim_does_not_fit_it(policy: str, board: Board, claim: Claim) -> None:
    chooser = Chooser(board, POLICIES[policy]())
    fitting = {board.names[row] for row in chooser.fitting(claim).tolist()}
    refused = {refusal.node for refusal in chooser.refusals(claim)}
    assert fitting.isdisjoint(refused)
    assert fitting | refused == set(board.row_of)


@given(board=_boards(), claim=claims(), again=st.lists(st.integers(0, 2), max_size=4))
def test_containers_of_one_kind_fit_as_they_would_one_by_one(board: Board, claim: Claim, again: list[int]) -> None:
    demand = demand_of(claim)
    demand = replace(demand, parts=(*demand.parts, *(demand.parts[at] for at in again if at < len(demand.parts))))
    rows = np.arange(board.rows)
    nodes_that_fit, cards = fits(board, demand, rows)
    expected = fitting_nodes(board, demand, rows)
    for part in demand.parts:
        expected &= enough(fitting_cards(board, part, demand, rows), part.count)
    if not demand.exact:
        expected &= _room_in_all(board, demand, rows)
    assert nodes_that_fit.tolist() == expected.tolist()
    if demand.parts:
        assert _unlike(demand)[0] is demand.parts[0]
        assert cards.tolist() == fitting_cards(board, demand.parts[0], demand, rows).tolist()


@pytest.mark.parametrize("policy", POLICIES)
@given(board=_boards(), claim=claims())
def test_chosen_grant_can_be_booked_and_refusals_are_unique(policy: str, board: Board, claim: Claim) -> None:
    chooser = Chooser(board, POLICIES[policy]())
    grant = chooser.choose(claim)
    assert (grant is not None) == bool(len(chooser.fitting(claim)))
    reasons_given = [
        (refusal.node, refusal.card, refusal.reason, refusal.wanted) for refusal in chooser.refusals(claim)
    ]
    assert len(reasons_given) == len(set(reasons_given))
    if grant is not None:
        assert isinstance(Ledger(board).assume(claim, grant, 1.0), Booking)


@given(board=_boards(), claim=claims())
def test_where_a_node_never_fits_it_does_not_fit_healthy_and_empty_either(board: Board, claim: Claim) -> None:
    refusals = Chooser(board, POLICIES["binpack"]()).refusals(claim)
    for name, row in board.row_of.items():
        node = board.nodes[row]
        assert node is not None
        healthy = Node(
            name,
            tuple(
                Card(card.index, card.memory_mib, model=card.model, max_slices=card.max_slices) for card in node.cards
            ),
            node.offers,
            cpu_milli=node.cpu_milli,
            memory_mib=node.memory_mib,
        )
        of_node = [refusal for refusal in refusals if refusal.node == name]
        if any(refusal.never for refusal in of_node if refusal.card is None):
            assert not _fits(a_board(healthy), claim)
        by_card: dict[int, bool] = {}
        for refusal in of_node:
            if refusal.card is not None:
                by_card[refusal.card] = by_card.get(refusal.card, False) or refusal.never
        if len(by_card) == len(node.cards) > 0 and all(by_card.values()):
            assert not _fits(a_board(healthy), claim)


def test_a_card_that_is_held_and_too_small_never_fits() -> None:
    board = a_board(a_node("n1", 8))
    board.take("n1", Occupant({0: Usage(8 * GIB, slices=1, exclusive=1)}))
    assert _refusals(board, asking(24)) == [Refusal("n1", 0, Reason.EXCLUSIVE, 0, 1, never=True)]


def test_overbooked_dimension_matters_only_if_wanted() -> None:
    """The API server overbooked the card's compute; online Pods do not care."""
    board = a_board(a_node("n1", 32))
    board.take("n1", Occupant({0: Usage(GIB, 1200, 1200, 1)}))
    claim = online(1)
    assert {refusal.reason for refusal in _refusals(board, asking(40))} == {Reason.MEMORY}
    grant = Chooser(board, POLICIES["spread"]()).choose(claim)
    assert grant is not None
    assert isinstance(Ledger(board).assume(claim, grant, 1.0), Booking)


def test_the_limit_on_sharing_is_qgpus_and_binds_no_other_dialect() -> None:
    board = a_board(Node("n1", (Card(0, 16 * GIB, max_slices=1),), frozenset(Offer)))
    board.take("n1", Occupant({0: Usage(GIB, slices=1)}))
    assert _fits(board, asking(1, offer=Offer.GPUSHARE)) == ["n1"]
    assert [refusal.reason for refusal in _refusals(board, asking(1, offer=Offer.QGPU))] == [Reason.SLICES]


def test_node_short_of_cpu_gets_no_card_refusals() -> None:
    board = a_board(a_node("n1", 16, 16, cpu_milli=1000))
    board.take("n1", Occupant({0: Usage(16 * GIB, slices=1)}))
    assert [refusal.reason for refusal in _refusals(board, asking(4, cpu_milli=2000))] == [Reason.CPU]


def test_a_pod_that_asks_for_absurdly_much_cpu_is_refused_and_harms_no_other() -> None:
    board = a_board(a_node("n1", 16, cpu_milli=8000))
    for policy in POLICIES.values():
        chooser = Chooser(board, policy())
        for at in range(40):
            chooser.observe(asking(1, name=f"p{at}", cpu_milli=10**21))
        assert chooser.choose(asking(1, cpu_milli=10**21)) is None
        assert chooser.choose(asking(1, cpu_milli=1000)) is not None


def test_a_node_whose_cards_another_plugin_hands_out_says_so_and_nothing_else() -> None:
    board = a_board(Node("n1", (Card(0, 16 * GIB),), others=("nvidia.com/gpu",)))
    assert _refusals(board, asking(4)) == [Refusal("n1", None, Reason.OTHER_PLUGIN, 1, 0, never=True)]


def test_a_card_that_is_withheld_is_not_unhealthy() -> None:
    board = a_board(Node("n1", (Card(0, 16 * GIB, withheld=MIG_MODE),), frozenset(Offer)))
    assert _refusals(board, asking(4)) == [Refusal("n1", 0, Reason.WITHHELD, 1, 0, never=False)]
