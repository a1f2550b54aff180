"""`aliquot top`: what each card and each tenant does at this moment."""

from __future__ import annotations

import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from aliquot.cli.client import ask
from aliquot.cli.pods.rows import core, waiting_lines
from aliquot.cli.tables import bar, printable, table
from aliquot.wording.amounts import duration, memory
from aliquot.wording.shortage import reason

_HEAD = ("NAME", "CLASS", "CORE", "SHARE", "", "MEMORY", "STATE", "LEVEL", "PREEMPTED")
_RIGHT = frozenset({2, 3, 8, 9})
_REFUSED = "REFUSED"  # shown where there is any
_BAR = 10
_MANY = 4  # cards; with more, those that nobody is on are summed up


@click.command()
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--once", is_flag=True, help="Show it once and end; always so with -o json, or when nobody looks")
@click.option(
    "--every",
    "interval",
    metavar="SECONDS",
    type=click.FloatRange(0.1, 60),
    default=1.0,
    show_default=True,
    help="From look to look",
)
def top(output: str, once: bool, interval: float) -> None:
    """Show what each card and each tenant does, over and over. q or Ctrl-C leaves.

    \b
    SHARE      part of the card's time over the last second
    STATE      running, idle, paused (online work has the card), waiting (for its turn)
    LEVEL      hardware (cut off in mid-kernel) or gate (held before the next kernel)
    PREEMPTED  times that online work took the card; with release delay 0, requests in a row are one time
    REFUSED    allocations past the memory limit; shown where there were any
    """
    status = ask({"op": "status"})
    if output == "json":
        click.echo(json.dumps(status, indent=2))
    elif once or not sys.stdout.isatty():
        click.echo(view(status))
    else:
        _live(status, interval)


def view(status: dict[str, Any]) -> str:
    """The whole of it, as text."""
    rules = status["rules"]
    delay = duration(rules["release_delay_seconds"])
    node, simulated = (status["daemon"].get(key) for key in ("node", "simulated"))
    lines = [
        (f"node {node}, " if node else "")
        + f"policy {rules['policy']}, release delay {delay}"
        + (f", simulated cards {simulated}" if simulated else "")
    ]
    waits_for = status.get("agent", {}).get("waits_for")
    if waits_for:
        lines.append(f"not ready: {waits_for}")
    refused = any(card["refused_allocations"] for tenant in status["tenants"] for card in tenant["cards"])
    several = len({card.get("node") for card in status["cards"]}) > 1
    empty = _empty(status) if len(status["cards"]) > _MANY else []
    for card in status["cards"]:
        if card in empty:
            continue
        lines += ["", _card_line(card, several)]
        rows = [
            (*_row(tenant, each), *([str(each["refused_allocations"])] if refused else []))
            for tenant in status["tenants"]
            for each in tenant["cards"]
            if each["uuid"] == card["uuid"]
        ]
        if rows:
            lines.append(table((*_HEAD, _REFUSED) if refused else _HEAD, rows, _RIGHT))
    lines += ["", *_empty_lines(empty, several)] if empty else []
    waiting = list(_waiting(status))
    lines += ["", *waiting] if waiting else []
    if status["findings"]:
        lines.append("")
        lines += [printable(_finding(finding, status["cards"])) for finding in status["findings"]]
    # What a process calls itself, a card, or a reason of others: shown, but it steers no terminal.
    return "\n".join(printable(line) for block in lines for line in block.split("\n"))


def _waiting(status: dict[str, Any]) -> Iterator[str]:
    """Runs by their place in the queue; Pods, which stand in the same queue, tell theirs with the reason."""
    pods = {pod["key"]: pod for pod in status.get("pods", ())}
    for each in status["queue"]:
        if each["name"] not in pods:
            yield f"waiting {each['position']}: {each['name']}: {reason(each)}"
    yield from waiting_lines(pod for pod in pods.values() if pod["phase"] == "Pending")


