"""Output of the demo: live bars and remaining time on a terminal, plain lines otherwise."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import click

from aliquot.cli.tables import bar, printable, table

_BAR = 30
_INDENT = "     "


@dataclass(frozen=True, slots=True)
class Row:
    """A tenant and its current share. `note`: its quota or class."""

    name: str
    note: str
    share: float | None


class Output(Protocol):
    """Where the demo prints."""

    def line(self, text: str = "") -> None:
        """Print a line."""

    def show(self, rows: Sequence[Row]) -> None:
        """Show the current shares."""


def heading(out: Output, number: int, title: str) -> None:
    """Print the title of a part."""
    out.line()
    out.line(f"{number}/4  {title}")


def note(out: Output, text: str) -> None:
    """Print an indented line."""
    out.line(_INDENT + printable(text))


def bars(out: Output, rows: Sequence[Row]) -> None:
    """Print the measured shares as bars."""
    for line in lines(rows).splitlines():
        out.line(f"{_INDENT}  {line}")


def lines(rows: Sequence[Row]) -> str:
    """One line with a bar per row."""
    shown = [
        (printable(row.name), printable(row.note), "-" if row.share is None else f"{row.share:6.1%}", _bar(row.share))
        for row in rows
    ]
    return "\n".join(table(shown[0], shown[1:], frozenset({2})).splitlines()) if shown else ""


def _bar(share: float | None) -> str:
    return bar(share or 0.0, _BAR)


class PlainOutput:
    """Plain lines; on stderr if stdout is for data."""

    def __init__(self, *, err: bool = False) -> None:
        self._err = err

    def line(self, text: str = "") -> None:
        click.echo(text, err=self._err)

    def show(self, rows: Sequence[Row]) -> None:
        """Nothing: plain output has no live bars."""


class LiveOutput:
    """Lines, and below them the live bars and the remaining time."""

    def __init__(self, live: Any, seconds: float, clock: Callable[[], float]) -> None:
        self._live, self._seconds, self._clock = live, seconds, clock
        self._began = clock()
        self._rows: Sequence[Row] = ()

    def line(self, text: str = "") -> None:
        from rich.text import Text

        self._live.console.print(Text(text), soft_wrap=True)

    def show(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._live.update(self, refresh=True)

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.text import Text

        elapsed = self._clock() - self._began
        parts = [Text(f"{_INDENT}  {line}", style="cyan", no_wrap=True) for line in lines(self._rows).splitlines()]
        if elapsed < self._seconds:
            line = f"{_INDENT}{bar(elapsed / self._seconds, _BAR):<{_BAR}}  {self._seconds - elapsed:.0f} s to go"
            parts.append(Text(line, style="dim", no_wrap=True))
        return Group(Text(), *parts)


@contextlib.contextmanager
def live_output(seconds: float) -> Iterator[LiveOutput]:
    """On a terminal, for a demo of that many seconds."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    with Live(console=console, auto_refresh=True, refresh_per_second=4, transient=True) as live:
        out = LiveOutput(live, seconds, time.monotonic)
        live.update(out)
        yield out
