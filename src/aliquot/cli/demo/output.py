"""How the story is told: a terminal sees bars that move and how long it takes; everybody else plain lines."""

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
    """A tenant as it stands: `note` is what it was promised, or what it is."""

    name: str
    note: str
    share: float | None


class Teller(Protocol):
    """Who tells."""

    def say(self, text: str = "") -> None:
        """What stays."""

    def show(self, rows: Sequence[Row]) -> None:
        """What is so at this moment."""


def scene(teller: Teller, number: int, title: str) -> None:
    """What follows, and why it is worth looking at."""
    teller.say()
    teller.say(f"{number}/4  {title}")


def note(teller: Teller, text: str) -> None:
    """One thing that happened."""
    teller.say(_INDENT + printable(text))


def kept(teller: Teller, rows: Sequence[Row]) -> None:
    """Bars that stay: what was measured."""
    for line in lines(rows).splitlines():
        teller.say(f"{_INDENT}  {line}")


def lines(rows: Sequence[Row]) -> str:
    """One bar for each."""
    shown = [
        (printable(row.name), printable(row.note), "-" if row.share is None else f"{row.share:6.1%}", _bar(row.share))
        for row in rows
    ]
    return "\n".join(table(shown[0], shown[1:], frozenset({2})).splitlines()) if shown else ""


def _bar(share: float | None) -> str:
    return bar(share or 0.0, _BAR)


class Plain:
    """Lines, as they happen; to stderr where stdout is for data."""

    def __init__(self, *, err: bool = False) -> None:
        self._err = err

    def say(self, text: str = "") -> None:
        click.echo(text, err=self._err)

    def show(self, rows: Sequence[Row]) -> None:
        """Nobody sees them move."""


class Lively:
    """The lines, and below them the bars and how far the story is."""

    def __init__(self, live: Any, seconds: float, clock: Callable[[], float]) -> None:
        self._live, self._seconds, self._clock = live, seconds, clock
        self._began = clock()
        self._rows: Sequence[Row] = ()

    def say(self, text: str = "") -> None:
        from rich.text import Text

        self._live.console.print(Text(text), soft_wrap=True)

    def show(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._live.update(self, refresh=True)

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.text import Text

        told = self._clock() - self._began
        parts = [Text(f"{_INDENT}  {line}", style="cyan", no_wrap=True) for line in lines(self._rows).splitlines()]
        if told < self._seconds:
            line = f"{_INDENT}{bar(told / self._seconds, _BAR):<{_BAR}}  {self._seconds - told:.0f} s to go"
            parts.append(Text(line, style="dim", no_wrap=True))
        return Group(Text(), *parts)


@contextlib.contextmanager
def lively(seconds: float) -> Iterator[Lively]:
    """On a terminal, for a story of so many seconds."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    with Live(console=console, auto_refresh=True, refresh_per_second=4, transient=True) as live:
        teller = Lively(live, seconds, time.monotonic)
        live.update(teller)
        yield teller
