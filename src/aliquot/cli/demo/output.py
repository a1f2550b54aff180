"""Output of the demo: live bars and remaining time on a terminal, plain lines otherwise."""

from __future__ import annotations

import contextlib
import shutil
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import click

from aliquot.cli.tables import bar, printable, table

WIDTH = 80
_BAR = 30
_INDENT = "     "
_QUIET, _SILENT, _TICK = 2.4, 2.7, 0.1  # seconds


@dataclass(frozen=True, slots=True)
class Row:
    """A tenant and its current share. `note`: its quota or class."""

    name: str
    note: str
    share: float | None


Part = str | tuple[str, str]  # of a line: text, or text and its style


class Output(Protocol):
    """Where the demo prints."""

    def line(self, *parts: Part) -> None:
        """Print a line."""

    def show(self, rows: Sequence[Row]) -> None:
        """Show the current shares."""

    def finish(self) -> None:
        """All parts have run: show no remaining time."""


def heading(out: Output, number: int, title: str) -> None:
    """Print the title of a part."""
    out.line()
    out.line((f"{number}/5  {title}", "bold"))


def paragraph(out: Output, text: str, indent: str = "", hanging: str = "") -> None:
    """Print a text, wrapped."""
    for line in textwrap.wrap(
        printable(text), _width(), initial_indent=indent, subsequent_indent=indent + hanging, break_on_hyphens=False
    ):
        out.line(line)


def note(out: Output, text: str, level: int = 0) -> None:
    """Print an indented text, wrapped."""
    paragraph(out, text, _INDENT + level * "  ", "  ")


def command(out: Output, text: str) -> None:
    """Print a command. A long one continues after a backslash, so that it can be pasted."""
    first, *rest = textwrap.wrap(
        printable(text), _width() - len(_INDENT) - 6, break_on_hyphens=False, break_long_words=False
    )
    for at, line in enumerate((f"{_INDENT}$ {first}", *(f"{_INDENT}    {part}" for part in rest))):
        out.line((line + (" \\" if at < len(rest) else ""), "cyan"))


def _width() -> int:
    return min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)


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

    def __init__(self, *, err: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._err, self._clock = err, clock
        self._began = self._printed = clock()
        self._finished = False

    def line(self, *parts: Part) -> None:
        click.echo("".join(_text(part) for part in parts), err=self._err)
        self._printed = self._clock()

    def show(self, rows: Sequence[Row]) -> None:
        """A line of shares where nothing else was printed for a while: a measurement takes many seconds."""
        if rows and not self._finished and self._clock() - self._printed >= _QUIET:
            shares = ", ".join(f"{printable(row.name)} {row.share or 0.0:.0%}" for row in rows)
            note(self, f"{self._clock() - self._began:.0f} s: {shares}", 1)

    def finish(self) -> None:
        """From now on only lines."""
        self._finished = True

    def print_time(self) -> None:
        """Where nothing was printed for longer than `show` would let pass: something starts or ends."""
        if not self._finished and self._clock() - self._printed >= _SILENT:
            self.line(f"{_INDENT}  {self._clock() - self._began:.0f} s ...")


@contextlib.contextmanager
def plain_output(*, err: bool) -> Iterator[PlainOutput]:
    """Never silent for more than three seconds."""
    out, over = PlainOutput(err=err), threading.Event()

    def tick() -> None:
        while not over.wait(_TICK):
            out.print_time()

    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    try:
        yield out
    finally:
        over.set()
        ticker.join()


class LiveOutput:
    """Lines, and below them the live bars and the remaining time."""

    def __init__(self, live: Any, seconds: float, clock: Callable[[], float]) -> None:
        self._live, self._seconds, self._clock = live, seconds, clock
        self._began = clock()
        self._rows: Sequence[Row] = ()
        self._finished = False

    def line(self, *parts: Part) -> None:
        from rich.text import Text

        self._live.console.print(Text.assemble(*parts), soft_wrap=True)

    def show(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._live.update(self, refresh=True)

    def finish(self) -> None:
        self._finished = True

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.text import Text

        parts = [Text(f"{_INDENT}  {line}", style="cyan", no_wrap=True) for line in lines(self._rows).splitlines()]
        if not self._finished:
            parts.append(Text(_INDENT + self._remaining(), style="dim", no_wrap=True))
        return Group(Text(), *parts)

    def _remaining(self) -> str:
        elapsed = self._clock() - self._began
        left = self._seconds - elapsed
        words = f"{left:.0f} s to go" if left > 0 else f"{-left:.0f} s more than planned"
        return f"{bar(elapsed / self._seconds, _BAR):<{_BAR}}  {words}"


def _text(part: Part) -> str:
    return part if isinstance(part, str) else part[0]


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
