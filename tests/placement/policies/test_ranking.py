"""Policies: which node, and which of its cards."""

from __future__ import annotations

import pytest

from aliquot.model.claim import AppClass, Claim, Role, Slice, Usage
from aliquot.model.device import Card
from aliquot.model.grant import Grant
from aliquot.model.node import Node, Offer
from aliquot.placement.board import Board, Occupant
from aliquot.placement.book import Booking, Ledger
from aliquot.placement.choose import POLICIES, Chooser
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


def _place(board: Board, policy: str, *claims: Claim) -> list[tuple[str, list[int]]]:
    """Where each goes, one after the other: node and cards."""
    ledger, chooser = Ledger(board), Chooser(board, POLICIES[policy]())
    places = []
    for claim in claims:
        grant = chooser.choose(claim)
        assert grant is not None, claim.name
        assert isinstance(ledger.assume(claim, grant, 1.0), Booking)
        places.append((grant.node, _cards(grant)))
    return places


def _cards(grant: Grant) -> list[int]:
    return [share.card for container in grant.containers for share in container.shares]


def _replicas(count: int, memory_gib: int = 3) -> list[Claim]:
    return [asking(memory_gib, name=f"web-{at}", owner="StatefulSet/ns/web") for at in range(count)]


def test_binpack_fills_one_card_of_one_node_before_the_next() -> None:
    board = a_board(a_node("n1", 8, 8), a_node("n2", 8, 8))
    assert _place(board, "binpack", *_replicas(5)) == [
        ("n1", [0]),
        ("n1", [0]),
        ("n1", [1]),
        ("n1", [1]),
        ("n2", [0]),
    ]


def test_binpack_takes_the_fullest_card_that_still_has_room() -> None:
    board = a_board(a_node("n1", 16, 16, 16))
    board.take(
        "n1", Occupant({0: Usage(4 * GIB, slices=1), 1: Usage(11 * GIB, slices=1), 2: Usage(14 * GIB, slices=1)})
    )
    assert _place(board, "binpack", asking(5)) == [("n1", [1])]


def test_binpack_prefers_the_node_that_is_used_most() -> None:
    board = a_board(a_node("n1", 16, 16), a_node("n2", 16, 16))
    board.take("n2", Occupant({0: Usage(4 * GIB, slices=1)}))
    assert _place(board, "binpack", asking(2)) == [("n2", [0])]


@pytest.mark.parametrize(("policy", "node"), [("binpack", "n2"), ("spread", "n3")])
def test_pod_without_cards_goes_where_most_or_least_is_used(policy: str, node: str) -> None:
    board = a_board(a_node("n1", 16), a_node("n2", 16), a_node("n3", 80))
    for name, gib in (("n1", 1), ("n2", 2), ("n3", 1)):
        board.take(name, Occupant({0: Usage(gib * GIB, slices=1)}))
    assert _place(board, policy, a_claim(cpu_milli=500)) == [(node, [])]


def test_binpack_of_two_cards_takes_the_node_whose_second_card_has_less_left() -> None:
    board = a_board(a_node("n1", 16, 16), a_node("n2", 16, 16))
    board.take("n1", Occupant({0: Usage(12 * GIB, slices=1)}))
    board.take("n2", Occupant({0: Usage(8 * GIB, slices=1), 1: Usage(4 * GIB, slices=1)}))
    assert _place(board, "binpack", asking(4, count=2)) == [("n2", [0, 1])]


def test_spread_uses_different_nodes_and_then_different_cards() -> None:
    board = a_board(a_node("n1", 16, 16), a_node("n2", 16, 16))
    assert _place(board, "spread", *_replicas(4)) == [("n1", [0]), ("n2", [0]), ("n1", [1]), ("n2", [1])]


def test_spread_takes_the_node_and_card_with_most_left_in_mib_not_in_percent() -> None:
    board = a_board(a_node("small", 16), a_node("big", 16, 80))
    board.take("small", Occupant({0: Usage(GIB, slices=1)}))
    board.take("big", Occupant({0: Usage(8 * GIB, slices=1), 1: Usage(40 * GIB, slices=1)}))
    assert _place(board, "spread", asking(2)) == [("big", [1])]


def test_spread_takes_the_node_with_most_left() -> None:
    board = a_board(a_node("n1", 16), a_node("n2", 16))
    board.take("n1", Occupant({0: Usage(GIB, slices=1)}))
    assert _place(board, "spread", asking(2)) == [("n2", [0])]


