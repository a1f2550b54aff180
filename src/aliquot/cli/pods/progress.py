"""`aliquot apply --wait`: how Pods come up, until all run or the patience ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from aliquot.cli.client import NoDaemonRunsError
from aliquot.cli.pods.kinds import POD
from aliquot.cli.pods.rows import local_status, ready, shortened, state_of
from aliquot.cli.tables import printable, table
from aliquot.model.status.machine import PodStatus, Status
from aliquot.wording.amounts import duration

Json = dict[str, Any]
Pods = dict[str, PodStatus]  # by key

_EVERY = 0.2  # seconds from look to look


def settle(applied: Sequence[Json], timeout: float) -> int:
    """Shows the Pods of what was applied, on stderr, until there is nothing left to wait for; the exit code."""
    looks = _looks(time.monotonic() + timeout)
    status = _live(applied, looks) if sys.stderr.isatty() else _by_line(applied, looks, _say)
    pods = theirs(applied, status)
    failed = [key for key, pod in pods.items() if over(pod)]
    late = [_name(item) for item in applied if not settled(item, status)]
    if failed:
        _say(f"failed: {shortened(failed)} (`aliquot logs {failed[0]}` may tell why)")
    if late:
        _say(f"--timeout: not all running after {duration(timeout)}: {shortened(late)} (`aliquot get pods` tells more)")
    if failed or late:
        return 1
    _say(f"{len(pods)} Pod{'s run' if len(pods) != 1 else ' runs'}, or ended well")
    return 0


def settled(applied: Json, status: Status) -> bool:
    """Whether it is as it should be, or as good as it gets."""
    pods = list(theirs([applied], status).values())
    rest = all(runs(pod) or over(pod) for pod in pods)
    if applied["kind"] == POD.name:
        return bool(pods) and rest
    for workload in status.workloads or []:
        if (workload.kind, workload.namespace, workload.name) == _key(applied):
            # A Job counts the Pods that have succeeded; all others the Pods that run.
            return rest and (workload.ready >= workload.replicas or (workload.kind == "Job" and bool(pods)))
    return False


def theirs(applied: Sequence[Json], status: Status) -> Pods:
    """The Pods of what was applied, as far as they are there."""
    names = {_key(item) for item in applied}
    return {
        pod.key: pod
        for pod in status.pods or []
        if (POD.name, pod.namespace, pod.name) in names
        or (pod.owner and (pod.owner.kind, pod.namespace, pod.owner.name) in names)
    }


def runs(pod: PodStatus) -> bool:
    """Whether all its containers run and are to run on, or it ended well."""
    running, there = ready(pod)
    good = pod.phase == "Succeeded" or (pod.phase == "Running" and running == there)
    return good and not pod.terminating


def over(pod: PodStatus) -> bool:
    """Whether it failed for good."""
    return pod.phase == "Failed"


def words(pod: PodStatus | None) -> str:
    """How it stands, in a few words."""
    if pod is None:
        return "gone"
    where = ""
    if pod.node is not None and pod.cards:
        numbers = ", ".join(str(share.index) for share in pod.cards)
        where = f" on {pod.node}, card{'s' * (len(pod.cards) > 1)} {numbers}"
    reason = f": {pod.reason}" if pod.reason and not runs(pod) else ""
    return printable(f"{state_of(pod)}{where}{reason}")


def _key(applied: Json) -> tuple[str, str, str]:
    return applied["kind"], applied["namespace"], applied["name"]


def _name(applied: Json) -> str:
    return f"{applied['kind']} {applied['namespace']}/{applied['name']}"


def _looks(deadline: float) -> Iterator[Status]:
    """The status, over and over, until the deadline; a daemon that is started again is waited for."""
    while True:
        try:
            yield local_status()
        except NoDaemonRunsError:
            if time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            return
        time.sleep(_EVERY)


def _by_line(applied: Sequence[Json], looks: Iterator[Status], say: Callable[[str], None]) -> Status:
    """A line for each change; the last look."""
    told: dict[str, str] = {}
    for status in looks:
        pods = theirs(applied, status)
        for key in [*pods, *(key for key in told if key not in pods)]:
            now = words(pods.get(key))
            if told.get(key) != now:
                told[key] = now
                say(f"{key}: {now}")
        if all(settled(item, status) for item in applied):
            break
    return status


def _live(applied: Sequence[Json], looks: Iterator[Status]) -> Status:
    """A table that changes in its place; the last look."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(highlight=False, stderr=True), auto_refresh=False) as live:
        for status in looks:
            rows = [(key, words(pod)) for key, pod in theirs(applied, status).items()]
            live.update(Text(table(("POD", "STATUS"), rows), no_wrap=True, overflow="ellipsis"), refresh=True)
            if all(settled(item, status) for item in applied):
                break
    return status


def _say(text: str) -> None:
    click.echo(text, err=True)
