"""Plain text tables, for terminals and pipes."""

from __future__ import annotations

import shutil
import sys
import time
import unicodedata
from collections.abc import Sequence

from aliquot.model.text import printable as printable


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[int] = frozenset()) -> str:
    """Columns two spaces apart; the columns in `right` are right-aligned. Cells contain no control characters."""
    every = [head, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(_width(row[at]) for row in every) for at in range(len(head))]
    return "\n".join(
        "  ".join(_pad(row[at], widths[at], at in right) for at in range(len(head))).rstrip() for row in every
    )


def narrowed(
    head: Sequence[str], rows: Sequence[Sequence[str]], width: int | None, droppable: Sequence[str]
) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Head and rows without the first of the droppable columns, as many as must go for the table to fit the width."""
    columns = list(range(len(head)))
    gone = [at for name in droppable for at in range(len(head)) if head[at] == name]
    sizes = [max(_width(printable(row[at])) for row in (head, *rows)) for at in columns]
    while width is not None and gone and sum(sizes[at] + 2 for at in columns) - 2 > width:
        columns.remove(gone.pop(0))
    return [head[at] for at in columns], [[row[at] for at in columns] for row in rows]


def terminal_width() -> int | None:
    """Columns of the terminal; None if the output goes elsewhere, where lines may be long."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def bar(part: float, width: int) -> str:
    """A bar in eighths of a character; `part` is from 0 to 1."""
    eighths = round(max(0.0, min(1.0, part)) * width * 8)
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]


def date_time(epoch: float) -> str:
    """The time in this machine's time zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(epoch))


def _width(text: str) -> int:
    """Columns on a terminal: Chinese characters take two."""
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)


def _pad(text: str, width: int, right: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if right else text + space