def test_spread_keeps_replicas_of_one_owner_apart_even_where_less_is_free() -> None:
    board = a_board(a_node("roomy", 80), a_node("small", 16))
    first, second = _replicas(2)
    assert _place(board, "spread", first, second) == [("roomy", [0]), ("small", [0])]


def test_spread_puts_a_third_replica_on_a_card_without_one() -> None:
    board = a_board(a_node("n1", 80, 16))
    assert [cards for _, cards in _place(board, "spread", *_replicas(2))] == [[0], [1]]


@pytest.mark.parametrize("policy", POLICIES)
def test_online_pods_spread_first_onto_cards_without_offline_pods(policy: str) -> None:
    board = a_board(a_node("n1", 16, 16), a_node("n2", 16, 16))
    busy = Occupant({0: Usage(GIB, greedy_milli=500, slices=1)}, AppClass.OFFLINE)
    board.take("n1", busy)
    board.take("n2", busy)
    board.take("n2", Occupant({1: Usage(12 * GIB, slices=1)}, AppClass.ONLINE))
    # The card without an offline Pod on the emptier node; then the fuller one; only then beside an offline Pod.
    places = _place(board, policy, online(3, "a"), online(12, "b"), online(4, "c"), online(15, "d"))
    assert places == [("n1", [1]), ("n1", [1]), ("n2", [1]), ("n1", [0])]


@pytest.mark.parametrize("policy", POLICIES)
def test_offline_pods_binpack_first_onto_cards_without_online_pods(policy: str) -> None:
    board = a_board(a_node("n1", 16, 16), a_node("n2", 16, 16))
    board.take("n1", Occupant({0: Usage(8 * GIB, slices=1)}, AppClass.ONLINE))
    places = _place(board, policy, offline(2, 50, "a"), offline(2, 50, "b"), offline(2, 100, "c"), offline(2, 100, "d"))
    assert places[:2] == [("n1", [1]), ("n1", [1])]
    assert places[2][0] == "n2"
    assert places[3][0] == "n2"


def test_offline_pods_go_beside_online_ones_when_nothing_else_is_left() -> None:
    board = a_board(a_node("n1", 16))
    board.take("n1", Occupant({0: Usage(8 * GIB, slices=1)}, AppClass.ONLINE))
    assert _place(board, "binpack", offline(2, 50)) == [("n1", [0])]


@pytest.mark.parametrize("policy", POLICIES)
def test_several_slices_of_one_request_lie_on_distinct_cards(policy: str) -> None:
    board = a_board(a_node("n1", *[24] * 8))
    [(_, cards)] = _place(board, policy, asking(3, count=4))
    assert len(set(cards)) == 4


@pytest.mark.parametrize("policy", POLICIES)
def test_exclusive_cards_of_two_containers_are_distinct(policy: str) -> None:
    part = whole_cards(1).containers[0].slice
    claim = a_claim(
        a_container(part, 2, name="init", role=Role.INIT),
        a_container(part, 1, name="a"),
        a_container(part, 2, name="b", index=1),
        offer=Offer.T9K_EXCLUSIVE,
    )
    grant = Chooser(a_board(a_node("n1", 16, 16, 16)), POLICIES[policy]()).choose(claim)
    assert grant is not None
    got = {container.name: {share.card for share in container.shares} for container in grant.containers}
    assert got["a"].isdisjoint(got["b"])
    assert got["a"] | got["b"] == {0, 1, 2}
    assert len(got["init"]) == 2


@pytest.mark.parametrize("policy", POLICIES)
def test_a_whole_node_gets_every_card(policy: str) -> None:
    board = a_board(a_node("n1", 16, 16), a_node("n2", *[16] * 4))
    board.take("n1", Occupant({0: Usage(GIB, slices=1)}))
    assert _place(board, policy, whole_node()) == [("n2", [0, 1, 2, 3])]


def test_a_whole_node_takes_the_smallest_node_that_will_do() -> None:
    board = a_board(a_node("big", *[16] * 8), a_node("small", 16))
    assert _place(board, "binpack", whole_node()) == [("small", [0])]


@pytest.mark.parametrize("policy", POLICIES)
def test_an_init_container_shares_the_card_of_its_pod(policy: str) -> None:
    """max(init peak, sum): 5 GiB of init and 2 x 3 GiB of app fit a card of 6."""
    claim = a_claim(
        a_container(a_slice(5), name="init", role=Role.INIT),
        a_container(a_slice(3), name="a"),
        a_container(a_slice(3), name="b", index=1),
        together=True,
    )
    board = a_board(a_node("n1", 6))
    assert _place(board, policy, claim) == [("n1", [0, 0, 0])]
    assert board.room_memory[0, 0] == 0


