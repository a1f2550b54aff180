"""Amounts as people type them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.cli.amounts import (
    AmountError,
    Cards,
    looks_like_cards,
    parse_cards,
    parse_duration,
    parse_memory,
)


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("10", 10240),
        ("1.5", 1536),
        ("512MiB", 512),
        ("10GiB", 10240),
        ("10gib", 10240),
        ("1TiB", 1 << 20),
        ("0.5", 512),
        ("10Gi", 10240),
        ("10G", 10240),
        ("10 GB", 10240),
        ("10240Mi", 10240),
        ("512M", 512),
        ("1TB", 1 << 20),
    ],
)
def test_parse_memory(text: str, mib: int) -> None:
    assert parse_memory(text) == mib


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "x", "10i", "10B", "10K", "1e3", "0.0001", "٣", "1" * 40, "nan", "1 GiB x"]
)
def test_parse_memory_refuses(text: str) -> None:
    with pytest.raises(AmountError, match="512MiB"):
        parse_memory(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("100ms", 0.1), ("0", 0), ("10s", 10), ("5m", 300), ("1.5h", 5400)]
)
def test_parse_duration(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "-1", "5d", "inf", "1:30"])
def test_parse_duration_refuses(text: str) -> None:
    with pytest.raises(AmountError, match="100ms"):
        parse_duration(text)


def test_parse_cards() -> None:
    assert parse_cards("2x24GiB") == Cards(2, 24576)
    assert parse_cards("1x8") == Cards(1, 8192)
    assert parse_cards("2x8x24GiB") == Cards(16, 24576, nodes=2)
    for text in (
        "2x",
        "x24",
        "0x24",
        "65x24",
        "9x8x24",
        "2x0x24",
        "0x2x24",
        "2x2x2x24",
        "2x512MiB",
        "2x2TiB",
        "2",
        "2x24KB",
    ):
        with pytest.raises(AmountError, match="2x24GiB"):
            parse_cards(text)


def test_looks_like_cards() -> None:
    assert looks_like_cards("2x24GiB")
    assert looks_like_cards("2x")  # a slip, not a command
    assert looks_like_cards("24GiB")
    assert looks_like_cards("8")
    assert not looks_like_cards("python")
    assert not looks_like_cards("7z")
    assert not looks_like_cards("./2x")


@given(st.text())
def test_parse_amounts_of_any_text(text: str) -> None:
    for parse in (parse_memory, parse_duration, parse_cards):
        try:
            parse(text)
        except AmountError:
            continue
