"""Plain text tables, for terminals and pipes."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[int] = frozenset()) -> str:
    """Columns two spaces apart; the columns in `right` are right-aligned. Cells contain no control characters."""
    every = [head, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(_width(row[at]) for row in every) for at in range(len(head))]
    return "\n".join(
        "  ".join(_pad(row[at], widths[at], at in right) for at in range(len(head))).rstrip() for row in every
    )


def bar(part: float, width: int) -> str:
    """A bar in eighths of a character; `part` is from 0 to 1."""
    eighths = round(max(0.0, min(1.0, part)) * width * 8)
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]


def printable(text: str) -> str:
    """The text on one line, control characters escaped: names may come from files of other users."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def _width(text: str) -> int:
    """Columns on a terminal: Chinese characters take two."""
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)


def _pad(text: str, width: int, right: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if right else text + space
