"""`aliquot logs`: the output of a Pod, or of a run that was started with --detach."""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

import click

from aliquot.cli.client import NotThereError, ask, read_status
from aliquot.cli.errors import InputError
from aliquot.cli.pods.completion import logged
from aliquot.cli.pods.kinds import DEFAULT_NAMESPACE, NODE, POD, Target, targets
from aliquot.cli.pods.rows import local_status, namespace_in, selected, shortened
from aliquot.model.status.machine import OwnerStatus, PodStatus

_PIECE = 1 << 16
_EVERY = 0.2  # seconds from look to look
_NOT_OURS = {errno.ELOOP: "a link, which somebody put there: a plain file is wanted"}
_NO_PREVIOUS = (
    "--previous: not kept apart: what a container said before it was started again stands in the same log, above"
)


@dataclass(frozen=True, slots=True)
class _Output:
    """Where it is, and whether more may come."""

    path: str
    goes_on: Callable[[], bool]
    why_none: str | None = None  # why it has said nothing yet


@click.command()
@click.argument("name", metavar="NAME", shell_complete=logged)
@click.option("-c", "--container", help="Of a Pod with several  [default: the first]")
@click.option("-n", "--namespace", help="Of a Pod  [default: default]")
@click.option("-f", "--follow", is_flag=True, help="Go on as long as it runs")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines")
@click.option("-p", "--previous", is_flag=True, hidden=True)
def logs(
    name: str, container: str | None, namespace: str | None, follow: bool, tail: int | None, previous: bool
) -> None:
    """Show the output of a Pod, or of a run that was started with --detach.

    NAME is a run's name, a Pod's name, NAMESPACE/NAME, pod/NAME, or a workload as in sts/NAME (its first Pod). Where
    both are called the same, a run comes first while it runs, and the Pod after that. Unlike kubectl's, the log goes on
    over restarts of the container.

    \b
    aliquot logs binpack-1-0 -f
    aliquot logs team/train -c main --tail 20
    aliquot logs sts/binpack-1
    """
    if previous:
        raise InputError(_NO_PREVIOUS)
    output = _output(name, container, namespace)
    if output.why_none is not None and not follow:
        raise InputError(output.why_none, code=1)
    while follow and not os.path.exists(output.path) and output.goes_on():
        time.sleep(_EVERY)
    try:
        with _opened(output.path) as log:
            if tail is not None:
                seek_lines(log, tail)
            _copy(log)
            while follow and output.goes_on():
                time.sleep(_EVERY)
                _copy(log)
            _copy(log)
    except OSError as error:
        raise InputError(f"{output.path}: {_NOT_OURS.get(error.errno or 0, error.strerror)}") from error


def _output(name: str, container: str | None, namespace: str | None) -> _Output:
    if "/" in name or container is not None or namespace is not None:
        return _of_pod(_target(name), namespace, container)
    pods = [pod.name for pod in read_status().pods or []]
    try:
        said = ask({"op": "logs", "name": name})
    except NotThereError as error:
        if name not in pods:
            more = f"; Pods: {shortened(pods)}" if pods else ""
            raise InputError(error.message + more) from error
    else:
        if said["running"] or name not in pods:
            return _of_run(name, said)
    return _of_pod(Target((POD,), name), namespace, container)


# --- a run -----------------------------------------------------------------------------------------------------------


def _of_run(name: str, said: dict[str, Any]) -> _Output:
    if said["log"] is None:
        where = said.get("output")
        raise InputError(
            f"{name} was not started with --detach: its output goes to "
            + (where if where else "where it was started")
            + f" (pid {said['pid']})"
        )
    return _Output(said["log"], lambda: bool(ask({"op": "logs", "name": name})["running"]))


# --- a Pod -----------------------------------------------------------------------------------------------------------


def _target(name: str) -> Target:
    """`pod/NAME` and `sts/NAME`; where the first word is no type, it is the namespace."""
    if "/" not in name:
        return Target((POD,), name)
    try:
        return targets([name])[0]
    except InputError:
        return targets([POD.words[0], name])[0]


def _of_pod(target: Target, namespace: str | None, container: str | None) -> _Output:
    if target.kinds == (NODE,):
        raise InputError("nodes have no log of their own; the daemon's is told by `aliquot up`")
    pod = _pod(target, namespace or DEFAULT_NAMESPACE)
    containers = [container.name for container in pod.containers]
    if container is not None and container not in containers:
        raise InputError(f"-c: {container} is not allowed: {pod.name} has {', '.join(containers)}")
    request = {"op": "pod-logs", "namespace": pod.namespace, "name": pod.name, "container": container}
    said = ask(request, what="pod")
    if container is None and len(containers) > 1:
        click.echo(f"{said['container']} of {', '.join(containers)} (-c chooses)", err=True)
    waits = pod.phase == "Pending" and not os.path.exists(said["log"])
    return _Output(
        said["log"],
        lambda: bool(ask(request, what="pod")["running"]),
        f"{pod.name} has not started: {pod.reason or 'it will soon'}" if waits else None,
    )


def _pod(target: Target, namespace: str) -> PodStatus:
    status = local_status()
    kind, found = selected(status, target, namespace)[0]
    if isinstance(found, PodStatus):
        return found
    owner = OwnerStatus(kind.name, found.name)
    pods = [pod for pod in status.pods or [] if pod.owner == owner and pod.namespace == namespace_in(found)]
    if not pods:
        raise InputError(f"{kind.shown(found.name)} has no Pod now", code=1)
    if len(pods) > 1:
        click.echo(f"{pods[0].name}, the first of {len(pods)} Pods", err=True)
    return pods[0]


# --- the file --------------------------------------------------------------------------------------------------------


def _opened(path: str) -> BinaryIO:
    """The folder is its owner's, and we may be root: a link there may lead anywhere, a pipe keep us for ever."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    log = open(handle, "rb")  # noqa: SIM115 - the caller closes it
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        log.close()
        raise InputError(f"{path}: somebody put something else there: a plain file is wanted")
    return log


def seek_lines(log: BinaryIO, lines: int) -> None:
    """To where the last so many lines begin. A last line without an end is one too."""
    at = end = log.seek(0, os.SEEK_END)
    if end == 0 or lines == 0:
        return
    log.seek(end - 1)
    wanted = lines + (log.read(1) == b"\n")
    while at > 0:
        size = min(_PIECE, at)
        at -= size
        log.seek(at)
        piece = log.read(size)
        while (found := piece.rfind(b"\n")) >= 0:
            wanted -= 1
            if wanted == 0:
                log.seek(at + found + 1)
                return
            piece = piece[:found]
    log.seek(0)


def _copy(log: BinaryIO) -> None:
    sys.stdout.flush()
    while piece := log.read(_PIECE):
        while piece:
            piece = piece[os.write(sys.stdout.fileno(), piece) :]
