"""`aliquot demo`: options, choice of cards, final table and exit code."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypedDict

import click

from aliquot.adapters.host.control import AnswerError, ControlError, NoDaemonError, ask
from aliquot.adapters.host.home import homes
from aliquot.cli.amounts import SIMULATED
from aliquot.cli.client import parse_answer
from aliquot.cli.demo import output as console
from aliquot.cli.demo import promises, scenario
from aliquot.cli.demo.processes import Sandbox, sandboxed
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
_LOOK = 0.5
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
    terminal = output == "text" and sys.stdout.isatty()
    lively = terminal and os.environ.get("TERM", "") not in ("", "dumb", "unknown")
    with _terminated(), contextlib.ExitStack() as held:
        spec, line = choose(simulate, _find, held)
        with sandboxed() as sandbox, contextlib.ExitStack() as shown:
            out: console.Output
            if lively:
                out = shown.enter_context(console.live_output(seconds))
            else:
                out = shown.enter_context(console.plain_output(err=output == "json"))
            console.paragraph(out, line)
            console.paragraph(out, "Starting a daemon of its own; the demo leaves nothing behind.")
            sandbox.up(spec)
            address = _dashboard(sandbox)
            if address:
                out.line("Watch it live: ", (address, "bold"))
            bounds = promises.REAL if spec is None else promises.SIMULATED
            demo_run = scenario.Scenario(sandbox, out, promises.pace(seconds), bounds, began)
            demo_run.run()
            stays = stay if stay is not None else terminal
            if output == "json":
                click.echo(json.dumps(_report(demo_run, spec, address)))
            else:
                print_results(out, demo_run.outcome, demo_run.bounds)
                if address:
                    out.line(f"Dashboard: {address}" + ("" if stays else " (ends with the demo; keep it with --stay)"))
            if stays:
                _stay(sandbox, out)
    missed = [promise for promise in demo_run.outcome if not promise.held]
    raise click.exceptions.Exit(_MISSED if strict and missed else 0)


class PromiseReport(TypedDict):
    """One promise and what was measured."""

    key: str
    promised: str
    measured: str
    held: bool
    reasons: list[str]


class Report(TypedDict):
    """What `aliquot demo -o json` prints."""

    simulated: str | None
    first_share_seconds: float | None
    dashboard: str | None
    promises: list[PromiseReport]


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
    if not _is_only_demo(held):
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
        nvml = Nvml()
    except NvmlError as error:
        return Found(why=str(error))
    try:
        cards = nvml.cards()
        busy = [
            card.index
            for card in cards
            if nvml.processes(card.uuid) and (nvml.utilisation(card.uuid) or 0.0) >= _AT_WORK
        ]
        return Found(cards, "NVML reports no GPU", tuple(busy))
    except NvmlError as error:
        return Found(why=str(error))
    finally:
        nvml.close()


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


def _is_only_demo(held: contextlib.ExitStack) -> bool:
    """Whether no other demo uses the real cards. The kernel releases the name with the process."""
    name = held.enter_context(contextlib.closing(socket.socket(socket.AF_UNIX)))
    try:
        name.bind(ON_REAL_CARDS)
    except OSError:
        return False
    return True


def _dashboard(sandbox: Sandbox) -> str | None:
    return sandbox.status().daemon.dashboard or None


def print_results(out: console.Output, outcome: Sequence[promises.Promise], bounds: promises.Bounds) -> None:
    """The verdict, then the table."""
    held = sum(row.held for row in outcome)
    out.line()
    out.line((f"{held} of {len(outcome)} promises held", "bold green" if held == len(outcome) else "bold yellow"))
    if bounds.note:
        console.paragraph(out, bounds.note)
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if held < len(outcome) and bounds is promises.SIMULATED and load > cores:
        console.paragraph(out, _busy(load, cores))
    out.line()
    rows = [("held" if row.held else "MISSED", row.promised, row.measured) for row in outcome]
    head, *lines = table(("RESULT", "PROMISED", "MEASURED"), rows).splitlines()
    out.line((head, "bold"))
    for row, line in zip(outcome, lines, strict=True):
        verdict = len("held" if row.held else "MISSED")
        out.line((line[:verdict], "green" if row.held else "bold red"), line[verdict:])
        for reason in () if row.held else row.reasons:
            console.paragraph(out, reason, "        ", "  ")
    out.line()


def _busy(load: float, cores: int) -> str:
    """Simulated cards compete for the processor."""
    return f"The machine is busy: a load of {load:.1f} on {cores} cores in the last minute. Try again when it is idle."


def _report(demo_run: scenario.Scenario, spec: str | None, address: str | None) -> Report:
    return {
        "simulated": spec,
        "first_share_seconds": demo_run.first_share,
        "dashboard": address,
        "promises": [
            {
                "key": row.key,
                "promised": row.promised,
                "measured": row.measured,
                "held": row.held,
                "reasons": list(row.reasons),
            }
            for row in demo_run.outcome
        ],
    }


def _stay(sandbox: Sandbox, out: console.Output) -> None:
    """Wait for Ctrl-C, which is no failure."""
    try:
        scenario.keep_running(sandbox)
        out.line()
        console.paragraph(out, "A job and a server that is busy every few seconds keep running. To watch them:")
        out.line(f"  ALIQUOT_HOME={sandbox.home} {_program()} top")
        out.line(("Press Ctrl-C to end the demo.", "bold"))
        while True:
            out.show(scenario.rows_of(sandbox.status()))
            time.sleep(_LOOK)
    except KeyboardInterrupt:
        return


def _program() -> str:
    """The program's name as a user types it here: `make run` leaves it outside PATH."""
    program = sys.argv[0]
    if shutil.which("aliquot") is not None or os.path.basename(program) != "aliquot":
        return "aliquot"
    return os.path.relpath(program) if len(os.path.relpath(program)) < len(program) else program


@contextlib.contextmanager
def _terminated() -> Iterator[None]:
    """SIGTERM and a closed terminal clean up as Ctrl-C does."""

    def leave(*_: object) -> NoReturn:
        raise click.exceptions.Exit(_TERMINATED)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