def _empty(status: dict[str, Any]) -> list[dict[str, Any]]:
    """The cards that nobody is on, and on which nothing happens."""
    taken = {card["uuid"] for tenant in status["tenants"] for card in tenant["cards"]}
    taken |= {finding["uuid"] for finding in status["findings"]}
    return [
        card
        for card in status["cards"]
        if card["uuid"] not in taken and card.get("healthy", True) and not card["utilisation"]
    ]


def _empty_lines(cards: list[dict[str, Any]], several: bool) -> Iterator[str]:
    """Alike ones of a node in one line."""
    alike: dict[tuple[str, str, int], list[str]] = {}
    for card in cards:
        node = f"{card['node']} " if several else ""
        alike.setdefault((node, card["model"], card["memory_bytes"]), []).append(str(card["index"]))
    for (node, model, size), numbers in alike.items():
        of_each = " each" if len(numbers) > 1 else ""
        which = f"card{'s' * bool(of_each)} {', '.join(numbers)}"
        yield f"{node}{which}  {model}, {memory(size >> 20)}{of_each}, nobody on {'them' if of_each else 'it'}"


def _finding(found: dict[str, Any], cards: list[dict[str, Any]]) -> str:
    where = next((f"card {card['index']}" for card in cards if card["uuid"] == found["uuid"]), found["uuid"])
    who = "" if found["pid"] is None else f"process {found['pid']} "
    return f"found on {where}: {who}{found['text']}"


def _card_line(card: dict[str, Any], several: bool) -> str:
    """`several`: there is more than one node, as on simulated ones."""
    node = f"{card['node']} " if several else ""
    words = [f"{node}card {card['index']}  {card['model']}"]
    if card["utilisation"] is not None:
        words.append(f"busy {card['utilisation']:.0%}")
    used, total = card["memory_used_bytes"], memory(card["memory_bytes"] >> 20)
    words.append(total if used is None else f"{memory(used >> 20)} of {total} in use")
    words.append(f"{memory(card['memory_booked_bytes'] >> 20)} booked")
    if not card.get("healthy", True):
        words.append(f"OUT: {printable(card['why_out'] or 'it does not say why')}")
    return ", ".join(words)


def _row(tenant: dict[str, Any], card: dict[str, Any]) -> tuple[str, ...]:
    share = card["share"]
    return (
        tenant["name"],
        tenant["class"],
        core(card["core"]),
        "-" if share is None else f"{share:6.1%}",  # as wide as ever: nothing moves from look to look
        ("" if share is None else bar(share, _BAR)).ljust(_BAR),
        f"{memory(card['memory_used_bytes'] >> 20)} / {memory(card['memory_limit_bytes'] >> 20)}",
        card["state"],
        card["level"],
        str(card["preemptions"]),
    )


def _live(status: dict[str, Any], interval: float) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)

    def shown(status: dict[str, Any]) -> Text:
        return Text(fitted(view(status), console.height), no_wrap=True, overflow="ellipsis")

    with _keys() as left, Live(shown(status), console=console, screen=True, auto_refresh=False) as live:
        while not left(interval):
            live.update(shown(ask({"op": "status"})), refresh=True)


def fitted(text: str, height: int) -> str:
    """What does not fit on the screen is counted in its last line."""
    lines = text.splitlines()
    more = len(lines) - height + 1
    return text if more <= 1 else "\n".join([*lines[: height - 1], f"... {more} more lines: aliquot top --once"])


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Waits as long as it is told, and tells whether q was pressed meanwhile."""
    if not sys.stdin.isatty():
        yield _asleep
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)

    def left(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while (rest := until - time.monotonic()) > 0:
            if not select.select([keyboard], [], [], rest)[0]:
                break
            pressed = os.read(keyboard, 64)
            if not pressed or b"q" in pressed.lower():  # nothing at all: the terminal is gone
                return True
        return False

    try:
        tty.setcbreak(keyboard)
        yield left
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _asleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False