def test_containers_go_to_different_cards_when_one_is_too_small() -> None:
    claim = a_claim(a_container(a_slice(3), name="small"), a_container(a_slice(5), name="large", index=1))
    board = a_board(a_node("n1", 5, 3))
    grant = Chooser(board, POLICIES["spread"]()).choose(claim)
    assert grant is not None
    assert {container.name: container.shares[0].card for container in grant.containers} == {"small": 1, "large": 0}


@pytest.mark.parametrize("policy", POLICIES)
def test_the_models_asked_for_are_kept_to_by_every_container(policy: str) -> None:
    cards = tuple(Card(at, 16 * GIB, model=model) for at, model in enumerate(("T4", "A10", "T4", "A10")))
    board = a_board(Node("n1", cards, frozenset(Offer)))
    claim = a_claim(
        a_container(a_slice(10), name="a"),
        a_container(a_slice(10), name="b", index=1),
        models=frozenset({"A10"}),
    )
    [(_, places)] = _place(board, policy, claim)
    assert sorted(places) == [1, 3]


@pytest.mark.parametrize("policy", POLICIES)
def test_among_limits_the_choice(policy: str) -> None:
    import numpy as np

    board = a_board(a_node("n1"), a_node("n2"), a_node("n3"))
    chooser = Chooser(board, POLICIES[policy]())
    grant = chooser.choose(asking(1), np.array([2]))
    assert grant is not None
    assert grant.node == "n3"
    assert chooser.choose(asking(1), np.array([], int)) is None
    assert Chooser(Board(), POLICIES[policy]()).choose(asking(1)) is None


def test_a_card_that_fits_is_found_behind_one_that_looks_alike_and_does_not() -> None:
    """As much free on both; but the first has as many Pods as may share it, or is full in the dimension wanted."""
    for policy in POLICIES.values():
        board = a_board(Node("n1", tuple(Card(at, 16 * GIB, max_slices=8) for at in range(2)), frozenset(Offer)))
        for _ in range(8):
            board.take("n1", Occupant({0: Usage(GIB, slices=1)}))
        board.take("n1", Occupant({1: Usage(8 * GIB, slices=1)}))
        grant = Chooser(board, policy()).choose(asking(1))
        assert grant is not None
        assert _cards(grant) == [1]
        board = a_board(a_node("n1", 16, 16))
        board.take("n1", Occupant({0: Usage(16 * GIB, 1000, slices=1), 1: Usage(4 * GIB, 1000, slices=1)}))
        grant = Chooser(board, policy()).choose(asking(1))
        assert grant is not None
        assert _cards(grant) == [1]


@pytest.mark.parametrize("policy", POLICIES)
def test_what_does_not_fit_for_one_pod_says_nothing_of_a_pod_whose_containers_run_in_turn(policy: str) -> None:
    """60% and 60% at once do not fit a card; 60% in an init container and then 60% do."""
    part = Slice(memory_percent=60)
    at_once = a_claim(a_container(part, name="a"), a_container(part, name="b", index=1))
    in_turn = a_claim(a_container(part, name="a", role=Role.INIT), a_container(part, name="b"))
    chooser = Chooser(a_board(a_node("n1", 16)), POLICIES[policy]())
    assert chooser.choose(at_once) is None
    assert chooser.choose(in_turn) is not None


@pytest.mark.parametrize("policy", POLICIES)
def test_an_init_container_larger_than_the_whole_card_of_its_pod_goes_elsewhere(policy: str) -> None:
    claim = a_claim(
        a_container(a_slice(20, 50), name="init", role=Role.INIT),
        a_container(Slice(memory_percent=100, core_milli=1000, exclusive=True), name="main"),
    )
    board = a_board(a_node("n1", 16, 24))
    grant = Chooser(board, POLICIES[policy]()).choose(claim)
    assert grant is not None
    assert isinstance(Ledger(board).assume(claim, grant, 1.0), Booking)


@pytest.mark.parametrize("policy", POLICIES)
def test_whole_cards_of_several_containers_are_found_however_wide_the_board_is(policy: str) -> None:
    part = Slice(memory_percent=100, exclusive=True)
    claim = a_claim(a_container(part, 4, name="a"), a_container(part, 4, name="b", index=1))
    board = a_board(a_node("wide", *[8] * 64, offers=frozenset()), a_node("n1", *[16] * 8))
    assert _place(board, policy, claim)[0][0] == "n1"
