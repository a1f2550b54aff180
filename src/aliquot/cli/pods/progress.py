"""`aliquot apply --wait`: shows how Pods start until all run or the timeout ends.

A program that fails at once runs first. So a Pod must be seen running twice, with a moment in between: that finds what
fails at its start. What fails later is not waited for. A failed Pod is not the end of a Job: the next one is waited
for, until one runs or the Job has failed for good.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import click

from aliquot.cli.client import NoDaemonRunsError, NotServedError
from aliquot.cli.pods.kinds import POD
from aliquot.cli.pods.rows import local_status, ready, shortened, state_of
from aliquot.cli.tables import printable, table
from aliquot.model.status.answers import AppliedObject
from aliquot.model.status.machine import PodStatus, Status, WorkloadStatus
from aliquot.wording.amounts import duration

Pods = dict[str, PodStatus]  # by key
Look = TypeVar("Look")

_EVERY = 0.2  # seconds between checks


def wait_until_settled(applied: Sequence[AppliedObject], timeout: float) -> int:
    """Show the applied Pods on stderr until there is nothing left to wait for. Returns the exit code."""
    statuses = _poll(time.monotonic() + timeout)
    status = _live(applied, statuses) if sys.stderr.isatty() else _by_line(applied, statuses, _print)
    jobs = {_key(item): job for item in applied if (job := _job(item, status)) is not None}
    alone = [item for item in applied if _key(item) not in jobs]
    failed = [key for key, pod in pods_of(alone, status).items() if over(pod)]
    late = [_name(item) for item in alone if not settled(item, status)]
    if failed:
        _print(f"failed: {shortened(failed)} (see `aliquot logs {failed[0]}`)")
    if late:
        _print(f"--timeout: not running after {duration(timeout)}: {shortened(late)} (see `aliquot get pods`)")
    ends = [_end_of_job(item, jobs[_key(item)], status, timeout) for item in applied if _key(item) in jobs]
    for line in filter(None, (line for _, line in ends)):
        _print(line)
    if failed or late or not all(good for good, _ in ends):
        return 1
    pods = [pod for pod in pods_of(applied, status).values() if not over(pod)]
    _print(f"{len(pods)} Pod{'s' * (len(pods) != 1)} running or succeeded")
    return 0


def _end_of_job(applied: AppliedObject, job: WorkloadStatus, status: Status, timeout: float) -> tuple[bool, str | None]:
    """Whether nothing is wrong with the Job, and what there is to say about it."""
    pods, name = pods_of([applied], status), _name(applied)
    failed = [key for key, pod in pods.items() if over(pod)]
    number = f"{len(failed)} Pod{'s' * (len(failed) != 1)} failed"
    if job.phase == "Succeeded":
        return True, f"{name} is complete; before that, {number}" if failed else None
    logs = f" (see `aliquot logs {failed[-1]}`)" if failed else ""
    if job.phase == "Failed":
        return False, f"failed: {name}: it reached its backoffLimit, {number}{logs}"
    if settled(applied, status):
        return True, f"{name} runs; before that, {number}" if failed else None
    again = f": {number}, the next is not running yet" if failed else ""
    see = logs or " (see `aliquot get pods`)"
    return False, f"--timeout: {name} is not running after {duration(timeout)}{again}{see}"


def until_twice(looks: Iterable[Look], good: Callable[[Look], bool]) -> Iterator[Look]:
    """The looks until two in a row are good."""
    before = False
    for look in looks:
        yield look
        now = good(look)
        if before and now:
            return
        before = now


def settled(applied: AppliedObject, status: Status) -> bool:
    """Whether the object has reached its final or desired state."""
    pods = list(pods_of([applied], status).values())
    rest = all(runs(pod) or over(pod) for pod in pods)
    if applied.kind == POD.name:
        return bool(pods) and rest
    workload = _workload(applied, status)
    if workload is None:
        return False
    if workload.suspended or workload.kind == "CronJob":  # there is nothing to wait for yet
        return rest
    if workload.phase is not None:
        return workload.phase in ("Succeeded", "Failed") or (workload.phase == "Running" and rest)
    # A Job counts the Pods that have succeeded; all others the Pods that run. An older daemon names no phase of a Job.
    return rest and (workload.ready >= workload.replicas or (workload.kind == "Job" and bool(pods)))


def _workload(applied: AppliedObject, status: Status) -> WorkloadStatus | None:
    there = status.workloads or []
    return next((item for item in there if (item.kind, item.namespace, item.name) == _key(applied)), None)


def _job(applied: AppliedObject, status: Status) -> WorkloadStatus | None:
    """The Job, if the daemon says whether it is over."""
    workload = _workload(applied, status)
    return workload if workload is not None and workload.phase is not None else None


def _all_settled(applied: Sequence[AppliedObject], status: Status) -> bool:
    return all(settled(item, status) for item in applied)


def pods_of(applied: Sequence[AppliedObject], status: Status) -> Pods:
    """The existing Pods of the applied objects."""
    names = {_key(item) for item in applied}
    return {
        pod.key: pod
        for pod in status.pods or []
        if (POD.name, pod.namespace, pod.name) in names
        or (pod.owner and (pod.owner.kind, pod.namespace, pod.owner.name) in names)
    }


def runs(pod: PodStatus) -> bool:
    """Whether all its containers run, or it succeeded."""
    running, total = ready(pod)
    good = pod.phase == "Succeeded" or (pod.phase == "Running" and running == total)
    return good and not pod.terminating


def over(pod: PodStatus) -> bool:
    """Whether it has failed."""
    return pod.phase == "Failed"


def summary(pod: PodStatus | None) -> str:
    """Its state in a few words."""
    if pod is None:
        return "gone"
    where = ""
    if pod.node is not None and pod.cards:
        numbers = ", ".join(str(share.index) for share in pod.cards)
        where = f" on {pod.node}, card{'s' * (len(pod.cards) > 1)} {numbers}"
    reason = f": {pod.reason}" if pod.reason and not runs(pod) else ""
    return printable(f"{state_of(pod)}{where}{reason}")


def _key(applied: AppliedObject) -> tuple[str, str, str]:
    return applied.kind, applied.namespace, applied.name


def _name(applied: AppliedObject) -> str:
    return f"{applied.kind} {applied.namespace}/{applied.name}"


def _poll(deadline: float) -> Iterator[Status]:
    """Yield the status until the deadline. Waits for a daemon that restarts."""
    while True:
        try:
            yield local_status()
        except (NoDaemonRunsError, NotServedError):
            if time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            return
        time.sleep(_EVERY)


def _by_line(applied: Sequence[AppliedObject], statuses: Iterator[Status], write: Callable[[str], None]) -> Status:
    """Print a line per change. Returns the last status."""
    shown: dict[str, str] = {}
    for status in until_twice(statuses, lambda status: _all_settled(applied, status)):
        pods = pods_of(applied, status)
        for key in [*pods, *(key for key in shown if key not in pods)]:
            now = summary(pods.get(key))
            if shown.get(key) != now:
                shown[key] = now
                write(f"{key}: {now}")
    return status


def _live(applied: Sequence[AppliedObject], statuses: Iterator[Status]) -> Status:
    """Update a table in place. Returns the last status."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(highlight=False, stderr=True), auto_refresh=False) as live:
        for status in until_twice(statuses, lambda status: _all_settled(applied, status)):
            rows = [(key, summary(pod)) for key, pod in pods_of(applied, status).items()]
            live.update(Text(table(("POD", "STATUS"), rows), no_wrap=True, overflow="ellipsis"), refresh=True)
    return status


def _print(text: str) -> None:
    click.echo(text, err=True)
