"""`aliquot apply`: runs the Pods of a manifest as local processes on the cards of this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aliquot.cli.client import Duration
from aliquot.cli.errors import InputError
from aliquot.cli.pods.kinds import BY_NAME
from aliquot.cli.tables import printable
from aliquot.model.text import printable_json

if TYPE_CHECKING:
    from aliquot.adapters.host.control import Connection
    from aliquot.model.status.answers import AppliedObject


def _no_kustomize(_context: click.Context, _parameter: click.Parameter, folder: str | None) -> None:
    if folder is not None:
        raise InputError(f"-k is not supported: use `kubectl kustomize {folder} | aliquot apply -f -`")


@click.command()
@click.option(
    "-f",
    "--filename",
    "files",
    required=True,
    multiple=True,
    type=click.Path(path_type=Path),
    help="File, folder, or - for stdin: YAML or JSON, also with several documents or Lists",
)
@click.option("-k", "--kustomize", hidden=True, expose_value=False, is_eager=True, callback=_no_kustomize)
@click.option("-n", "--namespace", help="Namespace of objects that name none  [default: default]")
@click.option("--dry-run", is_flag=True, help="Check the manifest and print what would change; start nothing")
@click.option("--wait", is_flag=True, help="Wait until all Pods run or have succeeded; exit with 1 if some do not")
@click.option("--timeout", type=Duration(), default="60s", show_default=True, help="Time limit of --wait")
@click.option("-o", "--output", type=click.Choice(["table", "json", "name"]), default="table", show_default=True)
@click.option(
    "--rules", type=click.Choice(["seed", "2026"]), help="Version of qGPU's rules  [default: that of `aliquot up`]"
)
@click.option(
    "--simulate",
    metavar="[SPEC]",
    is_flag=False,
    flag_value="",
    help="If no daemon runs, start one with simulated cards: 2x24GiB, or 2x8x24GiB for two nodes of eight cards  "
    "[default: 2x24GiB]",
)
def apply(
    files: Sequence[Path],
    namespace: str | None,
    dry_run: bool,
    wait: bool,
    timeout: float,
    output: str,
    rules: str | None,
    simulate: str | None,
) -> None:
    """Run the Pods of a manifest on this machine as local processes.

    Takes the same manifests as Kubernetes: Pods, Deployments, StatefulSets, ReplicaSets, DaemonSets (one Pod), Jobs and
    CronJobs that request cards in the dialect of qGPU, T9k, gpushare or HAMi (nvidia.com/gpu). Pods
    are placed as on a cluster and limited to their memory and compute. Starts the daemon if none runs. Applying a
    changed manifest again changes only what differs.

    Differences from Kubernetes: there is one machine, and there are no containers. `command`, `args`, `env` and
    `workingDir` run as local processes under your user; the image is not used. A container without a command runs the
    sample workload (`aliquot burn load`). Kinds that run nothing here (Service, ConfigMap, ...) are skipped. Notes on
    stderr list these differences.

    All or nothing: if one object is invalid, or can never fit on this machine, none is started (exit code 2, with file
    and line).

    \b
    aliquot apply -f binpack.yaml
    aliquot apply -f pods/ --wait
    aliquot apply --simulate 2x8x24GiB -f binpack.yaml --wait
    kubectl get sts binpack-1 -o yaml | aliquot apply -f -
    """
    from aliquot.cli.pods.submit import check_offline, named, noted, read_files, runnable, send, skipped

    manifests, others = runnable(read_files(files))
    for manifest in manifests:
        named(manifest, namespace)  # report errors in files before starting a daemon
    offline = dry_run and not _daemon_runs()
    if offline:
        results = check_offline(manifests, namespace, rules)
    else:
        results = send(_connected(simulate), manifests, namespace, rules=rules, dry_run=dry_run)
    _write(results, output, dry_run)
    if others:
        _note(skipped(others))
    for line in noted(results):
        _note(line)
    if offline:
        _note("no daemon runs: the manifests were checked, but not whether the Pods fit")
    if dry_run:
        return
    if wait:
        from aliquot.cli.pods.progress import wait_until_settled

        raise click.exceptions.Exit(wait_until_settled(results, timeout))
    if output == "table":
        click.echo("see `aliquot get pods`", err=True)


def _daemon_runs() -> bool:
    from aliquot.adapters.host.control import ControlError, NoDaemonError, connect
    from aliquot.adapters.host.home import homes

    try:
        connect(homes())[0].close()
    except NoDaemonError:
        return False
    except ControlError:  # it runs; the request will report the error
        return True
    return True


def _connected(simulate: str | None) -> Connection:
    """Connect to the running daemon; start one if none runs."""
    from aliquot.cli.amounts import SIMULATED
    from aliquot.cli.run.request import RunError, connect_to_daemon
    from aliquot.cli.simulated import parse_simulation

    parse_simulation(simulate or None)
    try:
        return connect_to_daemon([] if simulate is None else ["--simulate", simulate or SIMULATED], simulate)
    except RunError as error:
        raise InputError(str(error), code=error.code) from error


def _write(results: Sequence[AppliedObject], output: str, dry_run: bool) -> None:
    if output == "json":
        from msgspec import to_builtins

        click.echo(printable_json(json.dumps(to_builtins(results), indent=2, ensure_ascii=False)))
        return
    for result in results:
        shown = BY_NAME[result.kind].shown(result.name)
        done = "" if output == "name" else f" {result.action}{' (dry run)' * dry_run}"
        click.echo(printable(shown + done))


def _note(text: str) -> None:
    click.echo(f"note: {printable(text)}", err=True)
