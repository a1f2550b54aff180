"""`aliquot describe`: all that is known of one Pod, workload or node, and why it is where it is."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click

from aliquot.cli.pods.completion import typed
from aliquot.cli.pods.kinds import NODE, POD, Kind, targets
from aliquot.cli.pods.rows import (
    age,
    cards_on,
    core,
    free_memory,
    listed,
    namespace_of,
    ready,
    selected,
    standing,
    state_of,
    whole,
)
from aliquot.cli.tables import printable, table
from aliquot.wording.amounts import duration, memory

Json = dict[str, Any]

_KEY = 12  # columns of the names on the left


@click.command()
@click.argument("what", metavar="TYPE [NAME]...", nargs=-1, required=True, shell_complete=typed)
@click.option("-n", "--namespace", help="Of Pods and workloads  [default: default]")
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Of all namespaces")
def describe(what: Sequence[str], namespace: str | None, everywhere: bool) -> None:
    """Show all that is known of a Pod, a workload or a node, and why it is where it is.

    TYPE is as for `aliquot get`; without NAME, all of that type. TYPE/NAME does too.

    \b
    aliquot describe pod binpack-1-0
    aliquot describe sts/binpack-1
    aliquot describe node
    """
    wanted = targets(what)
    where = namespace_of(namespace, everywhere)
    status = standing()
    found = [each for target in wanted for each in selected(status, target, where)]
    if not found:
        click.echo(f"nothing found{'' if where is None else f' in namespace {where}'}", err=True)
    for number, (kind, each) in enumerate(found):
        if number:
            click.echo("\n")
        for line in described(status, kind, each):
            click.echo(printable(line))


def described(status: Json, kind: Kind, each: Json) -> Iterator[str]:
    """The lines of one of them."""
    if kind is POD:
        return _pod(status, each)
    return _node(status, each) if kind is NODE else _workload(status, each)


def _line(key: str, value: object) -> str:
    return f"{key + ':':<{_KEY}}  {value}"


# --- a Pod -----------------------------------------------------------------------------------------------------------


def _pod(status: Json, pod: Json) -> Iterator[str]:
    running, there = ready(pod)
    yield _line("Name", pod["name"])
    yield _line("Namespace", pod["namespace"])
    if pod["owner"]:
        yield _line("Owner", f"{pod['owner']['kind']}/{pod['owner']['name']}")
    yield _line("Status", f"{state_of(pod)} ({running} of {there} containers ready)")
    if pod["reason"]:
        yield _line("Reason", pod["reason"])
    if pod["dialect"]:  # else it asks for no card
        yield _line("Class", f"{pod['class']}, written as {pod['dialect']} has it")
    yield _line("Created", _when(pod["created"]))
    for key in ("started", "finished"):
        if pod[key] is not None:
            yield _line(key.capitalize(), _when(pod[key]))
    yield _line("Restart", pod["restart_policy"])
    yield _line("UID", pod["uid"])
    yield _line("Node", pod["node"] or "none yet")
    yield from _why(pod["why"])
    yield from _cards(status, pod)
    yield from _containers(pod)
    yield from _events(pod["events"])


def _when(epoch: float) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(epoch))} ({age(epoch)} ago)"


def _why(sentences: Sequence[str]) -> Iterator[str]:
    if sentences:
        yield "Why:"
        yield from (f"  {sentence}" for sentence in sentences)


def _cards(status: Json, pod: Json) -> Iterator[str]:
    """What it was given of each card, and what it takes of it now."""
    policy = next((node["policy"] for node in status.get("nodes", []) if node["name"] == pod["node"]), None)
    for card in pod["cards"]:
        model = next((each["model"] for each in status["cards"] if each["uuid"] == card["uuid"]), None)
        yield f"Card {card['index']}:  {f'{model}, ' if model else ''}{card['uuid']}"
        quota = "the whole card" if card["exclusive"] else core(card["core"]) if card["core"] is not None else "none"
        share = "nothing yet" if card["share"] is None else f"{card['share']:.1%} of the card's time"
        yield f"  {_line('compute', f'{share}; quota {quota}' + (f' ({policy})' if policy else ''))}"
        used, limit = (memory(card[key] >> 20) for key in ("memory_used_bytes", "memory_limit_bytes"))
        refused = card.get("refused_allocations")
        more = f"; {refused} allocations past the limit were refused" if refused else ""
        yield f"  {_line('memory', f'{used} of {limit}{more}')}"
        paused = f", {duration(round(card['paused_seconds'], 3))} paused in all" if card["paused_seconds"] else ""
        yield f"  {_line('state', card['state'] + paused)}"
        yield f"  {_line('preempted', _times(card['preemptions']))}"


def _times(count: int) -> str:
    return "never" if not count else "once" if count == 1 else f"{count:,} times"


def _containers(pod: Json) -> Iterator[str]:
    for container in pod["containers"]:
        yield f"{'Init container' if container['init'] else 'Container'} {container['name']}:"
        yield f"  {_line('state', _container_state(container))}"
        if container["restarts"]:
            yield f"  {_line('restarts', container['restarts'])}"
        yield f"  {_line('command', shlex.join(container['command']) or '-')}"
        if container["image"]:
            yield f"  {_line('image', container['image'] + ' (not used: containers are local processes)')}"
        yield f"  {_line('log', container['log'])}"


def _container_state(container: Json) -> str:
    """Also how it ended last, when it has been started again."""
    code = container["exit_code"]
    last = "" if code is None else f"; last exit code {code}" + ("" if code < 128 else f" (signal {code - 128})")
    match container["state"]:
        case "running":
            pid = "" if container["pid"] is None else f", pid {container['pid']}"
            return f"running for {age(container['started'])}{pid}{last}"
        case "ended":
            return f"ended {age(container['ended'])} ago{last.replace('; last', ',')}"
    return f"waiting{last}" + (f": {container['reason']}" if container.get("reason") else "")


def _events(events: Sequence[Json]) -> Iterator[str]:
    if not events:
        yield _line("Events", "none")
        return
    yield "Events:"
    rows = [(age(event["time"]), event["type"], event["text"]) for event in events]
    yield from (f"  {line}" for line in table(("AGE", "TYPE", "WHAT"), rows).splitlines())


# --- a workload ------------------------------------------------------------------------------------------------------


def _workload(status: Json, workload: Json) -> Iterator[str]:
    yield _line("Name", workload["name"])
    yield _line("Namespace", workload["namespace"])
    yield _line("Kind", workload["kind"])
    yield _line("Succeeded" if workload["kind"] == "Job" else "Ready", f"{workload['ready']} of {workload['replicas']}")
    yield _line("Created", _when(workload["created"]))
    pods = [
        each
        for each in listed(status, POD)
        if each["namespace"] == workload["namespace"]
        and each["owner"] == {"kind": workload["kind"], "name": workload["name"]}
    ]
    if not pods:
        yield _line("Pods", "none")
        return
    yield "Pods:"
    rows = [
        (pod["name"], state_of(pod), pod["node"] or "-", ",".join(str(card["index"]) for card in pod["cards"]) or "-")
        for pod in pods
    ]
    lines = table(("NAME", "STATUS", "NODE", "CARDS"), rows).splitlines()
    yield from (f"  {line}" for line in lines)
    yield from (f"  {pod['name']}: {pod['reason']}" for pod in pods if pod["reason"])


# --- a node ----------------------------------------------------------------------------------------------------------


def _node(status: Json, node: Json) -> Iterator[str]:
    rules = status["rules"]
    yield _line("Name", node["name"])
    simulated = status["daemon"].get("simulated")
    if simulated:
        yield _line("Simulated", simulated)
    yield _line("Offers", ", ".join(node["offers"]) or "nothing")
    yield _line("Policy", f"{node['policy']}, release delay {duration(rules['release_delay_seconds'])}")
    for card in cards_on(status, node):
        yield ""
        yield from _node_card(status, card)


def _node_card(status: Json, card: Json) -> Iterator[str]:
    yield f"Card {card['index']}:  {card['model']}, {card['uuid']}"
    if not card.get("healthy", True):
        yield f"  {_line('out', card['why_out'] or 'it does not say why')}"
    total = memory(card["memory_bytes"] >> 20)
    booked = memory(card["memory_booked_bytes"] >> 20)
    yield f"  {_line('memory', f'{booked} of {total} booked, {memory(free_memory(card))} free')}"
    busy = "" if card["utilisation"] is None else f"; busy {card['utilisation']:.0%}"
    booked_core = (
        "the whole card is one tenant's" if card["uuid"] in whole(status) else f"{card['core_booked']:g}% booked"
    )
    yield f"  {_line('compute', booked_core + busy)}"
    rows = [
        (
            tenant["name"],
            tenant["class"],
            "-" if each["share"] is None else f"{each['share']:.1%}",
            "whole" if each["exclusive"] else core(each["core"]),
            f"{memory(each['memory_used_bytes'] >> 20)} / {memory(each['memory_limit_bytes'] >> 20)}",
            each["state"],
        )
        for tenant in status["tenants"]
        for each in tenant["cards"]
        if each["uuid"] == card["uuid"]
    ]
    if rows:
        head = ("NAME", "CLASS", "SHARE", "QUOTA", "MEMORY", "STATE")
        yield from (f"  {line}" for line in table(head, rows, frozenset({2, 3})).splitlines())
