"""How densely the policies pack production traces: policy x trace, the mean over seeds.

    python bench/packing.py --data FOLDER [--policy fgd dense] [--seeds 42 43 44 45 46] [--plot FILE.svg] [-o json]
    python bench/packing.py --data FOLDER --load 0.8 0.9 0.97 1.1 [--trace default] [--seeds 47 48 49] [--cpu-pods 2.5]

The trace cpu-heavy is cpu100 with 2.5 times the CPU for Pods without GPU.
The first fills the cluster; with --load Pods come and go, and the waiting time by size is reported too.
FOLDER holds openb_node_list_gpu_node.csv and openb_pod_list_*.csv, Alibaba's traces as published with the FGD paper
(github.com/hkust-adsl/kubernetes-scheduler-simulator, Apache-2.0). The protocol is that of `aliquot simulate`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from aliquot.cli.plot import line_chart
from aliquot.cli.tables import table
from aliquot.model.node import Node
from aliquot.placement.choose import POLICIES
from aliquot.sim.arrivals import arrivals
from aliquot.sim.churn import Steady, churn, come_and_go
from aliquot.sim.replay import Outcome, replay
from aliquot.sim.trace import PodSpec, parse_nodes, parse_pods

# Percent of the GPU allocated when Pods ask for 1.3 times of it: what `dense` must reach, what FGD's authors published.
MUST = {"default": 96.1, "gpushare40": 94.7, "gpushare20": 97.1, "cpu100": 96.0, "multigpu20": 96.5}
# A trace made of another: Pods without GPU ask for so many times the CPU.
CPU_HEAVY, CPU_HEAVY_OF, CPU_HEAVY_TIMES = "cpu-heavy", "cpu100", 2.5
MUST[CPU_HEAVY] = 94.6
PUBLISHED_FGD = {"default": 95.39, "gpushare40": 94.15, "cpu100": 95.35, "multigpu20": 95.65}
CLOSE_TO_PUBLISHED = 0.3


# With --load, of dense against the best of the others at every load and size of Pod: the allocated percent may be
# this much lower (chance), and the mean wait this many times as long, or this many seconds longer where all are short.
AS_MUCH = 0.02
AS_SHORT, SHORT_SECONDS = 1.5, 5.0


def read(data: Path, trace: str, cpu_pods: float) -> tuple[list[Node], list[PodSpec]]:
    """The nodes and the Pods of one trace, of those without GPU `cpu_pods` times as many."""
    nodes_file = data / "openb_node_list_gpu_node.csv"
    pods_file = data / f"openb_pod_list_{CPU_HEAVY_OF if trace == CPU_HEAVY else trace}.csv"
    with nodes_file.open() as file:
        nodes = parse_nodes(file, nodes_file.name)
    models = frozenset(card.model for node in nodes for card in node.cards)
    with pods_file.open() as file:
        pods = parse_pods(file, pods_file.name, models)
    if trace == CPU_HEAVY:
        pods = [pod if pod.num_gpu else replace(pod, cpu_milli=round(CPU_HEAVY_TIMES * pod.cpu_milli)) for pod in pods]
    without = [pod for pod in pods if not pod.num_gpu]
    kept = round(min(cpu_pods, 1.0) * len(without))
    more = round(cpu_pods * len(without)) - kept
    dropped = set(map(id, without[kept:]))
    # At 1 this is the trace in its own order: then a seed gives what it gives with `aliquot simulate`.
    return nodes, [pod for pod in pods if id(pod) not in dropped] + [*itertools.islice(itertools.cycle(without), more)]


def run(data: Path, trace: str, policy: str, seed: int, target: float, workload: str, cpu_pods: float) -> Outcome:
    """One policy on one order of one trace."""
    nodes, pods = read(data, trace, cpu_pods)
    total = sum(len(node.cards) for node in nodes) * 1000
    coming = arrivals(pods, round(target * total), seed)
    return replay(nodes, coming, policy, known=pods if workload == "trace" else [], clock=time.perf_counter)


def run_load(data: Path, trace: str, policy: str, seed: int, load: float, workload: str, cpu_pods: float) -> Steady:
    """One policy on one trace whose Pods come and go."""
    nodes, pods = read(data, trace, cpu_pods)
    coming = come_and_go(pods, sum(len(node.cards) for node in nodes) * 1000, load, seed)
    known = pods if workload == "trace" else []
    return churn(nodes, pods, coming, policy, load=load, known=known, clock=time.perf_counter)


def main() -> int:
    """Run all, print the table, draw; exit 1 when a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--trace", nargs="+", help="default: every openb_pod_list_*.csv in the folder, and cpu-heavy")
    parser.add_argument("--policy", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44, 45, 46])
    parser.add_argument("--target", type=float, default=1.3)
    parser.add_argument("--load", type=float, nargs="+", help="Pods come and go at these loads (1: all the GPU)")
    parser.add_argument("--cpu-pods", type=float, default=1.0, help="so many times the trace's Pods without GPU")
    parser.add_argument("--workload", choices=["trace", "seen"], default="trace")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--plot", type=Path, help="the first trace and seed, all policies")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    options = parser.parse_args()
    found = sorted(path.stem.removeprefix("openb_pod_list_") for path in options.data.glob("openb_pod_list_*.csv"))
    traces = options.trace or found + [CPU_HEAVY] * (CPU_HEAVY_OF in found)
    if not traces:
        parser.error(f"{options.data} holds no openb_pod_list_*.csv")

    if options.load:
        return come_and_go_table(options, traces)

    cases = [(trace, policy, seed) for trace in traces for policy in options.policy for seed in options.seeds]
    settings = (options.target, options.workload, options.cpu_pods)
    with ProcessPoolExecutor(options.jobs) as pool:
        jobs = {case: pool.submit(run, options.data, *case, *settings) for case in cases}
        outcomes = {}
        for case, job in jobs.items():
            outcomes[case] = job.result()
            print(f"  {len(outcomes)}/{len(cases)} {case}", file=sys.stderr)

    means = {
        trace: {
            policy: statistics.fmean(_percent(outcomes[trace, policy, seed]) for seed in options.seeds)
            for policy in options.policy
        }
        for trace in traces
    }
    if options.output == "json":
        print(json.dumps({"seeds": options.seeds, "target": options.target, "allocated_percent": means}, indent=2))
    else:
        head = ("TRACE", *options.policy, "FGD published", "dense must reach")
        rows = [
            (trace, *map(_figure, [*means[trace].values(), PUBLISHED_FGD.get(trace), MUST.get(trace)]))
            for trace in traces
        ]
        print(table(head, rows, right=frozenset(range(1, len(head)))))
    if options.plot:
        first = {policy: outcomes[traces[0], policy, options.seeds[0]] for policy in options.policy}
        note = f"trace {traces[0]}, seed {options.seeds[0]}; dashed: no Pod dropped"
        lines = {f"{policy} {_percent(result):.2f}%": result.curve for policy, result in first.items()}
        top = 100 * options.target
        ideal = [(0.0, 0.0), (100.0, 100.0), (top, 100.0)]
        x, y = "GPU requested so far, % of capacity", "GPU allocated, %"
        options.plot.write_text(line_chart("GPU allocated as Pods arrive", note, x, y, lines, ideal, (70.0, 70.0)))
    missed = list(_missed(means)) if options.cpu_pods == 1.0 else []
    print("\n".join(missed) if missed else "all limits held", file=sys.stderr)
    return 1 if missed else 0


