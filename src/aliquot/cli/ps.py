"""`aliquot ps`: who runs and who waits."""

from __future__ import annotations

import json
import shlex
from typing import Any

import click

from aliquot.cli.amounts import duration, memory
from aliquot.cli.asking import ask
from aliquot.cli.tables import printable, table
from aliquot.cli.waiting import reason

_LONGEST_COMMAND = 60


@click.command()
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def ps(output: str) -> None:
    """Show who runs on the cards of this machine, and who waits."""
    status = ask({"op": "status"})
    if output == "json":
        click.echo(json.dumps({"tenants": status["tenants"], "queue": status["queue"]}, indent=2))
        return
    head = ("NAME", "CLASS", "PID", "CARDS", "MEMORY", "CORE", "STATE", "SINCE", "COMMAND")
    rows = [_running(each) for each in status["tenants"]] + [_waiting(each) for each in status["queue"]]
    if not rows:
        click.echo("nothing runs")
        return
    click.echo(table(head, rows, right=frozenset({2})))
    for each in status["queue"]:
        click.echo(f"{each['name']} waits ({each['position']} of {each['of']}): {reason(each)}")


def _running(tenant: dict[str, Any]) -> tuple[str, ...]:
    cards = tenant["cards"]
    first: dict[str, Any] = cards[0] if cards else {"exclusive": False, "memory_limit_bytes": 0, "core": None}
    states = list(dict.fromkeys(card["state"] for card in cards))
    return (
        tenant["name"],
        tenant["class"],
        "-" if tenant["pid"] is None else str(tenant["pid"]),  # a Pod has several
        ",".join(str(card["index"]) for card in cards),
        "whole" if first["exclusive"] else memory(first["memory_limit_bytes"] >> 20),
        core(first["core"]),
        ",".join(states),
        duration(int(tenant["age_seconds"])),
        _command(tenant["command"]),
    )


def _waiting(entry: dict[str, Any]) -> tuple[str, ...]:
    wanted = "whole" if entry["core"] is None else "-"
    if entry["memory_bytes"] is not None:
        wanted = memory(entry["memory_bytes"] >> 20)
    place = f"{entry['gpus']} wanted"
    state = f"queued {entry['position']}"
    since = duration(int(entry["waited_seconds"]))
    command = _command(entry["command"])
    return (entry["name"], entry["class"], str(entry["pid"]), place, wanted, core(entry["core"]), state, since, command)


def core(percent: float | None) -> str:
    """As --core says it."""
    return "-" if percent is None else f"{percent:g}%"


def _command(words: list[str]) -> str:
    text = printable(shlex.join(words))
    return text if len(text) <= _LONGEST_COMMAND else text[: _LONGEST_COMMAND - 3] + "..."
