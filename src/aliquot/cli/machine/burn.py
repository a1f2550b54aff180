"""`aliquot burn`: a sample workload that measures its share of the card."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
import msgspec
from msgspec import UNSET

from aliquot.adapters.host.encoding import encode_json
from aliquot.adapters.host.process.children import end_with
from aliquot.cli.amounts import AmountError, parse_memory
from aliquot.cli.errors import InputError
from aliquot.cli.machine.burnprogress import shown_progress
from aliquot.cli.tables import printable
from aliquot.model.status.burn import BurnResult

if TYPE_CHECKING:
    from aliquot.services.burn.gates import FileGate
    from aliquot.services.burn.workload import Outcome, Plan

_Answer = TypeVar("_Answer")
_MICROSECONDS = {"us": 1.0, "ms": 1e3, "s": 1e6}
_DAY = 86_400.0
_TRY_SIMULATED = "to try it without a GPU: aliquot run --simulate -- aliquot burn"


def _duration(least_us: float, most_us: float) -> Callable[..., float]:
    """Parses an option as microseconds."""

    def read(_: click.Context, __: click.Parameter, value: str) -> float:
        found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?|\.\d{1,9})(us|ms|s)", value, re.ASCII)
        if not found:
            raise click.BadParameter(f'"{value}" is not allowed: a number with us, ms or s, for example 100us or 1.5ms')
        micros = float(found[1]) * _MICROSECONDS[found[2]]
        if not least_us <= micros <= most_us:
            raise click.BadParameter(f'"{value}" is not allowed: from {_time(least_us)} to {_time(most_us)}')
        return micros

    return read


def _finite(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """FloatRange accepts "nan"."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f'"{value}" is not allowed: a number')
    return value


def _size(_: click.Context, __: click.Parameter, value: str | None) -> int:
    """Parses an option as bytes."""
    if value is None:
        return 0
    try:
        return parse_memory(value) << 20
    except AmountError as error:
        raise click.BadParameter(f'"{value}" is not allowed: {error}') from error


_KERNEL = _duration(1, 60e6)
_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--seconds",
        type=click.FloatRange(0, _DAY, min_open=True),
        callback=_finite,
        help="Measured time  [default: 10]",
    ),
    click.option(
        "--warmup",
        metavar="TIME",
        callback=_duration(0, 60e6),
        default="300ms",
        show_default=True,
        help="Load before the measurement",
    ),
    click.option(
        "--device", type=click.IntRange(0), default=0, show_default=True, help="Index of the card in this process"
    ),
    click.option(
        "--iterations-per-us",
        type=click.FloatRange(0, 1e9, min_open=True),
        callback=_finite,
        envvar="ALIQUOT_BURN_RATE",
        help="Speed of the idle card, from `aliquot burn calibrate`  [default: measured first]",
    ),
    click.option(
        "--memory", metavar="SIZE", callback=_size, help="Allocate that much memory of the card: 1GiB, 512MiB"
    ),
    click.option("--check", is_flag=True, help="Verify all results on the card; exit with 1 if one is wrong"),
    click.option("--start-file", type=click.Path(path_type=Path), help="Print READY and wait for this file"),
    click.option("--until-file", type=click.Path(path_type=Path), help="Run until this file appears"),
    click.option(
        "--progress",
        type=click.Path(path_type=Path),
        help="Append time, process and number of finished kernels while it runs",
    ),
    click.option("--timeline", type=click.Path(path_type=Path), help="Write the times at which kernels ran, as JSON"),
    click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True),
)


