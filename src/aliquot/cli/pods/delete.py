"""`aliquot delete`: the end of Pods and of the workloads that make them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

from aliquot.cli.client import Duration, NoDaemonRunsError, NotThereError, events
from aliquot.cli.errors import InputError
from aliquot.cli.pods.completion import typed
from aliquot.cli.pods.kinds import APPLIED, DEFAULT_NAMESPACE, NODE, POD, Kind, targets
from aliquot.cli.pods.rows import listed, local_status, namespace_in, selected
from aliquot.model.status.machine import PodStatus

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
@click.option("--dry-run", is_flag=True, help="Tell what would be deleted; nothing is")
@click.option("--ignore-not-found", is_flag=True, help="What is not there is no error")
def delete(
    what: Sequence[str],
    files: Sequence[Path],
    namespace: str | None,
    everything: bool,
    grace: float | None,
    now: bool,
    dry_run: bool,
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

    def end(each: tuple[Kind, str, str]) -> int | NotThereError:
        kind, where, name = each
        return _delete(kind, where, name, grace=patience, ignore=ignore_not_found)

    if dry_run:
        answers = _would_delete(chosen, ignore=ignore_not_found)
    else:
        with ThreadPoolExecutor(_AT_ONCE) as several:
            answers = list(several.map(end, chosen))
    missing = [(kind, each) for (kind, _, _), each in zip(chosen, answers, strict=True) if not isinstance(each, int)]
    if not ignore_not_found:
        _tell_missing(missing)
    raise click.exceptions.Exit(
        max(answer if isinstance(answer, int) else int(not ignore_not_found) for answer in answers)
    )


def _tell_missing(missing: Sequence[tuple[Kind, NotThereError]]) -> None:
    """Who is there once for all of a kind: the list may be long."""
    for kind in dict.fromkeys(kind for kind, _ in missing):
        errors = [error for of, error in missing if of is kind]
        names = sorted({name for error in errors for name in error.names})
        NotThereError(kind.words[1], names, errors[-1].there).show()


def _would_delete(chosen: Sequence[tuple[Kind, str, str]], *, ignore: bool) -> list[int | NotThereError]:
    try:
        status = local_status()
    except NoDaemonRunsError:
        if ignore:
            return [0] * len(chosen)
        raise
    answers: list[int | NotThereError] = []
    for kind, where, name in chosen:
        there = [f"{namespace_in(item)}/{item.name}" for item in listed(status, kind)]
        if f"{where}/{name}" in there:
            answers.append(0)
            click.echo(f"{_deleted(kind, where, name)} (dry run)")
        else:
            names = f"there are {', '.join(there)}" if there else "there is none"
            answers.append(NotThereError(kind.words[1], [f"{where}/{name}"], names))
    return answers


def _patience(grace: float | None, now: bool) -> float | None:
    if now and grace is not None:
        raise InputError("--now and --grace: only one of them")
    if grace is not None and grace > _LONGEST_GRACE:
        raise InputError(f"--grace: {grace:g}s is not allowed: 0 to 24h")
    return _NOW if now else grace


def _in_files(files: Sequence[Path], namespace: str | None) -> list[tuple[Kind, str, str]]:
    """Whatever the files hold that is ours to run, the last first: as it was made, backwards."""
    from aliquot.cli.pods.submit import named, read_files, runnable

    manifests, _ = runnable(read_files(files))
    return [named(manifest, namespace) for manifest in reversed(manifests)]


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
        status = local_status()
    except NoDaemonRunsError:
        if ignore:
            return []
        raise
    found = [chosen for target in wanted for chosen in selected(status, target, where)]
    # A Pod goes with its workload, when both are meant.
    owners = {(kind.name, item.name) for kind, item in found if kind in APPLIED and kind is not POD}
    return [
        (kind, namespace_in(item) or where, item.name)
        for kind, item in found
        if not isinstance(item, PodStatus) or not item.owner or (item.owner.kind, item.owner.name) not in owners
    ]


def _delete(kind: Kind, namespace: str, name: str, *, grace: float | None, ignore: bool) -> int | NotThereError:
    """One of them, to its end; the exit code, or that it is not there. The others go on whatever becomes of it."""
    request = {"op": "delete", "kind": kind.name, "namespace": namespace, "name": name, "grace": grace}
    pods: list[str] = []
    try:
        for said in events(request, None, what=kind.words[1]):
            pods = said.get("ok", {}).get("deleted", [])
    except NotThereError as error:
        return error
    except InputError as error:
        if ignore and isinstance(error, NoDaemonRunsError):
            return 0
        error.show()
        return error.exit_code
    made = "" if kind is POD else f" ({len(pods)} Pod{'s' * (len(pods) != 1)})"
    click.echo(f"{_deleted(kind, namespace, name)}{made}")
    return 0


def _deleted(kind: Kind, namespace: str, name: str) -> str:
    return f'{kind.typed} "{name}" deleted{"" if namespace == DEFAULT_NAMESPACE else f" from {namespace}"}'
