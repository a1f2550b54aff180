"""`aliquot stop`: stops runs by name."""

from __future__ import annotations

from collections.abc import Sequence

import click

from aliquot.cli.client import Duration, NoDaemonRunsError, events
from aliquot.cli.errors import InputError
from aliquot.cli.pods.completion import runs


@click.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=runs)
@click.option("--timeout", type=Duration(), default="10s", show_default=True, help="Time from SIGTERM to SIGKILL")
def stop(names: Sequence[str], timeout: float) -> None:
    """Stop runs.

    Send SIGTERM to all processes of a run, then SIGKILL to those that are left. A queued run leaves the queue. To stop
    Pods, use `aliquot delete`.
    """
    code = 0
    for name in names:
        try:
            _stop(name, timeout)
        except NoDaemonRunsError:
            raise
        except InputError as error:  # stop the others all the same
            error.show()
            code = code or error.exit_code
    raise click.exceptions.Exit(code)


def _stop(name: str, timeout: float) -> None:
    for message in events({"op": "stop", "name": name, "timeout": timeout}, timeout + 20):
        if "signal" in message:
            pids = message["pids"]
            click.echo(f"{name}: {message['signal']} to {len(pids)} process{'es' * (len(pids) != 1)}", err=True)
        elif "ok" in message:
            waited = message["ok"]["was"] == "waiting"
            click.echo(f"{name}: {'removed from the queue' if waited else 'stopped'}", err=True)
