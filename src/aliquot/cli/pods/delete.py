"""`aliquot delete`: deletes Pods and workloads."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from aliquot.cli.client import Duration, NoDaemonRunsError, NotFoundError, events, read_status
from aliquot.cli.errors import InputError
from aliquot.cli.pods.completion import types_and_names
from aliquot.cli.pods.kinds import APPLIED, DEFAULT_NAMESPACE, NODE, POD, Kind, targets
from aliquot.cli.pods.rows import labels_of, listed, local_status, namespace_in, selected
from aliquot.cli.pods.selectors import Selector, label_selector
from aliquot.model.status.machine import PodStatus

_NOW = 1.0  # seconds, as in kubectl
_LONGEST_GRACE = 86400.0
_AT_ONCE = 16  # objects deleted in parallel: each may take its grace period


@click.command()
@click.argument("what", metavar="[TYPE] [NAME]...", nargs=-1, shell_complete=types_and_names)
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Delete the objects of these files, by name",
)
@click.option("-n", "--namespace", help="Namespace of objects that name none  [default: default]")
@click.option("--all", "everything", is_flag=True, help="Delete all objects of that TYPE in the namespace")
@click.option(
    "-l", "--selector", callback=label_selector, help="Delete all of that TYPE with these labels: app=web,tier!=front"
)
@click.option(
    "--grace",
    "--grace-period",
    "grace",
    type=Duration(),
    help="Time from SIGTERM to SIGKILL  [default: that of the Pod, or 30s]",
)
@click.option("--now", is_flag=True, help="Same as --grace 1s")
@click.option("--dry-run", is_flag=True, help="Print what would be deleted; delete nothing")
@click.option("--ignore-not-found", is_flag=True, help="Treat missing objects as success")
def delete(
    what: Sequence[str],
    files: Sequence[Path],
    namespace: str | None,
    everything: bool,
    selector: Selector | None,
    grace: float | None,
    now: bool,
    dry_run: bool,
    ignore_not_found: bool,
) -> None:
    """Delete Pods and workloads.

    Deleting a workload deletes its Pods. As on Kubernetes, a workload replaces a Pod that is deleted alone: delete the
    workload, or apply it with fewer replicas. Waits until all processes have ended. Also deletes the Pods' logs.

    \b
    aliquot delete -f binpack.yaml
    aliquot delete sts binpack-1
    aliquot delete pod/train pod/serve --now
    aliquot delete pods --all
    aliquot delete deploy,pods -l app=web
    """
    patience = _patience(grace, now)
    if bool(files) == bool(what):
        raise click.UsageError("give either -f FILE or TYPE NAME")
    if selector is not None and (files or everything):
        raise InputError(f"give either -l or {'-f' if files else '--all'}")
    every = (lambda _labels: True) if everything else selector
    chosen = _in_files(files, namespace) if files else _by_name(what, namespace, every, ignore_not_found)
    if not chosen:
        click.echo("nothing to delete", err=True)
        return

    def end(key: tuple[Kind, str, str]) -> int | NotFoundError:
        kind, where, name = key
        return _delete(kind, where, name, grace=patience, ignore=ignore_not_found)

    if dry_run:
        answers = _would_delete(chosen, ignore=ignore_not_found)
    else:
        with ThreadPoolExecutor(_AT_ONCE) as several:
            answers = list(several.map(end, chosen))
    missing = [
        (kind, answer)
        for (kind, _, _), answer in zip(chosen, answers, strict=True)
        if isinstance(answer, NotFoundError)
    ]
    if not ignore_not_found:
        _report_missing(missing)
    raise click.exceptions.Exit(
        max(answer if isinstance(answer, int) else int(not ignore_not_found) for answer in answers)
    )


def _report_missing(missing: Sequence[tuple[Kind, NotFoundError]]) -> None:
    """One line per kind: the list of existing names may be long."""
    for kind in dict.fromkeys(kind for kind, _ in missing):
        errors = [error for missing_kind, error in missing if missing_kind is kind]
        names = sorted({name for error in errors for name in error.names})
        NotFoundError(kind.words[1], names, errors[-1].existing + _runs_among(names, kind)).show()


def _runs_among(names: Sequence[str], kind: Kind) -> str:
    """What to do with the names that are runs; empty if none is."""
    if kind is not POD:
        return ""
    try:
        status = read_status()
    except InputError:  # the daemon ended meanwhile: the error that there is stays
        return ""
    runs = {run.name for run in status.tenants} | {run.name for run in status.queue}
    found = sorted(runs.intersection(name.rpartition("/")[2] for name in names))
    return f"; {', '.join(found)}: not a Pod but a run: `aliquot stop {' '.join(found)}` stops it" if found else ""


def _would_delete(chosen: Sequence[tuple[Kind, str, str]], *, ignore: bool) -> list[int | NotFoundError]:
    try:
        status = local_status()
    except NoDaemonRunsError:
        if ignore:
            return [0] * len(chosen)
        raise
    answers: list[int | NotFoundError] = []
    for kind, where, name in chosen:
        existing = [f"{namespace_in(item)}/{item.name}" for item in listed(status, kind)]
        if f"{where}/{name}" in existing:
            answers.append(0)
            click.echo(f"{_deleted(kind, where, name)} (dry run)")
        else:
            names = f"there are {', '.join(existing)}" if existing else "there is none"
            answers.append(NotFoundError(kind.words[1], [f"{where}/{name}"], names))
    return answers


def _patience(grace: float | None, now: bool) -> float | None:
    if now and grace is not None:
        raise InputError("give either --now or --grace")
    if grace is not None and grace > _LONGEST_GRACE:
        raise InputError(f"--grace: {grace:g}s is not allowed: 0 to 24h")
    return _NOW if now else grace


def _in_files(files: Sequence[Path], namespace: str | None) -> list[tuple[Kind, str, str]]:
    """The objects of the files that run here, in reverse order."""
    from aliquot.cli.pods.submit import named, read_files, runnable

    manifests, _ = runnable(read_files(files))
    return [named(manifest, namespace) for manifest in reversed(manifests)]


def _by_name(
    what: Sequence[str], namespace: str | None, every: Selector | None, ignore: bool
) -> list[tuple[Kind, str, str]]:
    """The named objects, or all that `every` accepts."""
    wanted = targets(what)
    if NODE in [kind for target in wanted for kind in target.kinds]:
        raise InputError("nodes cannot be deleted: they are this machine; `aliquot down` stops the daemon")
    unnamed = any(target.name is None for target in wanted)
    if unnamed and every is None:
        raise InputError(f"{what[0]}: give a NAME, -l or --all")
    if every is not None and not unnamed:
        raise InputError("give a NAME without -l and --all")
    where = namespace or DEFAULT_NAMESPACE
    if every is None:
        return [(target.kinds[0], target.namespace or where, str(target.name)) for target in wanted]
    try:
        status = local_status()
    except NoDaemonRunsError:
        if ignore:
            return []
        raise
    found = [chosen for target in wanted for chosen in selected(status, target, where) if every(labels_of(chosen[1]))]
    # A selected workload deletes its Pods.
    owners = {(kind.name, item.name) for kind, item in found if kind in APPLIED and kind is not POD}
    return [
        (kind, namespace_in(item) or where, item.name)
        for kind, item in found
        if not isinstance(item, PodStatus) or not item.owner or (item.owner.kind, item.owner.name) not in owners
    ]


def _delete(kind: Kind, namespace: str, name: str, *, grace: float | None, ignore: bool) -> int | NotFoundError:
    """Delete one object and wait. The exit code or NotFoundError: one failure must not stop the others."""
    request = {"op": "delete", "kind": kind.name, "namespace": namespace, "name": name, "grace": grace}
    pods: list[str] = []
    try:
        for message in events(request, None, what=kind.words[1]):
            pods = message.get("ok", {}).get("deleted", [])
    except NotFoundError as error:
        return error
    except InputError as error:
        if ignore and isinstance(error, NoDaemonRunsError):
            return 0
        error.show()
        return error.exit_code
    count = "" if kind is POD else f" ({len(pods)} Pod{'s' * (len(pods) != 1)})"
    click.echo(f"{_deleted(kind, namespace, name)}{count}")
    return 0


def _deleted(kind: Kind, namespace: str, name: str) -> str:
    return f'{kind.typed} "{name}" deleted{"" if namespace == DEFAULT_NAMESPACE else f" from {namespace}"}'