def come_and_go_table(options: argparse.Namespace, traces: list[str]) -> int:
    """Run every load; exit 1 when dense allocates less, or lets a size of Pod wait longer, than the others."""
    cases = [
        (trace, policy, seed, load)
        for trace in traces
        for load in options.load
        for policy in options.policy
        for seed in options.seeds
    ]
    found: dict[tuple[str, float, str], list[Steady]] = {}
    with ProcessPoolExecutor(options.jobs) as pool:
        jobs = {case: pool.submit(run_load, options.data, *case, options.workload, options.cpu_pods) for case in cases}
        for (trace, policy, seed, load), job in jobs.items():
            found.setdefault((trace, load, policy), []).append(job.result())
            print(f"  {trace} {policy} seed {seed} load {load:.0%}", file=sys.stderr)
    results: list[dict[str, Any]] = [
        {
            "trace": trace,
            "load": load,
            "policy": policy,
            "allocated_percent": statistics.fmean(run.allocated_percent for run in runs),
            "waits": _mean_waits(runs),
        }
        for (trace, load, policy), runs in found.items()
    ]
    if options.output == "json":
        print(json.dumps({"seeds": options.seeds, "results": results}, indent=2))
    else:
        sizes = list(dict.fromkeys(size for result in results for size in result["waits"]))
        rows = [
            (
                result["trace"],
                f"{result['load']:.0%}",
                result["policy"],
                f"{result['allocated_percent']:.2f}",
                *(" / ".join(f"{seconds:,.0f}" for seconds in result["waits"].get(size, ())) for size in sizes),
            )
            for result in results
        ]
        print("waiting times in seconds: mean / p50 / p99\n")
        head = ("TRACE", "LOAD", "POLICY", "ALLOCATED", *sizes)
        print(table(head, rows, right=frozenset(range(3, len(head)))))
    missed = [line for trace in traces for load in options.load for line in _missed_at(results, trace, load)]
    print("\n".join(missed) if missed else "all limits held", file=sys.stderr)
    return 1 if missed else 0


