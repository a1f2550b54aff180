"""`aliquot ps`: who runs and who waits."""

from __future__ import annotations

import json
import shlex
from typing import Any

import click

from aliquot.cli.client import ask
from aliquot.cli.pods.rows import age, apps, core, state_of, waiting_lines
from aliquot.cli.tables import printable, table
from aliquot.wording.amounts import duration, memory
from aliquot.wording.shortage import reason

_LONGEST_COMMAND = 60


@click.command()
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def ps(output: str) -> None:
    """Show who runs on the cards of this machine, and who waits."""
    status = ask({"op": "status"})
    if output == "json":
        told = {key: status[key] for key in ("tenants", "queue", "pods") if key in status}
        click.echo(json.dumps(told, indent=2))
        return
    head = ("NAME", "CLASS", "PID", "CARDS", "MEMORY", "CORE", "STATE", "SINCE", "COMMAND")
    pods = {pod["key"]: pod for pod in status.get("pods", ())}
    runs = [each for each in status["queue"] if each["name"] not in pods]
    there = {tenant["name"] for tenant in [*status["tenants"], *status["queue"]]}
    pending = [pod for pod in pods.values() if pod["phase"] == "Pending"]
    several = len(status.get("nodes", ())) > 1
    rows = [_running(tenant, pods.get(tenant["name"]), several=several) for tenant in status["tenants"]]
    rows += [_waiting(each, pods.get(each["name"])) for each in status["queue"]]
    rows += [_pending(each) for each in pending if each["key"] not in there]
    if not rows:
        click.echo("nothing runs")
        return
    click.echo(table(head, rows, right=frozenset({2})))
    for run in runs:
        click.echo(printable(f"{run['name']} waits ({run['position']} of {run['of']}): {reason(run)}"))
    for line in waiting_lines(pending):
        click.echo(line)


def _running(tenant: dict[str, Any], pod: dict[str, Any] | None = None, *, several: bool = False) -> tuple[str, ...]:
    """`several` nodes: a card's number alone says too little."""
    cards = tenant["cards"]
    first: dict[str, Any] = cards[0] if cards else {"exclusive": False, "memory_limit_bytes": 0, "core": None}
    states = list(dict.fromkeys(card["state"] for card in cards))
    pid, command = (tenant["pid"], _command(tenant["command"])) if pod is None else _first(pod)
    return (
        tenant["name"],
        tenant["class"],
        "-" if pid is None else str(pid),
        (f"{tenant['node']}/" if several and tenant.get("node") else "")
        + ",".join(str(card["index"]) for card in cards),
        "whole" if first["exclusive"] else memory(first["memory_limit_bytes"] >> 20),
        core(first["core"]),
        ",".join(states),
        duration(int(tenant["age_seconds"])),
        command,
    )


def _first(pod: dict[str, Any]) -> tuple[int | None, str]:
    """Process and command of the first container that runs; the others are counted."""
    containers = pod["containers"]
    first = next(
        (container for container in containers if container["state"] == "running"), next(iter(apps(pod)), None)
    )
    if first is None:
        return None, "-"
    more = f" (and {len(containers) - 1} more)" if len(containers) > 1 else ""
    return first["pid"], _command(first["command"], _LONGEST_COMMAND - len(more)) + more


def _pending(pod: dict[str, Any]) -> tuple[str, ...]:
    pid, command = _first(pod)
    where = "-" if pid is None else str(pid)
    return (pod["key"], pod["class"], where, "-", "-", "-", state_of(pod).lower(), age(pod["created"]), command)


def _waiting(entry: dict[str, Any], pod: dict[str, Any] | None = None) -> tuple[str, ...]:
    wanted = "whole" if entry["core"] is None else "-"
    if entry["memory_bytes"] is not None:
        wanted = memory(entry["memory_bytes"] >> 20)
    place = f"{entry['gpus']} wanted"
    state = f"queued {entry['position']}"
    since = duration(int(entry["waited_seconds"]))
    pid, command = (entry["pid"], _command(entry["command"])) if pod is None else _first(pod)
    who = "-" if pid is None else str(pid)
    return (entry["name"], entry["class"], who, place, wanted, core(entry["core"]), state, since, command)


def _command(words: list[str], longest: int = _LONGEST_COMMAND) -> str:
    text = printable(shlex.join(words))
    return text if len(text) <= longest else text[: longest - 3] + "..."
