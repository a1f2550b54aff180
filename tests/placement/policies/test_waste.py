"""Fragmentation: what of the free GPU is of no use to the Pods seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.model.claim import Usage
from aliquot.model.device import Card
from aliquot.model.node import Node, Offer
from aliquot.placement.board import Board, Occupant
from aliquot.placement.policies import waste, workload
from aliquot.placement.policies.waste import Waste, _shape
from aliquot.placement.policies.workload import Shape

HALF, QUARTER, WHOLE = Usage(memory_mib=12 << 10), Usage(memory_mib=6 << 10), Usage(memory_mib=24 << 10, exclusive=1)


def a_board(*used: Usage, cards: int = 2) -> Board:
    board = Board()
    node = Node("n", tuple(Card(index, 24 << 10) for index in range(cards)), frozenset({Offer.ANY}))
    board.set_node(node)
    for slot, use in enumerate(used):
        board.take("n", Occupant({slot: use}))
    return board


def wasted(board: Board, *seen: list[Usage]) -> float | None:
    measured = Waste(board)
    measured.learn((usages, 0) for usages in seen)
    return measured.ratio()


def test_nothing_is_wasted_where_every_free_part_would_do() -> None:
    assert wasted(a_board(QUARTER, HALF), [HALF]) == 0.0


def test_a_remainder_that_is_too_small_for_those_seen_is_wasted() -> None:
    three_quarters = Usage(memory_mib=18 << 10)
    assert wasted(a_board(three_quarters, cards=2), [HALF]) == 0.2  # 250 of 1,250 milli


def test_waste_is_1_if_only_whole_cards_are_wanted_and_none_is_free() -> None:
    assert wasted(a_board(QUARTER, QUARTER), [WHOLE]) == 1.0


def test_each_kind_counts_as_often_as_it_is_seen() -> None:
    assert wasted(a_board(HALF, HALF), [WHOLE], [HALF]) == 0.5
    assert wasted(a_board(HALF, HALF), [WHOLE], [WHOLE], [WHOLE], [HALF]) == 0.75


def test_waste_is_unknown_without_pods_or_free_cards() -> None:
    assert wasted(a_board(QUARTER)) is None
    assert wasted(a_board(WHOLE, WHOLE), [HALF]) is None


@pytest.mark.parametrize(
    ("seen", "ratio"), [([HALF, QUARTER], 0.0), ([QUARTER, HALF], 0.0), ([HALF, HALF, QUARTER], 0.2)]
)
def test_waste_is_that_of_the_commonest_kinds_and_of_equals_the_smallest(
    monkeypatch: pytest.MonkeyPatch, seen: list[Usage], ratio: float
) -> None:
    monkeypatch.setattr(waste, "_MOST_KINDS", 1)
    assert wasted(a_board(Usage(memory_mib=18 << 10)), *([use] for use in seen)) == ratio


def test_waste_follows_the_board() -> None:
    board = a_board()
    measured = Waste(board)
    measured.learn([([WHOLE], 0)])
    assert measured.ratio() == 0.0
    board.take("n", Occupant({0: QUARTER}))
    assert measured.ratio() == 750 / 1750


@given(st.lists(st.sampled_from([HALF, QUARTER, WHOLE]), max_size=4), st.sampled_from([HALF, QUARTER, WHOLE]))
def test_waste_is_between_0_and_1(used: list[Usage], seen: Usage) -> None:
    ratio = wasted(a_board(*used, cards=4), [seen])
    assert ratio is None or 0.0 <= ratio <= 1.0


def test_waste_is_not_below_0_where_very_rare_pods_count_more_than_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "_WEIGHT", 2)
    assert wasted(a_board(), [Usage(memory_mib=1 << 10)], [QUARTER], [HALF]) == 0.0


@pytest.mark.parametrize(
    ("cpu", "wanted", "ratio"), [(1000, 1000, 0.0), (1000, 999, 0.0), (1000, 1001, 1.0), (0, 0, 0.0)]
)
def test_what_has_no_cpu_left_for_those_seen_is_wasted(cpu: int, wanted: int, ratio: float) -> None:
    """To the last milli of CPU."""
    board = Board()
    board.set_node(Node("n", (Card(0, 24 << 10),), frozenset({Offer.ANY}), cpu_milli=cpu))
    measured = Waste(board)
    measured.learn([([HALF], wanted)])
    assert measured.ratio() == ratio


@pytest.mark.parametrize(
    ("use", "milli"),
    [
        (Usage(240, 500), 500),
        (Usage(24 << 10, 500), 1000),
        (Usage(48 << 10), 1000),
        (Usage(0, 1), 10),
        (Usage(0, 10), 10),
        (Usage(0, 11), 20),
        (Usage(exclusive=1), 1000),
        (Usage(slices=1), None),
    ],
)
def test_shape_of_a_pod_is_its_scarcer_part_of_a_card_in_hundredths(use: Usage, milli: int | None) -> None:
    assert _shape([use], 7, 24 << 10) == (None if milli is None else Shape(1, milli, 7))


def test_shape_of_a_pod_on_several_cards_is_that_of_its_largest_part() -> None:
    assert _shape([HALF, QUARTER], 0, 24 << 10) == Shape(2, 500, 0)
    assert _shape([Usage(1)], 0, 1) == _shape([Usage(1)], 0, 0) == Shape(1, 1000, 0)
    assert _shape([], 0, 1) is None
