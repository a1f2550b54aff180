"""`aliquot stop`: stops runs by name."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from aliquot.cli.client import Duration, NoDaemonRunsError, NotFoundError, events, read_status
from aliquot.cli.errors import InputError
from aliquot.cli.pods.completion import runs
from aliquot.cli.pods.kinds import DEFAULT_NAMESPACE


@click.command()
@click.argument("names", metavar="NAME...", nargs=-1, shell_complete=runs)
@click.option("--all", "everything", is_flag=True, help="Stop all your runs, also queued ones; no Pods")
@click.option("--timeout", type=Duration(), default="10s", show_default=True, help="Time from SIGTERM to SIGKILL")
def stop(names: Sequence[str], everything: bool, timeout: float) -> None:
    """Stop runs.

    Send SIGTERM to all processes of a run, then SIGKILL to those that are left. A queued run leaves the queue. To stop
    Pods, use `aliquot delete`.
    """
    if bool(names) == everything:
        raise click.UsageError("give either a NAME or --all", click.get_current_context())
    code = 0
    for name in _own_runs() if everything else names:
        try:
            _stop(name, timeout)
        except NoDaemonRunsError:
            raise
        except NotFoundError as error:
            if everything:  # it ended by itself meanwhile
                continue
            _report_missing(name, error)
            code = code or error.exit_code
        except InputError as error:  # stop the others all the same
            error.show()
            code = code or error.exit_code
    raise click.exceptions.Exit(code)


def _own_runs() -> list[str]:
    """Those that wait first: nobody starts while the others end."""
    status, uid = read_status(), os.geteuid()
    waiting = [entry.name for entry in status.queue if entry.uid == uid]
    names = [*waiting, *(tenant.name for tenant in status.tenants if tenant.uid == uid)]
    found = [name for name in names if "/" not in name]  # Pods are called NAMESPACE/NAME
    if not found:
        click.echo("no run of yours to stop", err=True)
    return found


def _report_missing(name: str, error: InputError) -> None:
    """A Pod of that name is named with the command that deletes it."""
    try:
        pods = read_status().pods or []
    except InputError:  # the daemon ended meanwhile
        pods = []
    for pod in pods:
        if name in (pod.name, f"{pod.namespace}/{pod.name}", f"pod/{pod.name}"):
            where = "" if pod.namespace == DEFAULT_NAMESPACE else f" -n {pod.namespace}"
            error = InputError(f"{name} is a Pod, not a run: `aliquot delete pod {pod.name}{where}` deletes it")
            break
    error.show()


def _stop(name: str, timeout: float) -> None:
    for message in events({"op": "stop", "name": name, "timeout": timeout}, timeout + 20):
        if "signal" in message:
            pids = message["pids"]
            click.echo(f"{name}: {message['signal']} to {len(pids)} process{'es' * (len(pids) != 1)}", err=True)
        elif "ok" in message:
            waited = message["ok"]["was"] == "waiting"
            click.echo(f"{name}: {'removed from the queue' if waited else 'stopped'}", err=True)
