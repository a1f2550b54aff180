"""`aliquot apply`: the Pods of a manifest, as local processes on the cards of this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aliquot.cli.client import Duration
from aliquot.cli.errors import InputError
from aliquot.cli.pods.kinds import BY_NAME
from aliquot.cli.tables import printable

if TYPE_CHECKING:
    from aliquot.adapters.host.control import Connection

Json = dict[str, Any]


def _no_kustomize(_context: click.Context, _parameter: click.Parameter, folder: str | None) -> None:
    if folder is not None:
        raise InputError(f"-k: not built here: `kubectl kustomize {folder} | aliquot apply -f -`")


@click.command()
@click.option(
    "-f",
    "--filename",
    "files",
    required=True,
    multiple=True,
    type=click.Path(path_type=Path),
    help="FILE, FOLDER, or - for stdin: YAML or JSON, several documents, Lists",
)
@click.option("-k", "--kustomize", hidden=True, expose_value=False, is_eager=True, callback=_no_kustomize)
@click.option("-n", "--namespace", help="Of what has none of its own  [default: default]")
@click.option("--dry-run", is_flag=True, help="Check everything and tell what would be done; no Pod is started")
@click.option("--wait", is_flag=True, help="Until all Pods run, or have ended well; exit code 1 when some do not")
@click.option("--timeout", type=Duration(), default="60s", show_default=True, help="Patience of --wait")
@click.option("-o", "--output", type=click.Choice(["table", "json", "name"]), default="table", show_default=True)
@click.option(
    "--simulate",
    metavar="[SPEC]",
    is_flag=False,
    flag_value="",
    help="Start the daemon with simulated cards when none runs: 2x24GiB, or 2x8x24GiB for two nodes of eight  "
    "[default: 2x24GiB]",
)
def apply(
    files: Sequence[Path],
    namespace: str | None,
    dry_run: bool,
    wait: bool,
    timeout: float,
    output: str,
    simulate: str | None,
) -> None:
    """Run the Pods of a manifest on this machine, as local processes.

    The very manifest that Kubernetes gets: Pods, and Deployments, StatefulSets, ReplicaSets and Jobs with their
    replicas, in the spelling of qGPU, T9k or gpushare. They are placed on the cards as on a cluster, and held to their
    memory and share there. Starts the daemon when none runs, as `aliquot run` does. Applied again, only what changed is
    changed.

    What is not as on Kubernetes: there is one machine, and no containers. `command`, `args`, `env` and `workingDir` run
    as processes of this machine, as you, with its files and its network; the image is not used. Where a container names
    no command, the sample workload (`aliquot burn load`) runs in its place. Kinds that run nothing here (Service,
    ConfigMap, DaemonSet, ...) are skipped. All of that is noted.

    All or nothing: when one object is not allowed, none is started (exit code 2, with file and line).

    \b
    aliquot apply -f binpack.yaml
    aliquot apply -f pods/ --wait
    aliquot apply --simulate 2x8x24GiB -f binpack.yaml --wait
    kubectl get sts binpack-1 -o yaml | aliquot apply -f -
    """
    from aliquot.cli.pods.submit import check_alone, named, noted, read_files, runnable, send, skipped

    manifests, others = runnable(read_files(files))
    for manifest in manifests:
        named(manifest, namespace)  # what is wrong in a file is told before a daemon is started
    alone = dry_run and not _daemon_runs()
    if alone:
        results = check_alone(manifests, namespace)
    else:
        results = send(_connected(simulate), manifests, namespace, dry_run=dry_run)
    _write(results, output, dry_run)
    if others:
        _note(skipped(others))
    for line in noted(results):
        _note(line)
    if alone:
        _note("no daemon runs, and none was started: what the manifests say was checked, not whether there is room")
    if dry_run:
        return
    if wait:
        from aliquot.cli.pods.progress import settle

        raise click.exceptions.Exit(settle(results, timeout))
    if output == "table":
        click.echo("`aliquot get pods` shows how they stand", err=True)


def _daemon_runs() -> bool:
    from aliquot.adapters.host.control import ControlError, NoDaemonError, connect
    from aliquot.adapters.host.home import homes

    try:
        connect(homes())[0].close()
    except NoDaemonError:
        return False
    except ControlError:  # it is there, and will say so itself
        return True
    return True


def _connected(simulate: str | None) -> Connection:
    """To the daemon that runs, or to one that is started."""
    from aliquot.cli.run.command import SIMULATED
    from aliquot.cli.run.request import RunError, connected
    from aliquot.cli.simulated import parse_simulation

    parse_simulation(simulate or None)
    try:
        return connected([] if simulate is None else ["--simulate", simulate or SIMULATED], simulate)
    except RunError as error:
        raise InputError(str(error), code=error.code) from error


def _write(results: Sequence[Json], output: str, dry_run: bool) -> None:
    if output == "json":
        click.echo(json.dumps(results, indent=2, ensure_ascii=False))
        return
    for result in results:
        shown = BY_NAME[result["kind"]].shown(result["name"])
        done = "" if output == "name" else f" {result['action']}{' (dry run)' * dry_run}"
        click.echo(printable(shown + done))


def _note(text: str) -> None:
    click.echo(f"note: {printable(text)}", err=True)