def _shared(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.group(invoke_without_command=True)
@click.option("--parent", type=click.IntRange(1), hidden=True)  # end with that process, which started this one
@click.pass_context
def burn(ctx: click.Context, parent: int | None) -> None:
    """Run a sample workload: kernels with a fixed amount of work.

    Needs only NVIDIA's driver, or a simulated card. Without a command, runs `load` for ten seconds.

    \b
    aliquot burn
    aliquot run --core 30 -- aliquot burn load --kernel 20ms
    aliquot run --class online -- aliquot burn serve --kernel 100us --period 10ms
    """
    if os.getpid() == 1:  # of a container: the kernel ignores SIGTERM for it unless there is a handler
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if parent is not None and not end_with(parent):
        sys.exit(1)
    if ctx.invoked_subcommand is None:
        load.main([], standalone_mode=False, parent=ctx)


@burn.command()
@click.option(
    "--kernel",
    "kernel_us",
    callback=_KERNEL,
    metavar="TIME",
    default="1ms",
    show_default=True,
    help="Time of one kernel on an idle card",
)
@click.option("--depth", type=click.IntRange(1, 1024), help="Kernels queued on the card  [default: 8 ms of work]")
@click.option("--streams", type=click.IntRange(1, 128), default=1, show_default=True)
@click.option("--processes", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option("--graph", is_flag=True, help="Launch kernels as CUDA graphs")
@_shared
def load(kernel_us: float, processes: int, output: str, timeline: Path | None, **options: Any) -> None:
    """Keep the card busy and report the share obtained.

    \b
    aliquot burn load --kernel 1ms --seconds 10
    aliquot run --core 30 -- aliquot burn load --processes 3 --check
    """
    from aliquot.services.burn.workload import load as run

    if timeline and options["graph"]:
        raise InputError("give either --timeline or --graph: the kernels of a graph cannot be traced")
    plan, gate = _plan(kernel_us, timeline, options)
    outcome = _burn(plan, gate, processes, run)
    _finish("load", outcome, timeline, output)


@burn.command()
@click.option(
    "--kernel",
    "kernel_us",
    callback=_KERNEL,
    metavar="TIME",
    default="100us",
    show_default=True,
    help="Time of one kernel on an idle card",
)
@click.option("--kernels", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Kernels per request")
@click.option(
    "--period",
    metavar="TIME",
    callback=_duration(1, 60e6),
    default="10ms",
    show_default=True,
    help="Time from one request to the next",
)
@_shared
def serve(kernel_us: float, period: float, output: str, timeline: Path | None, **options: Any) -> None:
    """Serve requests at a fixed rate and report their latency.

    \b
    aliquot run --class online -- aliquot burn serve --kernel 100us --period 10ms
    """
    from aliquot.services.burn.workload import serve as run

    plan, gate = _plan(kernel_us, timeline, {**options, "period": period * 1e-6})
    _finish("serve", _burn(plan, gate, 1, run), timeline, output)


@burn.command()
@click.option("--device", type=click.IntRange(0), default=0, show_default=True)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def calibrate(device: int, output: str) -> None:
    """Measure how many iterations of the kernel's loop this card does per microsecond.

    Measure on an idle card: on a shared one, all shares reported later would be too large. Measure once, then pass the
    result with --iterations-per-us or ALIQUOT_BURN_RATE.
    """
    from aliquot.services.burn.workload import calibrate as measure

    name, rate = _guarded(lambda: measure(device))
    if output == "json":
        click.echo(json.dumps({"device": name, "iterations_per_us": round(rate, 4)}))
    else:
        click.echo(f"{rate:.4f}")


def _plan(kernel_us: float, timeline: Path | None, options: dict[str, Any]) -> tuple[Plan, FileGate]:
    from aliquot.services.burn.gates import FileGate
    from aliquot.services.burn.workload import Plan

    for option in ("progress", "start_file", "until_file"):
        _check_folder(option, options[option])
    _check_folder("timeline", timeline)
    seconds, until, start = options.pop("seconds"), options.pop("until_file"), options.pop("start_file")
    gate = FileGate(
        warmup=options.pop("warmup") * 1e-6,
        seconds=10.0 if seconds is None and until is None else seconds,
        start_file=start,
        until_file=until,
    )
    return Plan(kernel_us=kernel_us, timeline=timeline is not None, **options), gate


def _check_folder(option: str, path: Path | None) -> None:
    """Report it before the work starts."""
    if path is not None and not path.parent.is_dir():
        raise InputError(f"--{option.replace('_', '-')}: {path}: no such folder: {path.parent}")


def _burn(plan: Plan, gate: FileGate, processes: int, run: Callable[..., Outcome]) -> Outcome:
    from aliquot.services.burn import gates

    if plan.iterations_per_us is None:
        plan = _calibrated(plan)
    if processes == 1:
        with shown_progress() as on_progress:
            return _guarded(lambda: run(plan, gate, 0, on_progress))
    return _guarded(
        lambda: gates.merged(gates.spread(gate, processes, lambda child_gate, index: run(plan, child_gate, index)))
    )


def _calibrated(plan: Plan) -> Plan:
    """The plan with the card's rate, measured in a separate process: this one may fork later."""
    from dataclasses import replace

    from aliquot.services.burn import workload as service
    from aliquot.services.burn.gates import FileGate, spread

    def measure(gate: Any, _: int) -> Outcome:
        gate.begin()
        return service.Outcome(BurnResult(*service.calibrate(plan.device)))

    rate = _guarded(lambda: spread(FileGate(warmup=0), 1, measure)[0].result.iterations_per_us)
    text = f"measured {rate:.4f} iterations per us; if others used the card meanwhile, shares may be too large"
    click.echo(f"aliquot: {text} (set it with --iterations-per-us)", err=True)
    return replace(plan, iterations_per_us=rate)


def _guarded(work: Callable[[], _Answer]) -> _Answer:
    """Turns driver errors into one line: exit code 2 without a usable card, 1 after the start."""
    from aliquot.adapters.gpu.cuda import CudaError, NoDriverError
    from aliquot.services.burn.gates import BurnFailedError

    try:
        return work()
    except NoDriverError as error:
        raise InputError(f"{error}; {_TRY_SIMULATED}") from error
    except BurnFailedError as error:
        if error.no_driver:
            raise InputError(f"{error}; {_TRY_SIMULATED}") from error
        _fail(str(error))
    except (CudaError, OSError) as error:
        _fail(str(error))


def _fail(text: str) -> NoReturn:
    click.echo(f"aliquot: {printable(text)}", err=True)
    raise click.exceptions.Exit(1)


def _finish(mode: str, outcome: Outcome, timeline: Path | None, output: str) -> None:
    if timeline is not None:
        try:
            timeline.write_bytes(encode_json(outcome.timeline))
        except OSError as error:
            _fail(f"--timeline: {timeline}: {error.strerror or error}")
    result = outcome.result
    if output == "json":
        click.echo(json.dumps({"mode": mode, **msgspec.to_builtins(result)}))
    else:
        click.echo(_text(result))
    if result.right is False:
        _fail("wrong results: a kernel did not run exactly once, or one of its threads miscounted")


def _text(result: BurnResult) -> str:
    lines = [
        f"{printable(result.device)}: {result.kernels:,.0f} kernels of {_time(result.kernel_us)} in "
        f"{result.seconds:.1f} s: {100 * result.share:.1f}% of the card"
    ]
    if result.latency_us:
        times = ", ".join(f"{name} {_time(micros)}" for name, micros in result.latency_us.items())
        lines.append(f"  {result.requests:,} requests: {times}")
    elif result.latency_us is UNSET:
        lines.append("  per second: " + " ".join(f"{100 * share:.1f}%" for share in result.series))
        lines.append(f"  longest gap between finished kernels: {_time(1000 * result.longest_gap_ms)}")
    if result.right is not UNSET:
        lines.append(f"  results: {'all correct' if result.right else 'WRONG'}")
    return "\n".join(lines)


def _time(micros: float) -> str:
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if micros >= size:
            return f"{micros / size:.4g} {unit}"
    return f"{micros:.4g} us"
