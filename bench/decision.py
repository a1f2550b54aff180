"""How long one decision takes (fit + choose + book), and how it grows with the cluster.

A cluster of N nodes x 8 cards carries four Pods per node (20,000 on 5,000 nodes), of the shapes that the three
dialects give: slices of memory and compute, memory only, percentages, whole cards, online and offline, several
containers. Then Pods come and go one by one; each arrival is timed from the claim to the booking. Half of the
departures are of the newest Pods, so that the board keeps changing where decisions are made.

    python bench/decision.py [--nodes 5000] [--policy dense] [--decisions 2000] [--plot FILE.svg] [-o json]
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from aliquot.cli.plot import line_chart
from aliquot.cli.tables import table
from aliquot.model.claim import AppClass, Claim, ContainerClaim, Role, Slice
from aliquot.model.device import Card
from aliquot.model.node import Node, Offer
from aliquot.placement.board import Board
from aliquot.placement.book import Booking, Ledger
from aliquot.placement.choose import POLICIES, Chooser

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.pace import python_start_ms, sentence  # after the path is set: this is a script

GIB = 1024
CARDS = 8
PODS_PER_NODE = 4

FIGURES = ("median", "p99", "max")

# What must hold on two cores: (nodes, which figure, milliseconds)
LIMITS = ((5_000, "median", 0.5), (5_000, "p99", 1.0), (15_000, "median", 1.5))


def a_slice(memory_gib: int, core_percent: int | None = None) -> Slice:
    """A slice in the units people use."""
    return Slice(memory_mib=memory_gib * GIB, core_milli=None if core_percent is None else 10 * core_percent)


def shapes() -> list[tuple[Offer, AppClass, tuple[Slice, ...], int]]:
    """(offer, class, slice of each container, cards of each): 38 kinds of Pods."""
    normal, online, offline = AppClass.NORMAL, AppClass.ONLINE, AppClass.OFFLINE
    kinds: list[tuple[Offer, AppClass, tuple[Slice, ...], int]] = []
    for memory in (2, 3, 5, 8, 10, 16, 24):
        kinds.append((Offer.GPUSHARE, normal, (a_slice(memory),), 1))
        kinds.append((Offer.QGPU_MIXED, online, (a_slice(memory),), 1))
        kinds += [(Offer.QGPU, normal, (a_slice(memory, core),), 1) for core in (10, 30, 50)]
    kinds.append((Offer.GPUSHARE, normal, (a_slice(3),), 4))
    kinds.append((Offer.QGPU_MIXED, offline, (Slice(memory_mib=10 * GIB, greedy_milli=500),), 1))
    kinds.append((Offer.QGPU, normal, (a_slice(6, 30), a_slice(4, 20)), 1))
    return kinds


def claims(seed: int) -> list[Claim]:
    """Endless enough: ten thousand claims, most of them of the common shapes."""
    chance = random.Random(seed)
    kinds = shapes()
    weights = [3] * 14 + [1] * (len(kinds) - 14)
    made = []
    for at in range(200_000):
        offer, app_class, slices, count = chance.choices(kinds, weights)[0]
        containers = tuple(
            ContainerClaim(f"c{place}", place, Role.MAIN, part, count) for place, part in enumerate(slices)
        )
        name = f"pod-{at}"
        made.append(
            Claim(
                name, "bench", name, "bench", offer, containers, app_class,
                together=offer is Offer.GPUSHARE, owner=f"owner-{at % 500}", cpu_milli=2_000, memory_mib=8 * GIB,
            )
        )  # fmt: skip
    return made


def cluster(nodes: int) -> Board:
    """Equal nodes that serve all three dialects."""
    board = Board()
    offers = frozenset({Offer.QGPU, Offer.QGPU_MIXED, Offer.GPUSHARE})
    cards = tuple(Card(index, 80 * GIB, uuid=f"GPU-{index}", model="H", max_slices=20) for index in range(CARDS))
    for at in range(nodes):
        board.set_node(Node(f"node-{at:05d}", cards, offers, cpu_milli=128_000, memory_mib=1024 * GIB))
    return board


def measure(nodes: int, policy: str, decisions: int) -> dict[str, float]:
    """Milliseconds of the decisions, after the board was filled."""
    board = cluster(nodes)
    ledger, chooser = Ledger(board), Chooser(board, POLICIES[policy]())
    coming = iter(claims(seed=7))
    chance = random.Random(11)
    there: list[str] = []

    def decide() -> float:
        claim = next(coming)
        began = time.perf_counter()
        chooser.observe(claim)
        grant = chooser.choose(claim)
        booked = ledger.assume(claim, grant, float("inf")) if grant else None
        took = time.perf_counter() - began
        if not isinstance(booked, Booking):
            raise SystemExit(f"{claim.key} found no place: the benchmark's cluster is too small")
        there.append(claim.uid)
        return 1000 * took

    def leave() -> None:
        at = len(there) - 1 - chance.randrange(100) if chance.random() < 0.5 else chance.randrange(len(there))
        there[at], there[-1] = there[-1], there[at]
        ledger.forget(there.pop())

    while len(there) < PODS_PER_NODE * nodes:
        decide()
    gc.collect()
    gc.freeze()  # as a service does once it is in step with the cluster
    times = []
    for _ in range(decisions):
        leave()
        times.append(decide())
    cuts = statistics.quantiles(times, n=100)
    return {"nodes": nodes, "pods": len(there), "median": statistics.median(times), "p99": cuts[98], "max": max(times)}


def main() -> int:
    """Measure, print, draw; exit 1 when a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[500, 1_000, 2_500, 5_000, 10_000, 15_000])
    parser.add_argument("--policy", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    parser.add_argument("--decisions", type=int, default=2_000)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    options = parser.parse_args()

    results: list[dict[str, Any]] = []
    for policy in options.policy:
        for nodes in options.nodes:
            print(f"  {policy}: {nodes:,} nodes x {CARDS} cards ...", file=sys.stderr)
            results.append({"policy": policy, **measure(nodes, policy, options.decisions)})
    if options.output == "json":
        print(json.dumps(results, indent=2))
    else:
        rows = [
            (
                result["policy"],
                f"{result['nodes']:,}",
                f"{result['pods']:,}",
                *(f"{result[name]:.3f}" for name in FIGURES),
            )
            for result in results
        ]
        head = ("POLICY", "NODES", "PODS", "MEDIAN ms", "P99 ms", "MAX ms")
        print(table(head, rows, right=frozenset({1, 2, 3, 4, 5})))
    if options.plot:
        lines = {
            policy: [(result["nodes"], result["median"]) for result in results if result["policy"] == policy]
            for policy in options.policy
        }
        note = f"{CARDS} cards and {PODS_PER_NODE} Pods per node, one core; fit + choose + book, median"
        options.plot.write_text(line_chart("One decision", note, "nodes", "milliseconds", lines))
        print(f"\nplot: {options.plot}")
    missed = [
        f"{result['policy']}: {figure} {result[figure]:.3f} ms at {nodes:,} nodes, must be <= {limit} ms"
        for nodes, figure, limit in LIMITS
        for result in results
        if result["nodes"] == nodes and result[figure] > limit
    ]
    print("\n".join(missed) if missed else "all limits held", file=sys.stderr)
    print(sentence(python_start_ms()), file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
