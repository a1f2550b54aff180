"""What one Pod costs our program itself, in one process, without a network. CPU time: a busy machine counts less.

    python bench/scheduler/inprocess.py [--nodes 1000] [--names 420] [--pods 2000] [--policy binpack] [--new] [-o json]

For every Pod the same steps as in a cluster, each with the bytes that come over the wire: the watch reports it (added),
kube-scheduler calls filter, rank where more than one node fits, and bind, and the watch reports it again (bound).
`--new` gives every Pod a shape that no Pod had before: nothing that is kept per shape helps then. Before that, what a
start costs for every node with the agent's inventory (node) and for every Pod that is on one (placed).
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / "tests")]

import msgspec  # noqa: E402  # after the path is set: this is a script, run from anywhere
from bench.scheduler.shapes import SHAPES, Shape, capacity, mixed_shapes, new_shapes, weights  # noqa: E402

from aliquot import dialects  # noqa: E402
from aliquot.dialects import gpushare, native, qgpu  # noqa: E402
from aliquot.dialects.wire import extender  # noqa: E402
from aliquot.dialects.wire.objects import NodeObject, PodObject  # noqa: E402
from aliquot.model.claim import Claim  # noqa: E402
from aliquot.model.device import Card  # noqa: E402
from aliquot.services.scheduler import verbs  # noqa: E402
from aliquot.services.scheduler.cluster import Cluster  # noqa: E402

CARD_GIB, CARDS, FILLER_GIB = 80, 8, 20
STEPS = ("added", "filter", "rank", "bind", "bound")


def node(at: int) -> dict[str, Any]:
    name = f"bench-{at:05d}"
    cards = [Card(slot, CARD_GIB * 1024, f"GPU-{at:08x}-{slot}", "H200") for slot in range(CARDS)]
    amounts = {"cpu": "96", "memory": "768Gi", **{key: str(n) for key, n in capacity(CARDS, CARD_GIB).items()}}
    labels = {gpushare.NODE_LABEL: "true", qgpu.ENABLE_LABEL: "enable", qgpu.MIXED_LABEL: "enable"}
    return {
        "metadata": {"name": name, "labels": labels, "annotations": native.render_inventory(cards)},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def pod(name: str, shape: Shape) -> dict[str, Any]:
    """As the API server has it, as far as its size matters."""
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-of-{name}",
            "resourceVersion": "100",
            "creationTimestamp": "2026-11-01T12:00:00Z",
            "annotations": dict(shape.annotations),
            "ownerReferences": [{"kind": "ReplicaSet", "name": name[:-2], "controller": True}],
        },
        "spec": {
            "containers": shape.written(),
            "schedulerName": "aliquot-scheduler",
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}] * 2,
            "volumes": [{"name": "kube-api-access", "projected": {"defaultMode": 420}}],
        },
        "status": {"phase": "Pending", "qosClass": "Burstable"},
    }


def filled(nodes: int, policy: str, shortlist: int, clock: Callable[[], float]) -> tuple[Cluster, dict[str, float]]:
    """A cluster with two Pods on every node; and what reading each of them took, as after a start."""
    cluster = Cluster(policy, dialects.DEFAULT_RULES, shortlist)
    machines = [msgspec.convert(node(at), NodeObject) for at in range(nodes)]
    fillers = []
    for at in range(nodes):
        for card in range(2):
            thing = pod(f"filler-{at}-{card}", Shape((((gpushare.MEMORY, FILLER_GIB),),), 4000, 8192))
            thing["spec"]["nodeName"] = f"bench-{at:05d}"
            thing["metadata"]["annotations"] = {
                gpushare.INDEX: str(card),
                gpushare.CARD_SIZE: str(CARD_GIB),
                gpushare.POD_TOTAL: str(FILLER_GIB),
                gpushare.ASSIGNED: "true",
                gpushare.ASSUME_TIME: "1",
            }
            fillers.append(msgspec.convert(thing, PodObject))
    began = clock()
    cluster.begin()
    for machine in machines:
        cluster.set_node(machine)
    cluster.end()
    read = clock()
    cluster.begin()
    for filler in fillers:
        cluster.set_pod(filler)
    cluster.end()
    return cluster, {"node_ms": 1000 * (read - began) / nodes, "placed_ms": 1000 * (clock() - read) / len(fillers)}


class Run:
    """The steps of every Pod, timed."""

    def __init__(self, cluster: Cluster, names: int, clock: Callable[[], float]) -> None:
        self.cluster, self._clock = cluster, clock
        everyone = [f"bench-{at:05d}" for at in range(cluster.board.rows)]
        self._windows = [
            msgspec.json.encode((everyone + everyone)[start : start + min(names, len(everyone))])
            for start in random.Random(5).choices(range(len(everyone)), k=16)
        ]
        self._read = msgspec.json.Decoder(PodObject).decode
        self.times: dict[str, list[float]] = {step: [] for step in STEPS}
        self.refused = 0

    def place(self, at: int, thing: dict[str, Any]) -> None:
        cluster, clock = self.cluster, self._clock
        raw = msgspec.json.encode(thing)
        body = b'{"Pod":' + raw + b',"Nodes":null,"NodeNames":' + self._windows[at % 16] + b"}"
        began = clock()
        cluster.set_pod(self._read(raw))
        added = clock()
        answer, outcome = verbs.filter_answer(cluster, extender.parse_args(body))
        if outcome.claim is not None and outcome.likely is not None:
            cluster.hold(outcome.claim, outcome.likely, time.monotonic() + 2)
        filtered = clock()
        self.times["added"].append(added - began)
        self.times["filter"].append(filtered - added)
        fit = json.loads(answer)["NodeNames"]
        if not fit:
            self.refused += 1
            return
        node = fit[0] if len(fit) == 1 else self._ranked(raw, fit)
        began = clock()
        pending = cluster.pending[thing["metadata"]["uid"]]
        assert isinstance(pending.claim, Claim)
        placed = cluster.assume(pending.claim, node)
        assert not isinstance(placed, list), placed
        there = cluster.board.node(placed.grant.node)
        assert there is not None
        annotations = dialects.render_grant(placed.claim, placed.grant, there, 1, cluster.rules)
        self.times["bind"].append(clock() - began)
        thing["spec"]["nodeName"] = node
        thing["metadata"]["annotations"] |= annotations
        raw = msgspec.json.encode(thing)
        began = clock()
        cluster.set_pod(self._read(raw))
        self.times["bound"].append(clock() - began)

    def _ranked(self, raw: bytes, fit: list[str]) -> str:
        body = b'{"Pod":' + raw + b',"Nodes":null,"NodeNames":' + msgspec.json.encode(fit) + b"}"
        began = self._clock()
        answer, claim, best = verbs.scores_answer(self.cluster, extender.parse_args(body), verbs.FINE)
        if claim is not None and best is not None:
            self.cluster.hold(claim, best, time.monotonic() + 2)
        self.times["rank"].append(self._clock() - began)
        return str(max(json.loads(answer), key=lambda score: score["Score"])["Host"])


def measure(options: argparse.Namespace, clock: Callable[[], float]) -> dict[str, float]:
    cluster, loading = filled(options.nodes, options.policy, options.shortlist, clock)
    run = Run(cluster, options.names, clock)
    shapes = mixed_shapes()
    chance = random.Random(3)
    count = options.pods
    chosen = list(new_shapes(count)) if options.new else chance.choices(shapes, weights(shapes), k=count)
    if not options.new and not options.cold:  # every shape was asked for once
        for at, shape in enumerate(shapes):
            run.place(at, pod(f"warm-{at}", shape))
        run.times = {step: [] for step in STEPS}
    gc.collect()
    gc.disable()
    for at, shape in enumerate(chosen):
        run.place(at, pod(f"tried-{at}", shape))
    gc.enable()
    found = {f"{step}_ms": 1000 * statistics.fmean(times) for step, times in run.times.items() if times}
    found["filter_p50_ms"] = 1000 * statistics.median(run.times["filter"])
    found["filter_p99_ms"] = 1000 * statistics.quantiles(run.times["filter"], n=100)[98]
    return {**found, **loading, "pod_ms": sum(found.get(f"{step}_ms", 0.0) for step in STEPS), "refused": run.refused}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--names", type=int, default=420)
    parser.add_argument("--pods", type=int, default=2_000)
    parser.add_argument("--policy", default="binpack")
    parser.add_argument("--shortlist", type=int, default=0)
    parser.add_argument("--new", action="store_true", help="every Pod has a shape of its own")
    parser.add_argument("--cold", action="store_true", help=f"the first time for each of the {SHAPES} shapes counts")
    parser.add_argument("--profile", type=Path, help="write a cProfile here")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    options = parser.parse_args()
    if options.profile:
        import cProfile

        with cProfile.Profile() as profile:
            found = measure(options, time.process_time)
        profile.dump_stats(options.profile)
    else:
        found = measure(options, time.process_time)
    if options.output == "json":
        print(json.dumps(found))
    else:
        print("\n".join(f"{key:<16}{value:8.3f}" for key, value in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
