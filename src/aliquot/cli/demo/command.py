"""`aliquot demo`: options, choice of cards, final table and exit code."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import NoReturn

import click

from aliquot.adapters.host.control import AnswerError, ControlError, NoDaemonError, ask
from aliquot.adapters.host.home import homes
from aliquot.cli.amounts import SIMULATED
from aliquot.cli.client import parse_answer
from aliquot.cli.demo import promises
from aliquot.cli.demo.sandbox import sandboxed
from aliquot.cli.demo.story import Printed, Story
from aliquot.cli.errors import InputError
from aliquot.cli.simulated import parse_simulation
from aliquot.cli.tables import table
from aliquot.model.device import Card
from aliquot.model.status.machine import DaemonStatus
from aliquot.wording.amounts import memory

ON_REAL_CARDS = "\0aliquot-demo"  # an abstract socket: exclusive, and gone with the process
_SIMULATED_MEANS = "Placement, shares and limits are real; only the computing on the cards is simulated."
_MISSED, _TERMINATED = 1, 143
_DAY = 86_400
_AT_WORK = 0.1  # utilisation of a card from which the demo would disturb others


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(promises.LEAST_SECONDS, _DAY),
    default=120,
    show_default=True,
    help=f"Approximate duration; at least {promises.LEAST_SECONDS}",
)
@click.option(
    "--simulate",
    metavar="[SPEC]",
    is_flag=False,
    flag_value=SIMULATED,
    help=f"Use simulated cards instead of real ones; without SPEC {SIMULATED}",
)
@click.option("--strict", is_flag=True, help="Exit with 1 if a promise was missed")
@click.option("--stay/--no-stay", default=None, help="Keep running until Ctrl-C  [default: on a terminal]")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def demo(seconds: float, simulate: str | None, strict: bool, stay: bool | None, output: str) -> None:
    """Show in two minutes how cards are shared: promised and measured results side by side.

    Place Pods of three dialects, share a card between three tenants under each policy, preempt an offline job for an
    online server, and run three programs on a card that holds the memory of two. Uses the cards of this machine, or
    simulated ones if there are none. Runs its own daemon and leaves nothing behind.

    \b
    aliquot demo
    aliquot demo --seconds 30 --no-stay
    aliquot demo --simulate 2x24GiB -o json
    """
    began = time.monotonic()
    parse_simulation(simulate)
    for number in (signal.SIGTERM, signal.SIGHUP):  # clean up as after Ctrl-C
        signal.signal(number, _leave)
    out = Printed(err=output == "json")
    with contextlib.ExitStack() as held:
        spec, line = choose(simulate, _find, held)
        sandbox = held.enter_context(sandboxed())
        out.text(line)
        out.text("Starting a daemon of its own; the demo leaves nothing behind.")
        sandbox.up(spec)
        address = sandbox.status().daemon.dashboard or None
        if address:
            out.line(f"Watch it live: {address}", bold=True)
        bounds = promises.REAL if spec is None else promises.SIMULATED
        story = Story(sandbox, out, seconds, bounds, began)
        story.run()
        if output == "json":
            rows = [asdict(row) for row in story.outcome]
            first = story.first_share
            answer = {"simulated": spec, "first_share_seconds": first, "dashboard": address, "promises": rows}
            click.echo(json.dumps(answer))
        else:
            print_results(out, story.outcome, bounds)
        if stay if stay is not None else output == "text" and sys.stdout.isatty():
            story.keep_running()
            out.line()
            out.text("A job and a server that is busy every few seconds keep running. To watch them:")
            out.line(f"  ALIQUOT_HOME={sandbox.home} {sys.argv[0]} top")
            out.line("Press Ctrl-C to end the demo.", bold=True)
            with contextlib.suppress(KeyboardInterrupt):  # which is no failure
                signal.pause()
    missed = [promise for promise in story.outcome if not promise.held]
    raise click.exceptions.Exit(_MISSED if strict and missed else 0)


@dataclass(frozen=True, slots=True)
class Found:
    """The real cards or why there are none, and the indices of cards that others use."""

    cards: tuple[Card, ...] = ()
    why: str = ""
    busy: tuple[int, ...] = ()


def choose(simulate: str | None, find: Callable[[], Found], held: contextlib.ExitStack) -> tuple[str | None, str]:
    """The spec of the simulated cards, or None for real ones; and the line that says so."""
    if simulate is not None:
        return simulate, f"Using simulated cards ({simulate}). {_SIMULATED_MEANS}"
    found = find()
    simulated = f"using two simulated cards ({SIMULATED}). {_SIMULATED_MEANS}"
    if not found.cards:
        return SIMULATED, f"No NVIDIA GPU here ({found.why}): {simulated}"
    _refuse_beside_daemon()
    name = held.enter_context(contextlib.closing(socket.socket(socket.AF_UNIX)))
    try:
        name.bind(ON_REAL_CARDS)
    except OSError:
        return SIMULATED, f"Another demo uses the cards of this machine: {simulated}"
    if found.busy:
        busy = ", ".join(f"card {index}" for index in found.busy)
        return SIMULATED, f"Other programs use the cards ({busy}): {simulated}"
    names = ", ".join(f"{card.index}: {card.model} {memory(card.memory_mib)}" for card in found.cards)
    return None, f"Using the cards of this machine: {names}"


def _find() -> Found:
    """Find the cards with NVML."""
    from aliquot.adapters.gpu.nvml import Nvml, NvmlError

    try:
        with contextlib.closing(Nvml()) as nvml:
            cards = nvml.cards()
            used = (card for card in cards if nvml.processes(card.uuid))
            busy = (card.index for card in used if (nvml.utilisation(card.uuid) or 0.0) >= _AT_WORK)
            return Found(cards, "NVML reports no GPU", tuple(busy))
    except NvmlError as error:
        return Found(why=str(error))


def _refuse_beside_daemon() -> None:
    """Two daemons would book the same cards twice."""
    try:
        daemon = parse_answer(ask(homes(), {"op": "hello"}), DaemonStatus)
    except (NoDaemonError, ControlError, AnswerError):
        return
    if not daemon.simulated:
        raise InputError(
            f"the daemon (pid {daemon.pid}) uses the cards of this machine: run `aliquot demo --simulate "
            f"{SIMULATED}`, or stop the daemon with `aliquot down` (its tenants keep running)"
        )


def print_results(out: Printed, outcome: Sequence[promises.Promise], bounds: promises.Bounds) -> None:
    """The verdict, then the table."""
    held = sum(row.held for row in outcome)
    out.line()
    out.line(f"{held} of {len(outcome)} promises held", bold=True, fg="green" if held == len(outcome) else "yellow")
    if bounds.note:
        out.text(bounds.note)
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if held < len(outcome) and bounds is promises.SIMULATED and load > cores:  # they compete for the processor
        out.text(f"The machine is busy: a load of {load:.1f} on {cores} cores in the last minute. Try when it is idle.")
    out.line()
    rows = [("held" if row.held else "MISSED", row.promised, row.measured) for row in outcome]
    head, *lines = table(("RESULT", "PROMISED", "MEASURED"), rows).splitlines()
    out.line(head, bold=True)
    for row, line in zip(outcome, lines, strict=True):
        out.line(line, fg="green" if row.held else "red")
        for reason in () if row.held else row.reasons:
            out.text(reason, "        ", "  ")
    out.line()


def _leave(*_: object) -> NoReturn:
    raise click.exceptions.Exit(_TERMINATED)
