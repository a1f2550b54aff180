"""Amounts as people read them: one format everywhere."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.cli.amounts import parse_memory
from aliquot.wording.amounts import (
    at_most,
    count,
    cpus,
    duration,
    in_units,
    memory,
    memory_at_most,
    memory_of,
    needed_and_had,
    percent,
    unlike,
)


@pytest.mark.parametrize(
    ("mib", "text"),
    [
        (0, "0 GiB"),
        (512, "512 MiB"),
        (1023, "1023 MiB"),
        (1024, "1 GiB"),
        (1536, "1.5 GiB"),
        (1500, "1.5 GiB"),
        (10_240, "10 GiB"),
        (24_564, "24 GiB"),
        (143_771, "140.4 GiB"),
    ],
)
def test_memory_has_a_unit_and_no_trailing_zero(mib: int, text: str) -> None:
    assert memory(mib) == text


@given(st.integers(0, 1 << 24))
def test_memory_at_most_never_says_more_than_there_is(mib: int) -> None:
    assert parse_memory(memory_at_most(max(mib, 1))) <= max(mib, 1)
    assert at_most(mib, 1024) <= mib / 1024
    assert re.fullmatch(r"[0-9]+(\.[1-9])? (MiB|GiB)", memory(mib))


@given(st.integers(1, 1 << 24), st.integers(0, 1 << 24))
def test_needed_and_had_look_different_where_something_is_missing(needed: int, had: int) -> None:
    words = needed_and_had(needed, had)
    assert had >= needed or words[0] != words[1]


@given(st.integers(0, 1 << 24), st.integers(0, 1 << 24))
def test_unlike_amounts_look_different(one: int, another: int) -> None:
    words = unlike(one, another)
    assert (words[0] == words[1]) is (one == another)


@pytest.mark.parametrize(
    ("used", "total", "text"),
    [
        (18 * 1024, 24 * 1024, "18 of 24 GiB"),
        (0, 24 * 1024, "0 of 24 GiB"),
        (50, 24 * 1024, "0.05 of 24 GiB"),
        (100, 512, "100 of 512 MiB"),
        (1536, 4096 * 1024, "1.5 of 4,096 GiB"),
        (0, 0, "0 of 0 GiB"),
    ],
)
def test_memory_of_a_total_names_the_unit_once(used: int, total: int, text: str) -> None:
    assert memory_of(used, total) == text


def test_needed_and_had_fall_back_to_mib() -> None:
    assert needed_and_had(10_240, 6_144) == ("10 GiB", "6 GiB")
    assert needed_and_had(3_072, 3_071) == ("3 GiB", "2.9 GiB")
    assert needed_and_had(12_290, 12_289) == ("12290 MiB", "12289 MiB")


def test_percent_cpus_and_counts_have_no_trailing_zero() -> None:
    assert (percent(300), percent(125), percent(0)) == ("30%", "12.5%", "0%")
    assert (cpus(4000), cpus(1500)) == ("4", "1.5")
    assert (count(1, "card"), count(0, "card"), count(2000, "card")) == ("1 card", "0 cards", "2,000 cards")
    assert (in_units(1536, 1024), in_units(2048, 1024)) == (1.5, 2)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.1, "100ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (59, "59s"),
        (60, "1m00s"),
        (3599, "59m59s"),
        (3600, "1h00m"),
        (172800, "2d00h"),
    ],
)
def test_duration_has_one_or_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text
