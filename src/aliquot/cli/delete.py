"""`aliquot delete`: the end of Pods and of the workloads that make them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

from aliquot.cli.asking import Duration, NoDaemonRunsError, events
from aliquot.cli.completing import typed
from aliquot.cli.errors import InputError
from aliquot.cli.kinds import APPLIED, DEFAULT_NAMESPACE, NODE, POD, Kind, targets
from aliquot.cli.podviews import selected, standing

Json = dict[str, Any]

_NOW = 1.0  # seconds, as kubectl's --now has it
_LONGEST_GRACE = 86400.0
_AT_ONCE = 16  # objects that are ended side by side: each may take its grace


@click.command()
@click.argument("what", metavar="[TYPE] [NAME]...", nargs=-1, shell_complete=typed)
@click.option(
    "-f", "--filename", "files", multiple=True, type=click.Path(path_type=Path), help="What those files hold, by name"
)
@click.option("-n", "--namespace", help="Of what has none of its own  [default: default]")
@click.option("--all", "everything", is_flag=True, help="All of that TYPE in the namespace")
@click.option(
    "--grace",
    "--grace-period",
    "grace",
    type=Duration(),
    help="From SIGTERM to SIGKILL  [default: as the Pod has it, 30s]",
)
@click.option("--now", is_flag=True, help="The same as --grace 1s")
@click.option("--ignore-not-found", is_flag=True, help="What is not there is no error")
def delete(
    what: Sequence[str],
    files: Sequence[Path],
    namespace: str | None,
    everything: bool,
    grace: float | None,
    now: bool,
    ignore_not_found: bool,
) -> None:
    """End Pods, and the workloads that make them.

    A workload goes with its Pods. A Pod of a workload alone is made again, as on Kubernetes: delete the workload, or
    apply it with other replicas. It waits until all processes have ended. The logs of a Pod go with it.

    \b
    aliquot delete -f binpack.yaml
    aliquot delete sts binpack-1
    aliquot delete pod/train pod/serve --now
    aliquot delete pods --all
    """
    patience = _patience(grace, now)
    if bool(files) == bool(what):
        raise click.UsageError("either -f FILE or TYPE NAME is wanted")
    chosen = _in_files(files, namespace) if files else _by_name(what, namespace, everything, ignore_not_found)
    if not chosen:
        click.echo("nothing to delete", err=True)
        return

    def end(each: tuple[Kind, str, str]) -> int:
        kind, where, name = each
        return _delete(kind, where, name, grace=patience, ignore=ignore_not_found)

    with ThreadPoolExecutor(_AT_ONCE) as several:
        codes = list(several.map(end, chosen))
    raise click.exceptions.Exit(max(codes))


def _patience(grace: float | None, now: bool) -> float | None:
    if now and grace is not None:
        raise InputError("--now and --grace: only one of them")
    if grace is not None and grace > _LONGEST_GRACE:
        raise InputError(f"--grace: {grace:g}s is not allowed: 0 to 24h")
    return _NOW if now else grace


def _in_files(files: Sequence[Path], namespace: str | None) -> list[tuple[Kind, str, str]]:
    """Whatever the files hold that is ours to run, the last first: as it was made, backwards."""
    from aliquot.cli.applying import named, read_files, runnable

    manifests, _ = runnable(read_files(files))
    return [named(each, namespace) for each in reversed(manifests)]


def _by_name(what: Sequence[str], namespace: str | None, everything: bool, ignore: bool) -> list[tuple[Kind, str, str]]:
    wanted = targets(what)
    if NODE in [kind for target in wanted for kind in target.kinds]:
        raise InputError("nodes cannot be deleted: they are this machine; `aliquot down` ends the daemon")
    unnamed = any(target.name is None for target in wanted)
    if unnamed and not everything:
        raise InputError(f"which {what[0]}: a NAME is wanted, or --all")
    if everything and not unnamed:
        raise InputError("--all and a NAME: only one of them")
    where = namespace or DEFAULT_NAMESPACE
    if not unnamed:
        return [(target.kinds[0], target.namespace or where, str(target.name)) for target in wanted]
    try:
        status = standing()
    except NoDaemonRunsError:
        if ignore:
            return []
        raise
    found = [
        (kind, each["namespace"], each["name"], each)
        for target in wanted
        for kind, each in selected(status, target, where)
    ]
    # A Pod goes with its workload, when both are meant.
    owners = {(kind.name, name) for kind, _, name, _ in found if kind in APPLIED and kind is not POD}
    return [
        (kind, where, name)
        for kind, where, name, each in found
        if kind is not POD or not each["owner"] or (each["owner"]["kind"], each["owner"]["name"]) not in owners
    ]


def _delete(kind: Kind, namespace: str, name: str, *, grace: float | None, ignore: bool) -> int:
    """One of them, to its end; the exit code. The others go on whatever becomes of it."""
    from aliquot.cli.asking import NotThereError

    request = {"op": "delete", "kind": kind.name, "namespace": namespace, "name": name, "grace": grace}
    pods: list[str] = []
    try:
        for said in events(request, None, what=kind.words[1]):
            pods = said.get("ok", {}).get("deleted", [])
    except NotThereError as error:
        if ignore:
            return 0
        error.show()
        return 1
    except InputError as error:
        if ignore and isinstance(error, NoDaemonRunsError):
            return 0
        error.show()
        return error.exit_code
    made = "" if kind is POD else f" ({len(pods)} Pod{'s' * (len(pods) != 1)})"
    click.echo(f'{kind.typed} "{name}" deleted{"" if namespace == DEFAULT_NAMESPACE else f" from {namespace}"}{made}')
    return 0
