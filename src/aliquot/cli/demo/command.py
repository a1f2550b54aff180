"""`aliquot demo`: which cards it plays on, what it prints at the end, and its exit code."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import click

from aliquot.adapters.host.control import AnswerError, ControlError, NoDaemonError, ask
from aliquot.adapters.host.home import homes
from aliquot.cli.demo import output as console
from aliquot.cli.demo import promises, story
from aliquot.cli.demo.processes import Stage, staged
from aliquot.cli.errors import InputError
from aliquot.cli.simulated import parse_simulation
from aliquot.cli.tables import table
from aliquot.model.device import Card
from aliquot.wording.amounts import memory

SIMULATED = "2x24GiB"
ON_REAL_CARDS = "\0aliquot-demo"  # a socket's name that belongs to no folder
_MISSED, _TERMINATED = 1, 143
_DAY = 86_400
_LOOK = 0.5
_AT_WORK = 0.1  # of a card's time, in the last second: whoever has less is not disturbed much


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(promises.LEAST_SECONDS, _DAY),
    default=120,
    show_default=True,
    help=f"How long the story takes, about; at least {promises.LEAST_SECONDS}",
)
@click.option("--simulate", metavar="SPEC", help=f"Simulated cards although there are real ones, as in {SIMULATED}")
@click.option("--strict", is_flag=True, help="Exit 1 when a promise was missed")
@click.option("--stay/--no-stay", default=None, help="Stay up until Ctrl-C, or not  [default: on a terminal]")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def demo(seconds: float, simulate: str | None, strict: bool, stay: bool | None, output: str) -> None:
    """The two-minute story: cards shared, measured, beside what was promised.

    Pods of three dialects are placed; three tenants share a card under each policy; an online server takes the card
    from an offline job, which goes on where it stopped. On the cards of this machine, or on simulated ones where there
    are none. It has a daemon of its own and leaves nothing behind.

    \b
    aliquot demo
    aliquot demo --seconds 30 --no-stay
    aliquot demo --simulate 2x24GiB -o json
    """
    began = time.monotonic()
    parse_simulation(simulate)
    lively = output == "text" and sys.stdout.isatty()
    with _terminated(), contextlib.ExitStack() as held:
        spec, line = choose(simulate, _find, held)
        with staged() as stage, contextlib.ExitStack() as shown:
            teller = shown.enter_context(console.lively(seconds)) if lively else console.Plain(err=output == "json")
            teller.say(line)
            stage.up(spec)
            address = _dashboard(stage)
            if address:
                teller.say(f"To watch it live: {address}")
            bounds = promises.REAL if spec is None else promises.SIMULATED
            told = story.Story(stage, teller, promises.pace(seconds), bounds, began)
            told.play()
            stays = stay if stay is not None else lively
            if output == "json":
                click.echo(json.dumps(_data(told, spec, address)))
            else:
                _print(teller, told)
                if address:
                    teller.say(f"dashboard: {address}" + ("" if stays else " (it ends with the demo: --stay keeps it)"))
            if stays:
                _stay(stage, teller)
    missed = [each for each in told.outcome if not each.held]
    raise click.exceptions.Exit(_MISSED if strict and missed else 0)


@dataclass(frozen=True, slots=True)
class Found:
    """The real cards, or why there are none; and those on which other programs are at work."""

    cards: tuple[Card, ...] = ()
    why: str = ""
    busy: tuple[int, ...] = ()


def choose(simulate: str | None, find: Callable[[], Found], held: contextlib.ExitStack) -> tuple[str | None, str]:
    """Which cards: the spec of simulated ones or None, and the line that says so."""
    if simulate is not None:
        return simulate, f"Simulated cards play, {simulate}: the scheduling is real, the kernels are not."
    found = find()
    simulated = f"two simulated cards play ({SIMULATED}). Scheduling and figures are real, the kernels are not."
    if not found.cards:
        return SIMULATED, f"No NVIDIA GPU here ({found.why}): {simulated}"
    _refuse_beside_a_daemon()
    if not _the_only_one(held):
        return SIMULATED, f"Another demo plays on the cards of this machine: {simulated}"
    if found.busy:
        busy = ", ".join(f"card {index}" for index in found.busy)
        return SIMULATED, f"Others are at work here ({busy}), and this would disturb them: {simulated}"
    names = ", ".join(f"{card.index}: {card.model} {memory(card.memory_mib)}" for card in found.cards)
    return None, f"On the cards of this machine: {names}"


def _find() -> Found:
    """As NVML tells it."""
    from aliquot.adapters.gpu.nvml import Nvml, NvmlError

    try:
        nvml = Nvml()
    except NvmlError as error:
        return Found(why=str(error))
    try:
        cards = nvml.cards()
        at_work = [
            card.index
            for card in cards
            if nvml.processes(card.uuid) and (nvml.utilisation(card.uuid) or 0.0) >= _AT_WORK
        ]
        return Found(cards, "NVML tells of no card", tuple(at_work))
    except NvmlError as error:
        return Found(why=str(error))
    finally:
        nvml.close()


def _refuse_beside_a_daemon() -> None:
    """Two daemons would book the same cards twice."""
    try:
        said = ask(homes(), {"op": "hello"})
    except (NoDaemonError, ControlError, AnswerError):
        return
    if said.get("simulated") is None:
        raise InputError(
            f"the daemon of this machine (pid {said.get('pid')}) has its cards: `aliquot demo --simulate {SIMULATED}` "
            "plays beside it on simulated ones, `aliquot down` ends it (its tenants run on)"
        )


def _the_only_one(held: contextlib.ExitStack) -> bool:
    """Whether no other demo has the real cards. The kernel forgets such a name with the process that took it."""
    name = held.enter_context(contextlib.closing(socket.socket(socket.AF_UNIX)))
    try:
        name.bind(ON_REAL_CARDS)
    except OSError:
        return False
    return True


def _dashboard(stage: Stage) -> str | None:
    address: str | None = stage.status()["daemon"]["dashboard"]
    return address


def _print(teller: console.Teller, told: story.Story) -> None:
    rows = [(each.promised, each.measured, "held" if each.held else "MISSED") for each in told.outcome]
    teller.say()
    for line in table(("PROMISED", "MEASURED", ""), rows).splitlines():
        teller.say(line)
    held = sum(each.held for each in told.outcome)
    teller.say()
    teller.say(
        f"{held} of {len(rows)} held"
        + (f" ({told.bounds.said})" if told.bounds.said else "")
        + ("" if told.first_share is None else f"; the first share was measured after {told.first_share:.1f} s")
    )
    if held < len(rows) and told.bounds is promises.SIMULATED:
        teller.say(_busy(os.getloadavg()[0], os.cpu_count() or 1))


def _busy(load: float, cores: int) -> str:
    """Simulated cards have no time of their own: they take it from the processor."""
    return f"(simulated cards need the processor: {load:.1f} programs wanted its {cores} cores in the last minute)"


def _data(told: story.Story, spec: str | None, address: str | None) -> dict[str, Any]:
    return {
        "simulated": spec,
        "first_share_seconds": told.first_share,
        "dashboard": address,
        "promises": [
            {"key": each.key, "promised": each.promised, "measured": each.measured, "held": each.held}
            for each in told.outcome
        ],
    }


def _stay(stage: Stage, teller: console.Teller) -> None:
    """Until Ctrl-C: that is the expected end, and no failure."""
    try:
        story.go_on(stage)
        teller.say()
        home = f"ALIQUOT_HOME={stage.home}"
        teller.say(f"It goes on: an offline job, and a server that comes and goes. To look: {home} aliquot top")
        teller.say("Ctrl-C ends all of it.")
        while True:
            teller.show(story.rows_of(stage.status()))
            time.sleep(_LOOK)
    except KeyboardInterrupt:
        return


@contextlib.contextmanager
def _terminated() -> Iterator[None]:
    """SIGTERM and a closed terminal end it as Ctrl-C does: everything is tidied up."""

    def leave(*_: object) -> NoReturn:
        raise click.exceptions.Exit(_TERMINATED)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
