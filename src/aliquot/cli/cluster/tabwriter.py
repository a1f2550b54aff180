"""Columns as Go's text/tabwriter lays them out, for output that must be the peer's to the byte.

A cell ends with a TAB. Lines that follow each other and have a cell in the same column form a block, and the cells of
a block are as wide as its widest plus two spaces. What stands after a line's last TAB is no cell and is not padded; a
line that ends with a TAB therefore ends with spaces.
"""

from __future__ import annotations

_PADDING = 2


def tabulated(text: str) -> str:
    """The text with its TABs turned into columns; as NewWriter(.., 0, 0, 2, ' ', 0) would write it."""
    lines = [line.split("\t") for line in text.split("\n")]
    widths: list[list[int]] = [[] for _ in lines]
    _measure(lines, widths, 0, len(lines), 0)
    return "\n".join(
        "".join(cell.ljust(width) for cell, width in zip(line, wide, strict=False)) + line[-1]
        for line, wide in zip(lines, widths, strict=True)
    )


def _measure(lines: list[list[str]], widths: list[list[int]], start: int, end: int, column: int) -> None:
    """The widths of this column for the lines from start to end, block by block; then of those to its right."""
    at = start
    while at < end:
        if column >= len(lines[at]) - 1:
            at += 1
            continue
        first = at
        while at < end and column < len(lines[at]) - 1:
            at += 1
        wide = max(len(line[column]) for line in lines[first:at]) + _PADDING
        for width in widths[first:at]:
            width.append(wide)
        _measure(lines, widths, first, at, column + 1)
