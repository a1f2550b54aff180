"""The two measurements, and what each must be."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.pace import python_start_ms, sentence

from aliquot.cli.tables import table
from testbed import objects
from testbed.cards import QCORE, QMEM
from testbed.plane import ControlPlane
from testbed.processes import wait_until
from testbed.programs.fleet import Fleet
from testbed.realnodes.nodes import RealNode, probe
from testbed.registries.images import Registry

TICK = os.sysconf("SC_CLK_TCK")
LIMITS = {"added_p50_ms": 50.0, "pss_mb": 120.0, "idle_cpu_percent": 2.0}


@contextmanager
def one_node(cards: str) -> Iterator[Fleet]:
    """A control plane, a node, and all of the product."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aliquot-bench-")))
        plane = stack.enter_context(ControlPlane(folder / "plane"))
        registry = Registry()
        stack.callback(registry.close)
        node = stack.enter_context(RealNode(plane, "n1", folder / "n1", registry, hurried=False))
        fleet = Fleet(plane, [node], folder, cards=cards)
        stack.callback(fleet.stop)
        yield fleet


def started(node: RealNode, uid: str) -> float | None:
    """When the Pod's own program began, by the clock that counts since the machine's start; None: it has not."""
    for pid, command in node.contained():
        try:
            if uid in Path(f"/proc/{pid}/cgroup").read_text() and "pause" not in command:
                ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
                return int(ticks) / TICK
        except OSError:
            continue
    return None


def start_ms(fleet: Fleet, name: str, limits: dict[str, int]) -> float:
    """From creation to the container's first instruction; the Pod is gone when this returns."""
    (node,) = fleet.nodes
    begun = time.clock_gettime(time.CLOCK_BOOTTIME)
    (made,) = fleet.create(probe(name, limits=limits))
    uid = made["metadata"]["uid"]
    fleet.line(name, "report")
    at = wait_until(lambda: started(node, uid), 20, f"{name} runs")
    assert at is not None
    objects.delete_pod(fleet.plane, name)
    wait_until(lambda: not list(node.contained()), 20, f"{name} is gone")
    return (at - begun) * 1000


def starts(fleet: Fleet, pods: int) -> dict[str, float]:
    """Milliseconds with a card and without, and what the card adds."""
    kinds: dict[str, dict[str, int]] = {"plain": {}, "card": {QCORE: 10, QMEM: 2}}
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    for kind, limits in kinds.items():
        start_ms(fleet, f"warm-{kind}", limits)
    for number in range(pods):
        for kind, limits in kinds.items():
            taken[kind].append(start_ms(fleet, f"{kind}-{number}", limits))
    middle = {kind: statistics.median(samples) for kind, samples in taken.items()}
    return {
        "plain_p50_ms": middle["plain"],
        "card_p50_ms": middle["card"],
        "added_p50_ms": middle["card"] - middle["plain"],
        "card_p95_ms": sorted(taken["card"])[int(len(taken["card"]) * 0.95)],
        "plain_p95_ms": sorted(taken["plain"])[int(len(taken["plain"]) * 0.95)],
    }


def weight(fleet: Fleet, tenants: int, idle: float) -> dict[str, float]:
    """The agent with so many Pods that have a context and do nothing."""
    (agent,) = fleet.agents.values()
    names = [f"rest-{number}" for number in range(tenants)]
    objects.create_many(fleet.plane, [probe(name, "alloc", "64MiB", limits={QCORE: 5, QMEM: 1}) for name in names])
    for name in names:
        fleet.line(name, "alloc", seconds=180)
    time.sleep(5)  # newcomers are looked at more often
    before = cpu_seconds(agent.program.pid)
    time.sleep(idle)
    used = cpu_seconds(agent.program.pid) - before
    pss, rss = memory_mb(agent.program.pid)
    on_cards = sum(len(tenant["cards"]) for tenant in agent.status()["tenants"])
    return {"tenants": on_cards, "pss_mb": pss, "rss_mb": rss, "idle_cpu_percent": used / idle * 100}


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def memory_mb(pid: int) -> tuple[float, float]:
    """PSS (what is shared is divided) and RSS, in 10^6 bytes."""
    rows = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return int(rows["Pss"].split()[0]) * 1024 / 1e6, int(rows["Rss"].split()[0]) * 1024 / 1e6


def missed(found: Mapping[str, float], tenants: int) -> list[str]:
    """What is not as it must be, of what was measured. With fewer tenants than wanted it is not what it seems."""
    over = [key for key, most in LIMITS.items() if key in found and not found[key] <= most]
    return over + ["tenants"] * (found.get("tenants", tenants) != tenants)


def main(words: str | None) -> int:
    """What to do stands in the command line; --help explains `words`."""
    parser = argparse.ArgumentParser(description=words, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=30)
    parser.add_argument("--cards", default="8x32GiB", metavar="SPEC")
    parser.add_argument("--tenants", type=int, default=64)
    parser.add_argument("--idle", type=float, default=20.0, metavar="SECONDS")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    arguments = parser.parse_args()
    pace = python_start_ms()
    with one_node(arguments.cards) as fleet:
        found = starts(fleet, arguments.pods) if arguments.pods else {}
        if arguments.tenants:
            found |= weight(fleet, arguments.tenants, arguments.idle)
    if arguments.output == "json":
        print(json.dumps({key: round(value, 2) for key, value in found.items()}))
    else:
        rows = [(key, f"{value:.1f}", f"<= {LIMITS[key]:g}" if key in LIMITS else "") for key, value in found.items()]
        print(table(("FIGURE", "VALUE", "MUST"), rows))
    print(sentence(pace), file=sys.stderr)
    return 1 if missed(found, arguments.tenants) else 0
