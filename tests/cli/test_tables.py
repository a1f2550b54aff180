"""Plain columns."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from aliquot import cli
from aliquot.cli.tables import bar, narrowed, printable, table
from aliquot.model.text import printable_json


def test_table_columns() -> None:
    assert table(("NAME", "N", ""), [("a", "10", ""), ("longer", "5", "x")], right=frozenset({1})) == (
        "NAME     N\na       10\nlonger   5  x"
    )


def test_table_wide_characters() -> None:
    assert table(("节点", "N"), [("abcd", "1")]).splitlines() == ["节点  N", "abcd  1"]


@pytest.mark.parametrize(("part", "drawn"), [(0, ""), (0.5, "██"), (1, "████"), (9, "████"), (-1, ""), (0.28, "█▏")])
def test_bar(part: float, drawn: str) -> None:
    assert bar(part, 4) == drawn


def test_printable_escapes_control_characters() -> None:
    assert printable("a\x1b[2J\nb\ud800é") == "a\\x1b[2J\\nb\\ud800é"


def test_table_cell_is_one_line() -> None:
    assert table(("NAME", "N"), [("a\nb\x1b[2J", "1")]).splitlines() == ["NAME         N", "a\\nb\\x1b[2J  1"]


@pytest.mark.parametrize(
    ("width", "kept"),
    [
        (None, ["NAME", "PID", "STATE", "COMMAND"]),
        (40, ["NAME", "PID", "STATE", "COMMAND"]),
        (30, ["NAME", "PID", "STATE"]),
        (14, ["NAME", "STATE"]),
        (1, ["NAME", "STATE"]),
    ],
)
def test_narrow_terminal_loses_the_least_columns(width: int | None, kept: list[str]) -> None:
    head, rows = narrowed(
        ("NAME", "PID", "STATE", "COMMAND"), [("a", "12", "running", "x" * 16)], width, ("COMMAND", "PID")
    )
    assert head == kept
    assert [len(row) for row in rows] == [len(kept)]


HOSTILE = "a\x1b[2J\x7f\x9b31m\u202e\U000e0001\n日"


def test_json_steers_no_terminal_and_says_the_same() -> None:
    """JSON itself escapes only what is below space; some terminals obey U+009B as they obey escape and bracket."""
    for text in (json.dumps({HOSTILE: [HOSTILE]}, indent=2, ensure_ascii=False), msgspec.json.encode(HOSTILE).decode()):
        shown = printable_json(text)
        assert all(line.isprintable() for line in shown.split("\n"))
        assert json.loads(shown) == json.loads(text)
        assert "日" in shown


def test_every_command_that_writes_json_escapes_what_steers_terminals() -> None:
    """`json.dumps` does by itself, unless it is told to leave Unicode as it is."""
    for path in Path(cli.__file__).parent.rglob("*.py"):
        for line in path.read_text().splitlines():
            if "msgspec.json.format(" in line or "ensure_ascii=False" in line:
                assert "printable_json(" in line or line.strip().startswith("entry = "), f"{path}: {line}"
