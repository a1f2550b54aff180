"""Plain columns."""

from __future__ import annotations

import pytest

from aliquot.cli.tables import bar, printable, table


def test_columns_stand_two_spaces_apart_and_lines_end_without_any() -> None:
    assert table(("NAME", "N", ""), [("a", "10", ""), ("longer", "5", "x")], right=frozenset({1})) == (
        "NAME     N\na       10\nlonger   5  x"
    )


def test_chinese_characters_are_two_columns_wide() -> None:
    assert table(("节点", "N"), [("abcd", "1")]).splitlines() == ["节点  N", "abcd  1"]


@pytest.mark.parametrize(("part", "drawn"), [(0, ""), (0.5, "██"), (1, "████"), (9, "████"), (-1, ""), (0.28, "█▏")])
def test_a_bar_is_drawn_in_eighths_and_never_past_its_width(part: float, drawn: str) -> None:
    assert bar(part, 4) == drawn


def test_what_would_steer_a_terminal_is_written_out() -> None:
    assert printable("a\x1b[2J\nb\ud800é") == "a\\x1b[2J\\nb\\ud800é"


def test_a_cell_is_one_line_whatever_is_in_it() -> None:
    assert table(("NAME", "N"), [("a\nb\x1b[2J", "1")]).splitlines() == ["NAME         N", "a\\nb\\x1b[2J  1"]