def _mean_waits(runs: list[Steady]) -> dict[str, tuple[float, float, float]]:
    """By size (mean, p50, p99), each the mean over the runs."""
    return {
        size: (
            statistics.fmean(waits.mean for run in runs for waits in run.waits if waits.size == size),
            statistics.fmean(waits.p50 for run in runs for waits in run.waits if waits.size == size),
            statistics.fmean(waits.p99 for run in runs for waits in run.waits if waits.size == size),
        )
        for size in dict.fromkeys(waits.size for run in runs for waits in run.waits)
    }


def _missed_at(results: list[dict[str, Any]], trace: str, load: float) -> Iterator[str]:
    """Where dense is behind the best of binpack and fgd."""
    here = {result["policy"]: result for result in results if (result["trace"], result["load"]) == (trace, load)}
    others = [here[policy] for policy in ("binpack", "fgd") if policy in here]
    if "dense" not in here or not others:
        return
    ours, best = here["dense"]["allocated_percent"], max(other["allocated_percent"] for other in others)
    if ours < best - AS_MUCH:
        yield f"dense on {trace} at {load:.0%}: {ours:.2f} allocated, must be >= {best:.2f}"
    for size, (mean, _, _) in here["dense"]["waits"].items():
        least = min(other["waits"][size][0] for other in others)
        limit = max(AS_SHORT * least, least + SHORT_SECONDS)
        if mean > limit:
            yield f"dense on {trace} at {load:.0%}: size {size} waits {mean:,.0f} s, must be <= {limit:,.0f} s"


def _percent(outcome: Outcome) -> float:
    return outcome.percent(outcome.allocated_milli)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _missed(means: dict[str, dict[str, float]]) -> list[str]:
    missed = []
    for trace, by_policy in means.items():
        if by_policy.get("dense", 100.0) < MUST.get(trace, 0.0):
            missed.append(f"dense on {trace}: {by_policy['dense']:.2f}, must be >= {MUST[trace]}")
        published = PUBLISHED_FGD.get(trace)
        if published and "fgd" in by_policy and abs(by_policy["fgd"] - published) > CLOSE_TO_PUBLISHED:
            missed.append(f"fgd on {trace}: {by_policy['fgd']:.2f}, published {published}")
    return missed


if __name__ == "__main__":
    sys.exit(main())
