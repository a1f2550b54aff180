"""`aliquot stop` and `aliquot logs`: one run, by its name."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from aliquot.cli.asking import Duration, NoDaemonRunsError, ask, events
from aliquot.cli.errors import InputError

_PIECE = 1 << 16


@click.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--timeout", type=Duration(), default="10s", show_default=True, help="From SIGTERM to SIGKILL")
def stop(names: Sequence[str], timeout: float) -> None:
    """End a run, or several.

    SIGTERM to all its processes, then SIGKILL to those that are left. One that waits leaves the queue.
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


@click.command()
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Go on as long as it runs")
def logs(name: str, follow: bool) -> None:
    """Show the output of a run that was started with --detach."""
    said = ask({"op": "logs", "name": name})
    if said["log"] is None:
        where = said.get("output")
        raise InputError(
            f"{name} was not started with --detach: its output goes to "
            + (where if where else "where it was started")
            + f" (pid {said['pid']})"
        )
    try:
        with open(said["log"], "rb") as log:
            _copy(log)
            while follow and _runs(name):
                time.sleep(0.2)
                _copy(log)
            _copy(log)
    except OSError as error:
        raise InputError(f"{said['log']}: {error.strerror}") from error


def _copy(log: Any) -> None:
    sys.stdout.flush()
    while piece := log.read(_PIECE):
        while piece:
            piece = piece[os.write(sys.stdout.fileno(), piece) :]


def _runs(name: str) -> bool:
    return bool(ask({"op": "logs", "name": name})["running"])
