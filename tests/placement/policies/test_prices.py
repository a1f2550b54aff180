"""What a remainder is worth: dual prices of the cutting-stock problem."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.placement.policies.prices import remainder_values

_pieces = st.dictionaries(st.integers(1, 1000), st.integers(1, 50), min_size=1, max_size=8)


@pytest.mark.parametrize("pieces", [{}, {0: 5}, {1001: 5}, {500: 0}])
def test_without_pieces_that_fit_a_card_every_remainder_is_worth_nothing(pieces: dict[int, int]) -> None:
    assert remainder_values(pieces).tolist() == [0.0] * 1001


@pytest.mark.parametrize(("milli", "room"), [(1, 10), (10, 10), (11, 20), (500, 500), (1000, 1000)])
def test_pieces_of_one_size_are_worth_the_room_that_they_take_in_steps_of_ten(milli: int, room: int) -> None:
    values = remainder_values({milli: 1})
    assert (values[room - 1], values[room]) == (0.0, pytest.approx(1000 // (1000 // room)))


@pytest.mark.parametrize(
    ("pieces", "worth"),
    [
        ({300: 1}, {300: 1000 / 3, 600: 2000 / 3, 899: 2000 / 3, 900: 1000}),
        ({600: 2, 400: 1}, {400: 0, 600: 1000, 1000: 1000}),  # cards for the large ones have room for the small
        ({600: 1, 400: 3}, {400: 500, 600: 500, 800: 1000}),  # half of the small ones have a card of their own
        ({700: 1, 100: 4}, {100: 100, 700: 700}),  # the cards of the large ones have room for three
        ({700: 1, 100: 2}, {100: 0, 700: 1000}),
        ({695: 1, 700: 1, 100: 7}, {100: 100, 700: 700}),
        ({695: 1, 700: 1, 100: 5}, {100: 0, 700: 1000}),
        ({600: 3, 300: 2}, {300: 0, 600: 1000}),
        ({600: 1, 200: 4}, {200: 200, 400: 400, 600: 600, 1000: 1000}),
        ({500: 1, 340: 1, 330: 1}, {330: 250, 340: 500, 500: 500, 670: 750}),  # one of 340 and two of 330 fill a card
    ],
)
def test_worth_of_pieces_is_what_they_save_in_cards(pieces: dict[int, int], worth: dict[int, float]) -> None:
    values = remainder_values(pieces)
    assert {room: values[room] for room in worth} == pytest.approx(worth, abs=1e-3)


def test_a_whole_card_is_worth_1000_when_it_can_be_filled() -> None:
    assert remainder_values({500: 3, 1000: 1})[1000] == pytest.approx(1000)


def test_halves_alone_make_half_a_card_worth_half() -> None:
    values = remainder_values({500: 10})
    assert values[500] == pytest.approx(500)
    assert values[499] == 0
    assert values[999] == pytest.approx(500)


def test_a_remainder_that_no_pod_fills_is_worth_nothing() -> None:
    """An 810 Pod leaves 190: nobody fits there."""
    values = remainder_values({810: 5, 200: 5})
    assert values[190] == 0
    assert values[200] > 0


def test_two_pieces_that_only_go_alone_are_worth_the_whole_card_each() -> None:
    values = remainder_values({600: 4, 700: 4})
    assert values[600] == pytest.approx(1000)
    assert values[700] == pytest.approx(1000)


def test_no_workload_no_worth() -> None:
    assert not remainder_values({}).any()
    assert not remainder_values({0: 7, 2000: 1}).any()


@given(_pieces)
def test_more_room_is_never_worth_less_and_no_card_more_than_a_card(pieces: dict[int, int]) -> None:
    values = remainder_values(pieces)
    assert len(values) == 1001
    assert (np.diff(values) >= 0).all()
    assert values[0] == 0
    assert values[-1] <= 1000 * (1 + 1e-6)


@given(_pieces)
def test_worth_adds_up_at_least(pieces: dict[int, int]) -> None:
    """What fills two rooms also fills the room of both: worth(a) + worth(b) <= worth(a + b)."""
    values = remainder_values(pieces)
    for left, right in product(range(0, 501, 50), repeat=2):
        assert values[left] + values[right] <= values[left + right] + 1e-3


@given(st.dictionaries(st.sampled_from([100, 250, 300, 330, 450, 500, 600, 810, 1000]), st.integers(1, 9), min_size=1))
def test_the_prices_are_the_dual_of_the_fewest_cards(pieces: dict[int, int]) -> None:
    """Strong duality, checked against the same program solved over all ways to fill a card, by brute force."""
    sizes = sorted(pieces)
    patterns = [
        pattern
        for pattern in product(*(range(1000 // size + 1) for size in sizes))
        if 0 < sum(count * size for count, size in zip(pattern, sizes, strict=True)) <= 1000
    ]
    values = remainder_values(pieces)
    # The price of a size is no more than the worth of that much room, and the mix's worth is the bound in cards.
    bound = sum(times * values[size] for size, times in pieces.items()) / 1000
    assert bound <= sum(pieces.values()) + 1e-3
    assert bound >= sum(size * times for size, times in pieces.items()) / 1000 - 1e-3
    for pattern in patterns:
        worth = sum(count * values[size] for count, size in zip(pattern, sizes, strict=True))
        assert worth <= 1000 * (1 + 1e-6)
