"""`aliquot stop`: the end of a run, by its name."""

from __future__ import annotations

from collections.abc import Sequence

import click

from aliquot.cli.client import Duration, NoDaemonRunsError, events
from aliquot.cli.errors import InputError


@click.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--timeout", type=Duration(), default="10s", show_default=True, help="From SIGTERM to SIGKILL")
def stop(names: Sequence[str], timeout: float) -> None:
    """End a run, or several.

    SIGTERM to all its processes, then SIGKILL to those that are left. One that waits leaves the queue. `aliquot delete`
    ends Pods.
    """
    code = 0
    for name in names:
        try:
            _stop(name, timeout)
        except NoDaemonRunsError:
            raise
        except InputError as error:  # the others are stopped all the same
            error.show()
            code = code or error.exit_code
    raise click.exceptions.Exit(code)


def _stop(name: str, timeout: float) -> None:
    for said in events({"op": "stop", "name": name, "timeout": timeout}, timeout + 20):
        if "signal" in said:
            pids = said["pids"]
            click.echo(f"{name}: {said['signal']} to {len(pids)} process{'es' * (len(pids) != 1)}", err=True)
        elif "ok" in said:
            waited = said["ok"]["was"] == "waiting"
            click.echo(f"{name}: {'taken out of the queue' if waited else 'stopped'}", err=True)
