"""`aliquot probe`: measure what control of a card is worth, on any card and driver."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from aliquot.adapters.host.home import Home
from aliquot.cli.errors import InputError
from aliquot.cli.simulated import parse_simulation, with_stand_ins
from aliquot.cli.tables import printable
from aliquot.model.cardstate.control import CardControl
from aliquot.wording.control import control_words

if TYPE_CHECKING:
    from aliquot.model.status.probe import PreemptionFigures, ProbeFigures

_SIMULATED = "1x24GiB"
_STOPS = (signal.SIGINT, signal.SIGTERM)
_FOLDER = "ALIQUOT_PROBE_FOLDER"  # this process and the folder that it made before it re-executed itself (--simulate)


@click.command()
@click.option("--card", "index", type=click.IntRange(0), default=0, show_default=True, help="Index of the card")
@click.option(
    "--seconds", type=click.FloatRange(0.5, 60), default=5.0, show_default=True, help="Length of each measurement"
)
@click.option(
    "--simulate",
    metavar="[SPEC]",
    is_flag=False,
    flag_value=_SIMULATED,
    help=f"Probe a simulated card; without SPEC {_SIMULATED}",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def probe(index: int, seconds: float, simulate: str | None, output: str) -> None:
    """Measure what control of a card is worth, in about a minute.

    Runs sample programs on one idle card: the effect of time slices and pauses, the latency that offline work adds to
    requests, the errors of shares and caps, the cost of switching, and memory limits. Needs no daemon. Attach the
    report (-o json) to an issue to have your card listed in docs/hardware.md.

    \b
    aliquot probe
    aliquot probe --card 1 -o json > report.json
    aliquot probe --simulate 1x24GiB
    """
    from aliquot.adapters.gpu import player
    from aliquot.adapters.gpu.nvml import Nvml, NvmlError
    from aliquot.services.proof.selftest import STEPS, SelfTest, SelfTestError

    spec = parse_simulation(simulate)
    try:
        folder = _own_folder()
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}: the probe needs a folder there", code=1) from error
    home = Home(folder, folder)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
        if spec is not None:
            os.environ[_FOLDER] = f"{os.getpid()} {folder}"
            # While it re-executes itself, Ctrl-C waits until there is somebody to end the player.
            with_stand_ins(home, spec, before_again=lambda: _hold(_STOPS))
            del os.environ[_FOLDER]
        if not os.path.exists(player.shim()):
            raise InputError(f"{player.shim()} is missing: build it with `make native`")
        nvml = Nvml()
        cards = nvml.cards()
        if index >= len(cards):
            raise InputError(f"--card: {index} is not allowed: this machine has {len(cards)}, counted from 0")
        card = cards[index]
        if others := sorted(nvml.processes(card.uuid)):
            raise InputError(f"card {index} is in use by processes {', '.join(map(str, others))}: stop them first")
        if nvml.is_exclusive(card.uuid):
            raise InputError(
                f"card {index} lets only one process use it (its compute mode), and the probe needs several: "
                f"allow that first, nvidia-smi -i {index} -c DEFAULT"
            )
        test = SelfTest(
            card,
            nvml,
            Path(folder),
            f"{player.preloadable(home)}/libaliquot.so",
            simulated=spec is not None,
            seconds=seconds,
        )
        about = _about(card.model, nvml.driver(), simulate)
        shown: Any = click.progressbar(length=len(STEPS), label="probing", file=sys.stderr)
        with shown as progress:
            figures = test.run(lambda _: progress.update(1))
    except NvmlError as error:
        raise InputError(f"no usable NVIDIA GPU ({error}); without one: aliquot probe --simulate 1x24GiB") from error
    except (SelfTestError, player.PlayerError, OSError) as error:
        raise InputError(f"the card cannot be probed: {error}", code=1) from error
    finally:
        player.end(home)
        shutil.rmtree(folder, ignore_errors=True)
    if output == "json":
        click.echo(json.dumps({**about, **msgspec.to_builtins(figures)}, indent=2))
    else:
        click.echo(_text(about, figures))


def _hold(signals: Collection[signal.Signals]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)


def _own_folder() -> str:
    """The folder that this process made before it re-executed itself, or a new one. Its path is short: it has sockets.
    Everything in it is ended and removed later, so it is never one that another user could have made."""
    pid, _, folder = os.environ.pop(_FOLDER, "").partition(" ")
    prefix = f"/tmp/aliquot-probe-{os.getpid()}-"  # noqa: S108 - only the beginning of the name
    if pid == str(os.getpid()) and folder.startswith(prefix) and "/" not in folder.removeprefix(prefix):
        found = os.lstat(folder)
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077:
            return folder
    return tempfile.mkdtemp(prefix=os.path.basename(prefix), dir=os.path.dirname(prefix))


def _about(model: str, driver: str, simulated: str | None) -> dict[str, str | None]:
    import aliquot

    return {
        "aliquot": aliquot.__version__,
        "card": model,
        "driver": driver,
        "kernel": platform.release(),
        "simulated": simulated,
    }


def _text(about: Mapping[str, str | None], figures: ProbeFigures) -> str:
    control, preemption, shares, cap = figures.control, figures.preemption, figures.shares, figures.cap
    words = control_words(CardControl(control.level, control.reason))
    right = figures.memory.within_limit_allowed and figures.memory.beyond_limit_refused
    lines = [
        f"{printable(str(about['card']))}, driver {printable(str(about['driver']))}",
        f"control            {words}",
        f"effect             slices: {control.slices}; pause: {control.pause}",
        f"added latency      {_added(preemption)}",
        f"error of shares    {shares.error_points:g} points ({_list(shares.wanted)}: {_list(shares.had)})",
        f"error of a cap     {cap.error_points:g} points ({cap.wanted}%: {cap.had:g}%)",
        f"cost of switching  {100 * figures.switching.cost:.1f}% of the card, two tenants against one",
        f"memory limit       {'kept' if right else 'NOT kept: a program got more than its limit'}",
    ]
    return "\n".join(lines)


def _added(preemption: PreemptionFigures) -> str:
    alone = f"{preemption.alone_us['p99']:g} us alone"
    if preemption.added_p99_us <= 0:  # this machine was busier while they were alone
        return f"p99 below noise: requests took no longer than the {alone}"
    return f"p99 {preemption.added_p99_us:g} us over {alone}"


def _list(values: Sequence[float]) -> str:
    return "/".join(f"{value:g}" for value in values)
