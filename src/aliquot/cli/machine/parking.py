"""`aliquot park` and `aliquot wake`: a run's memory leaves its cards, or comes back."""

from __future__ import annotations

from collections.abc import Sequence

import click

from aliquot.cli.client import Duration, NoDaemonRunsError, events
from aliquot.cli.errors import InputError
from aliquot.cli.machine.runnames import runs
from aliquot.wording.amounts import memory


@click.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=runs)
@click.option("--timeout", type=Duration(), default="60s", show_default=True, help="Time to wait for the move")
def park(names: Sequence[str], timeout: float) -> None:
    """Move the memory of runs from their cards to the host's pool.

    Only of runs started with --park, and of offline runs started while `aliquot policy oversubscribe` was above 1. The
    next kernel, copy or allocation of the run brings its memory back; so does `aliquot wake`.

    \b
    aliquot park notebook
    """
    _move("park", names, timeout)


@click.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=runs)
@click.option("--timeout", type=Duration(), default="60s", show_default=True, help="Time to wait for the move")
def wake(names: Sequence[str], timeout: float) -> None:
    """Bring the memory of parked runs back to their cards, before they need it.

    \b
    aliquot wake notebook
    """
    _move("wake", names, timeout)


def _move(verb: str, names: Sequence[str], timeout: float) -> None:
    code = 0
    for name in names:
        try:
            for message in events({"op": verb, "name": name, "timeout": timeout}, timeout + 20):
                if "ok" in message:
                    parked, resident = message["ok"]["parked_bytes"], message["ok"]["resident_bytes"]
                    what = f"{memory(parked >> 20)} parked, " if verb == "park" else ""
                    if message["ok"].get("returned"):
                        what = "its memory left, and its next call brought it back: "
                    click.echo(f"{name}: {what}{memory(resident >> 20)} on the card", err=True)
        except NoDaemonRunsError:
            raise
        except InputError as error:  # the others all the same
            error.show()
            code = code or error.exit_code
    raise click.exceptions.Exit(code)
