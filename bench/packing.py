"""How densely the policies pack production traces: policy x trace, the mean over seeds.

    python bench/packing.py --data FOLDER [--policy fgd dense] [--seeds 42 43 44 45 46] [--plot FILE.svg] [-o json]

FOLDER holds openb_node_list_gpu_node.csv and openb_pod_list_*.csv, Alibaba's traces as published with the FGD paper
(github.com/hkust-adsl/kubernetes-scheduler-simulator, Apache-2.0). The protocol is that of `aliquot simulate`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from aliquot.cli.plot import line_chart
from aliquot.cli.tables import table
from aliquot.placement.choose import POLICIES
from aliquot.sim.arrivals import arrivals
from aliquot.sim.replay import Outcome, replay
from aliquot.sim.trace import parse_nodes, parse_pods

# Percent of the GPU allocated when Pods ask for 1.3 times of it: what `dense` must reach, what FGD's authors published.
MUST = {"default": 96.1, "gpushare40": 94.7, "gpushare20": 97.1, "cpu100": 96.0, "multigpu20": 96.5}
PUBLISHED_FGD = {"default": 95.39, "gpushare40": 94.15, "cpu100": 95.35, "multigpu20": 95.65}
CLOSE_TO_PUBLISHED = 0.3


def run(data: Path, trace: str, policy: str, seed: int, target: float, workload: str) -> Outcome:
    """One policy on one order of one trace."""
    nodes_file, pods_file = data / "openb_node_list_gpu_node.csv", data / f"openb_pod_list_{trace}.csv"
    with nodes_file.open() as file:
        nodes = parse_nodes(file, nodes_file.name)
    models = frozenset(card.model for node in nodes for card in node.cards)
    with pods_file.open() as file:
        pods = parse_pods(file, pods_file.name, models)
    total = sum(len(node.cards) for node in nodes) * 1000
    coming = arrivals(pods, round(target * total), seed)
    return replay(nodes, coming, policy, known=pods if workload == "trace" else [], clock=time.perf_counter)


def main() -> int:
    """Run all, print the table, draw; exit 1 when a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--trace", nargs="+", help="default: every openb_pod_list_*.csv in the folder")
    parser.add_argument("--policy", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44, 45, 46])
    parser.add_argument("--target", type=float, default=1.3)
    parser.add_argument("--workload", choices=["trace", "seen"], default="trace")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--plot", type=Path, help="the first trace and seed, all policies")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    options = parser.parse_args()
    found = sorted(options.data.glob("openb_pod_list_*.csv"))
    traces = options.trace or [path.stem.removeprefix("openb_pod_list_") for path in found]
    if not traces:
        parser.error(f"{options.data} holds no openb_pod_list_*.csv")

    cases = [(trace, policy, seed) for trace in traces for policy in options.policy for seed in options.seeds]
    with ProcessPoolExecutor(options.jobs) as pool:
        jobs = {case: pool.submit(run, options.data, *case, options.target, options.workload) for case in cases}
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
    missed = list(_missed(means))
    print("\n".join(missed) if missed else "all limits held", file=sys.stderr)
    return 1 if missed else 0


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
