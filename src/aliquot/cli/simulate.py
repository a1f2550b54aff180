"""`aliquot simulate`: packs a trace of Pods with a placement policy."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeVar

import click

from aliquot.cli.errors import InputError
from aliquot.model.text import printable_json
from aliquot.placement import POLICY_NAMES
from aliquot.wording.amounts import count

if TYPE_CHECKING:
    from aliquot.model.node import Node
    from aliquot.sim.churn import Steady
    from aliquot.sim.replay import Outcome
    from aliquot.sim.trace import PodSpec

_MOST_CARDS = 1_000_000  # of a generated cluster; more is a typing error
_MOST_LOAD = 10
_MOST_FACTOR = 8


class Result(TypedDict):
    """What became of one policy, filling the cluster."""

    policy: str
    seed: int
    target: float
    allocated_percent: float
    allocated_percent_at_100: float
    arrived: int
    placed: int
    dropped: int
    decisions_per_second: float
    seconds: float
    nodes: int
    gpus: int
    workload: str


class WaitsResult(TypedDict):
    """How long Pods of one size waited."""

    size: str
    pods: int
    still_waiting: int
    mean_seconds: float
    p50_seconds: float
    p99_seconds: float


class SteadyResult(TypedDict):
    """The same where Pods come and go."""

    policy: str
    seed: int
    load: float
    allocated_percent: float
    waits: list[WaitsResult]
    arrived: int
    seconds: float
    nodes: int
    gpus: int
    workload: str


_R = TypeVar("_R", Result, SteadyResult)


@click.command()
@click.option("--nodes", "nodes_file", type=click.Path(path_type=Path), help="CSV: sn,cpu_milli,memory_mib,gpu,model")
@click.option(
    "--pods",
    "pods_file",
    type=click.Path(path_type=Path),
    help="CSV: name,cpu_milli,memory_mib,num_gpu,gpu_milli[,gpu_spec]; gpu_spec 'A|B' restricts the model",
)
@click.option("--generate", metavar="NODESxGPUS", help="Generate nodes and Pods, for example 200x8")
@click.option("--policy", type=click.Choice([*POLICY_NAMES, "all"]), default="dense", show_default=True)
@click.option(
    "--seed", type=int, default=42, show_default=True, help="Seed for the order of arrival and for --generate"
)
@click.option(
    "--target", type=float, default=1.3, show_default=True, help="Requested GPU as a multiple of the GPU capacity"
)
@click.option(
    "--load",
    type=float,
    metavar="FRACTION",
    help="Let Pods come and go instead: the GPU they request at a time, as a fraction of the capacity, for example 0.9",
)
@click.option(
    "--oversubscribe",
    type=float,
    metavar="FACTOR",
    help="Let Pods ask for memory; those with a part of one card are offline work that may be parked, and up to FACTOR "
    "(1 to 8) times a card's memory is booked",
)
@click.option(
    "--workload",
    type=click.Choice(["trace", "seen"]),
    default="trace",
    show_default=True,
    help="What fgd and dense know of future Pods: the mix of the whole trace, or the Pods seen so far",
)
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), help="Write an SVG plot of the allocation over arrivals"
)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def simulate(
    nodes_file: Path | None,
    pods_file: Path | None,
    generate: str | None,
    policy: str,
    seed: int,
    target: float,
    load: float | None,
    oversubscribe: float | None,
    workload: str,
    plot: Path | None,
    output: str,
) -> None:
    """Measure how well the placement policies pack a trace of Pods.

    The Pods of the trace, and more drawn from it until they request TARGET times the GPU capacity, arrive in a random
    order. No Pod leaves; a Pod that does not fit is dropped; CPU and memory count.

    With --load Pods come and go: they arrive at random, stay an hour on average, and one that does not fit waits until
    it does, without holding up others. After two hours the cluster is measured for four: the GPU allocated, and how
    long Pods waited by their size.

    \b
    aliquot simulate --generate 200x8 --policy all --plot packing.svg
    aliquot simulate --generate 200x8 --policy all --load 0.9
    aliquot simulate --generate 200x8 --oversubscribe 1.5 --target 2
    aliquot simulate --nodes nodes.csv --pods pods.csv --policy dense --seed 42 -o json
    """
    if not 0 < target <= 100:
        raise InputError(f"--target: {target} is not allowed: a number above 0, up to 100")
    if load is not None and not 0 < load <= _MOST_LOAD:
        raise InputError(f"--load: {load} is not allowed: a number above 0, up to {_MOST_LOAD}; 0.9 is a load of 90%")
    if load is not None and plot is not None:
        raise InputError("--plot: draws how Pods fill a cluster; it cannot be used with --load")
    if oversubscribe is not None and not 1 <= oversubscribe <= _MOST_FACTOR:
        raise InputError(f"--oversubscribe: {oversubscribe} is not allowed: a number from 1 to {_MOST_FACTOR}")
    if plot is not None:
        _check_writable(plot)
    nodes, pods = _read(nodes_file, pods_file, generate, seed)
    if oversubscribe is not None:
        from aliquot.sim.trace import oversubscribed

        nodes, pods = oversubscribed(nodes, pods, oversubscribe)
    names = POLICY_NAMES if policy == "all" else (policy,)
    if load is not None:
        if not any(pod.num_gpu for pod in pods):
            raise InputError("--load: no Pod requests a GPU, so there is no load to reach; leave --load out")
        steady = [_come_and_go(nodes, pods, name, seed, load, workload) for name in names]
        _show([_steady_result(found, seed, len(nodes), workload) for found in steady], policy, output, _print_steady)
        return
    outcomes = [_run(nodes, pods, name, seed, target, workload) for name in names]
    if plot is not None:
        _draw(plot, outcomes, len(nodes), seed)
    results = [_result(outcome, seed, target, len(nodes), workload) for outcome in outcomes]
    _show(results, policy, output, lambda found: _print(found, plot))


def _show(results: list[_R], policy: str, output: str, print_table: Callable[[list[_R]], None]) -> None:
    if output == "json":
        import msgspec

        answer = results if policy == "all" else results[0]
        click.echo(printable_json(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()))
    else:
        print_table(results)


def _read(
    nodes_file: Path | None, pods_file: Path | None, generated: str | None, seed: int
) -> tuple[list[Node], list[PodSpec]]:
    from aliquot.sim import trace

    if generated is not None:
        if nodes_file or pods_file:
            raise InputError("give either --generate or --nodes and --pods")
        size = re.fullmatch(r"([0-9]{1,7})x([0-9]{1,3})", generated)
        nodes, cards = (int(size[1]), int(size[2])) if size else (0, 0)
        if not (nodes and 1 <= cards <= 128 and nodes * cards <= _MOST_CARDS):
            raise InputError(
                f'--generate: "{generated}" is not allowed: NODESxGPUS with 1 to 128 GPUs per node, for example 200x8'
            )
        return trace.generate(nodes, cards, seed)
    if nodes_file is None or pods_file is None:
        raise InputError("give --nodes NODES.csv and --pods PODS.csv, or --generate 200x8")
    try:
        read = trace.parse_nodes(_lines(nodes_file), str(nodes_file))
        models = frozenset(card.model for node in read for card in node.cards)
        if not any(node.cards for node in read):
            raise InputError(f"{nodes_file}:2: column gpu: no node has a GPU")
        return read, trace.parse_pods(_lines(pods_file), str(pods_file), models)
    except trace.TraceError as error:
        raise InputError(str(error)) from error


def _lines(path: Path) -> list[str]:
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line, column = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
        raise InputError(f"{path}:{line}: column {column}: not UTF-8 text") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    return io.StringIO(text, newline="").readlines()


def _run(nodes: list[Node], pods: list[PodSpec], policy: str, seed: int, target: float, workload: str) -> Outcome:
    from aliquot.sim.arrivals import arrivals
    from aliquot.sim.replay import replay

    total = sum(len(node.cards) for node in nodes) * 1000
    coming = arrivals(pods, round(target * total), seed)
    known = pods if workload == "trace" else []
    with _progress(policy, len(coming)) as progress:
        return replay(nodes, coming, policy, known=known, clock=time.perf_counter, progress=progress)


def _come_and_go(nodes: list[Node], pods: list[PodSpec], policy: str, seed: int, load: float, workload: str) -> Steady:
    from aliquot.sim.churn import churn, come_and_go

    known = pods if workload == "trace" else []
    coming = come_and_go(pods, sum(len(node.cards) for node in nodes) * 1000, load, seed)
    with _progress(policy, len(coming)) as progress:
        return churn(nodes, pods, coming, policy, load=load, known=known, clock=time.perf_counter, progress=progress)


@contextlib.contextmanager
def _progress(policy: str, steps: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, if it is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(policy, total=steps)
        yield lambda done: bar.update(task, completed=done)


def _result(outcome: Outcome, seed: int, target: float, nodes: int, workload: str) -> Result:
    return {
        "policy": outcome.policy,
        "seed": seed,
        "target": target,
        "allocated_percent": round(outcome.percent(outcome.allocated_milli), 3),
        "allocated_percent_at_100": round(outcome.percent(outcome.allocated_milli_at_100), 3),
        "arrived": outcome.arrived,
        "placed": outcome.placed,
        "dropped": outcome.dropped,
        "decisions_per_second": round(outcome.arrived / max(outcome.seconds, 1e-9), 1),
        "seconds": round(outcome.seconds, 3),
        "nodes": nodes,
        "gpus": outcome.total_milli // 1000,
        "workload": workload,
    }


def _steady_result(steady: Steady, seed: int, nodes: int, workload: str) -> SteadyResult:
    return {
        "policy": steady.policy,
        "seed": seed,
        "load": steady.load,
        "allocated_percent": round(steady.allocated_percent, 3),
        "waits": [
            {
                "size": waits.size,
                "pods": waits.pods,
                "still_waiting": waits.waiting,
                "mean_seconds": round(waits.mean, 1),
                "p50_seconds": round(waits.p50, 1),
                "p99_seconds": round(waits.p99, 1),
            }
            for waits in steady.waits
        ],
        "arrived": steady.arrived,
        "seconds": round(steady.seconds, 3),
        "nodes": nodes,
        "gpus": steady.total_milli // 1000,
        "workload": workload,
    }


def _print_steady(results: list[SteadyResult]) -> None:
    from aliquot.cli.tables import table

    first = results[0]
    click.echo(
        f"{first['nodes']:,} nodes, {first['gpus']:,} GPUs; {first['arrived']:,} Pods come and go "
        f"at a load of {first['load']:.0%} (seed {first['seed']}); waiting times in seconds\n"
    )
    head = ("POLICY", "ALLOCATED", "CARDS", "PODS", "WAIT MEAN", "P50", "P99", "STILL WAITING")
    rows = [
        (
            result["policy"],
            f"{result['allocated_percent']:.2f}%",
            waits["size"],
            f"{waits['pods']:,}",
            *(f"{wait:,.0f}" for wait in (waits["mean_seconds"], waits["p50_seconds"], waits["p99_seconds"])),
            f"{waits['still_waiting']:,}",
        )
        for result in results
        for waits in result["waits"]
    ]
    click.echo(table(head, rows, right=frozenset({1, 3, 4, 5, 6, 7})))


def _print(results: list[Result], plot: Path | None) -> None:
    from aliquot.cli.tables import bar, table

    first = results[0]
    nodes, gpus, pods = (
        count(number, noun)
        for number, noun in ((first["nodes"], "node"), (first["gpus"], "GPU"), (first["arrived"], "Pod"))
    )
    click.echo(f"{nodes}, {gpus}; {pods}, for a target of {first['target']:.0%} of the GPU (seed {first['seed']})\n")
    head = ("POLICY", "ALLOCATED", "", "AT 100%", "DROPPED", "DECISIONS/S")
    rows = [
        (
            result["policy"],
            f"{result['allocated_percent']:.2f}%",
            bar(result["allocated_percent"] / 100, 30),
            f"{result['allocated_percent_at_100']:.2f}%",
            f"{result['dropped']:,}",
            f"{result['decisions_per_second']:,.0f}",
        )
        for result in results
    ]
    click.echo(table(head, rows, right=frozenset({1, 3, 4, 5})))
    if plot is not None:
        click.echo(f"\nplot: {plot}")


def _check_writable(path: Path) -> None:
    """Report it before the simulation."""
    if path.suffix.lower() not in ("", ".svg"):
        raise InputError(f"--plot: {path} is not allowed: plots are SVG, name a file that ends with .svg")
    if not path.parent.is_dir():
        raise InputError(f"--plot: {path}: no such folder: {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"--plot: {path}: Permission denied")


def _draw(path: Path, outcomes: list[Outcome], nodes: int, seed: int) -> None:
    from aliquot.cli.plot import line_chart

    most = max(outcome.curve[-1][0] for outcome in outcomes)
    chart = line_chart(
        "GPU allocated as Pods arrive",
        f"{nodes:,} nodes, {outcomes[0].total_milli // 1000:,} GPUs, seed {seed}; dashed: no Pod dropped",
        "GPU requested so far, % of capacity",
        "GPU allocated, %",
        {f"{outcome.policy} {outcome.percent(outcome.allocated_milli):.2f}%": outcome.curve for outcome in outcomes},
        ideal=[(0, 0), (min(100, most), min(100, most)), (most, min(100, most))],
    )
    try:
        path.write_text(chart, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--plot: {path}: {error.strerror or error}") from error
