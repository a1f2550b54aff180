"""What share of the card each context had."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.arbiter.account import Shares, divide

_slices = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 1_000_000))
_busy = st.dictionaries(st.sampled_from("abcdefxy"), st.floats(0.0, 1e9))


@given(_busy, _slices, _slices)
def test_divide_gives_no_more_than_there_is(
    busy: dict[str, float], front: dict[str, int], slices: dict[str, int]
) -> None:
    behind = {name: length for name, length in slices.items() if name not in front}
    parts = divide(busy, front, behind)
    assert parts.keys() == front.keys() | behind.keys()
    assert sum(parts.values()) <= 1.0 + 1e-9
    for name, part in parts.items():
        assert 0.0 <= part <= min(1.0, busy.get(name, 0.0)) + 1e-12


@given(_busy, _slices)
def test_the_card_is_full_if_there_was_work_for_it(busy: dict[str, float], front: dict[str, int]) -> None:
    wanted = sum(min(1.0, busy.get(name, 0.0)) for name in front)
    assert sum(divide(busy, front, {}).values()) == pytest.approx(min(1.0, wanted), abs=1e-6)


def test_divide_gives_busy_contexts_their_slices_part() -> None:
    assert divide({"a": 1.0, "b": 1.0}, {"a": 3000, "b": 7000}, {}) == pytest.approx({"a": 0.3, "b": 0.7})


def test_divide_gives_unused_time_to_the_others() -> None:
    parts = divide({"a": 0.1, "b": 1.0, "c": 1.0}, {"a": 5000, "b": 5000, "c": 5000}, {})
    assert parts == pytest.approx({"a": 0.1, "b": 0.45, "c": 0.45})


def test_divide_gives_the_rest_to_those_behind() -> None:
    parts = divide({"on": 0.2, "off": 1.0}, {"on": 1_000_000}, {"off": 1})
    assert parts == pytest.approx({"on": 0.2, "off": 0.8})


def test_a_share_is_the_mean_of_the_last_second() -> None:
    shares = Shares()
    for at in range(100):
        shares.add(at / 10, (at + 1) / 10, {"a": 1.0 if at < 95 else 0.0})
    assert shares.of("a") == pytest.approx(0.5, abs=0.1)
    assert shares.of("nobody") == 0.0


def test_what_was_before_does_not_count_however_long_it_took() -> None:
    shares = Shares()
    shares.add(0.0, 500.0, {"a": 1.0})
    shares.add(500.0, 500.5, {"a": 0.0})
    assert shares.of("a") == pytest.approx(0.5)


@given(st.lists(st.tuples(st.floats(-1.0, 2.0), st.floats(0.0, 1.0)), max_size=60))
def test_a_share_is_between_none_and_all_whatever_the_clock_does(stretches: list[tuple[float, float]]) -> None:
    shares, now = Shares(), 0.0
    for length, part in stretches:
        shares.add(now, now + length, {"a": part})
        now = max(now, now + length)
        assert 0.0 <= shares.of("a") <= 1.0 + 1e-9


@pytest.mark.parametrize(
    ("busy", "front", "behind", "parts"),
    [
        ({"a": 5.0}, {"a": 1}, {}, {"a": 1.0}),
        ({}, {"a": 1}, {}, {"a": 0.0}),
        ({"a": 1.0, "b": 1.0}, {"a": 1}, {"b": 1}, {"a": 1.0, "b": 0.0}),
        ({"a": 0.5, "b": 1.0}, {"a": 1, "b": 1}, {}, {"a": 0.5, "b": 0.5}),
        ({"a": 0.25, "b": 0.5, "c": 1.0}, {"a": 1, "b": 1, "c": 2}, {}, {"a": 0.25, "b": 0.25, "c": 0.5}),
        ({"a": 0.25, "b": 0.25, "c": 0.125}, {"a": 1}, {"b": 1, "c": 1}, {"a": 0.25, "b": 0.25, "c": 0.125}),
        ({"a": 0.5, "b": 1.0, "c": 0.125}, {"a": 1}, {"b": 1, "c": 1}, {"a": 0.5, "b": 0.375, "c": 0.125}),
    ],
)
def test_divide_to_the_last_part(
    busy: dict[str, float], front: dict[str, int], behind: dict[str, int], parts: dict[str, float]
) -> None:
    assert divide(busy, front, behind) == parts


def test_shares_count_the_last_second_and_nothing_else() -> None:
    shares = Shares()
    assert shares.of("a") == 0.0
    shares.add(0.0, 0.0, {"a": 1.0})
    assert shares.of("a") == 0.0
    shares.add(0.0, 0.5, {"a": 0.5})
    assert shares.of("a") == 0.5  # of the half that there is
    shares.add(0.5, 1.25, {"a": 1.0})
    assert shares.of("a") == 0.25 * 0.5 + 0.75
    shares.add(1.25, 1.5, {})
    assert shares.of("a") == 0.75
    assert len(shares._stretches) == 2
    shares.add(1.5, 2.5, {})
    assert shares.of("a") == 0.0
    assert len(shares._stretches) == 1


def test_stretch_without_length_moves_nothing() -> None:
    shares = Shares()
    shares.add(0.0, 0.5, {"a": 1.0})
    shares.add(0.5, 1.0, {})
    for began, ended in ((1.25, 1.25), (1.25, 1.0)):
        shares.add(began, ended, {"a": 1.0})
        assert shares.of("a") == 0.5
