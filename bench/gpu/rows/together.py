"""Members of a group share the card in space (`aliquot run --together`), the group with others in time.

Decoders at batch 1, as tokens per second of all of them: in a group, and taking turns. An online request beside a busy
offline group. And kill -9 inside a group: does another group, or a run in none, notice?
"""

from __future__ import annotations

import random
import signal
import sys
import time
from itertools import pairwise
from typing import Any

from bench.gpu.children import ChildError
from bench.gpu.grounds import Node
from bench.gpu.kernellog import xids
from bench.gpu.lab import ROOT, Lab
from bench.gpu.report import Row
from bench.gpu.rows.preemption import DELAYS, KERNEL, PERIOD
from bench.gpu.stage import Stage, window
from bench.gpu.words import Ask

LEAST_GAIN = 1.15
MOST_ADDED_US = 250.0
KILLS, MOST_GAP = 50, 1.0
_LIMIT_SECONDS = 150.0  # of the kills
_DECODER = str(ROOT / "bench" / "gpu" / "workloads" / "decoder.py")


def measure(lab: Lab) -> list[Row]:
    return [*_decoders(lab), *_latency(lab), _kills(lab)]


# ---- throughput


def _decoders(lab: Lab) -> list[Row]:
    rows = []
    for count in (2, 4):
        turns, side_by_side = (_rate(lab, count, group) for group in (None, "decoders"))
        gain = side_by_side / turns if turns else 0.0
        rows.append(
            Row(
                what=f"{count} decoders at batch 1 in a group: steps/s of all, over taking turns",
                must=f">= {LEAST_GAIN}",
                measured=f"{gain:.2f} ({side_by_side:.0f} over {turns:.0f})",
                ok=gain >= LEAST_GAIN,
                numbers={"turns": turns, "together": side_by_side},
            )
        )
    return rows


def _rate(lab: Lab, count: int, group: str | None) -> float:
    """Steps per second of all of them, on a fresh node."""
    with lab.node() as node, lab.stage(node) as stage:
        asks = [
            Ask(name=f"decoder-{at}", memory="5GiB" if lab.simulate else "20GiB", group=group) for at in range(count)
        ]
        if lab.simulate:
            loads = [stage.load(ask, "500us") for ask in asks]
            stage.ready(*loads)
            for load in loads:
                load.start()
            time.sleep(1.0)
            measured = window(lab.seconds)
            return sum(load.kernels(measured) for load in loads) / measured.seconds
        files = [stage.folder / f"{ask.name}.steps" for ask in asks]
        children = [
            stage.child(ask, [sys.executable, _DECODER, str(file)]) for ask, file in zip(asks, files, strict=True)
        ]
        for child in children:
            child.wait_for("READY", 120.0)
        time.sleep(1.0)
        before, began = [_last(file) for file in files], time.monotonic()
        time.sleep(max(lab.seconds, 6.0))
        after, ended = [_last(file) for file in files], time.monotonic()
        return sum(late - early for early, late in zip(before, after, strict=True)) / (ended - began)


def _last(file: Any) -> int:
    """Steps so far: the last line of a file that is written ten times a second."""
    lines = file.read_text().splitlines()
    return int(lines[-1]) if lines and lines[-1].isdigit() else int(lines[-2])


# ---- latency


def _latency(lab: Lab) -> list[Row]:
    alone = lab.alone_latency(KERNEL, PERIOD)
    with lab.node(release_delay=DELAYS[0]) as node, lab.stage(node) as stage:
        offline = [stage.load(Ask(name=f"offline-{at}", app_class="offline", group="batch"), "20ms") for at in range(2)]
        servers = [
            stage.server(Ask(name=f"online-{at}", app_class="online"), KERNEL, PERIOD, lab.seconds)
            for at, _ in enumerate(DELAYS)
        ]
        stage.ready(*offline, *servers)
        for load in offline:
            load.start()
        time.sleep(1.0)
        found = []
        for delay, server in zip(DELAYS, servers, strict=True):
            if delay != node.release_delay:
                node.set_release_delay(delay)
            found.append(server.run())
        standings = node.standings()
    return [
        Row(
            what=f"online request beside a busy offline group of two, release-delay {delay}: added p99",
            must=f"<= {MOST_ADDED_US:.0f} us",
            measured=f"{latency['p99'] - alone['p99']:.0f} us",
            ok=latency["p99"] - alone["p99"] <= MOST_ADDED_US,
            numbers={"alone": alone, "ours": latency, "standings": standings},
        )
        for delay, latency in zip(DELAYS, found, strict=True)
    ]


# ---- deaths


def _kills(lab: Lab) -> Row:
    """A member of one group is killed again and again, in the middle of its work; another group and a run in none."""
    before = xids()
    chance, kills, harmed = random.Random(20261117), 0, []
    with lab.node() as node, lab.stage(node) as stage:
        outside = [stage.load(Ask(name=f"other-{at}", group="others"), "1ms") for at in range(2)]
        outside.append(stage.load(Ask(name="alone"), "1ms"))
        stage.ready(*outside)
        for load in outside:
            load.start()
        limit, began = time.monotonic() + _LIMIT_SECONDS, time.monotonic()
        while kills < KILLS and time.monotonic() < limit:
            kills += _kill_one(stage, kills, chance)
            harmed += [load.name for load in outside if not load.child.alive()]
            if harmed:
                break
        gap = max(_longest_gap(load, began) for load in outside)
        left = _left(node, {load.name for load in outside})
    complaints = None if before is None else (xids() or 0) - before
    lab.xids_of_mps += complaints or 0  # a client that dies with work pending is one
    return Row(
        what=f"{kills} kill -9 inside a group: others that failed, their longest stand-still, left on the books",
        must=f"{KILLS}: none, <= {MOST_GAP:.0f} s, none",
        measured=f"{len(set(harmed))}, {gap:.2f} s, {len(left)}",
        ok=kills >= KILLS and not harmed and gap <= MOST_GAP and not left,
        numbers={"harmed": harmed, "gap": gap, "left": left, "xids": complaints},
    )


def _kill_one(stage: Stage, at: int, chance: random.Random) -> int:
    """Start two members, kill one while it works, and wait until the other is gone or let it go: the next two get a new
    server. 1: it was killed."""
    members = [stage.load(Ask(name=f"{which}-{at}", group="doomed"), "50ms") for which in ("victim", "neighbour")]
    victim, neighbour = (member.child for member in members)
    try:
        stage.ready(*members)
        for member in members:
            member.start()
        time.sleep(chance.uniform(0.2, 0.5))
        victim.signal(signal.SIGKILL)
        deadline = time.monotonic() + 0.5
        while neighbour.alive() and time.monotonic() < deadline:
            time.sleep(0.02)
    except ChildError:
        return 0
    finally:
        victim.kill()
        neighbour.kill()
    return 1


def _longest_gap(load: Any, began: float) -> float:
    """The longest time without progress since then."""
    longest = 0.0
    for times, _ in load.progress().values():
        moments = [float(moment) for moment in times if moment >= began]
        longest = max([longest, *(late - early for early, late in pairwise(moments))])
    return longest


def _left(node: Node, expected: set[str]) -> list[str]:
    """Tenants that are on the books although no process of them lives."""
    deadline = time.monotonic() + 15
    while True:
        names = [tenant["name"] for tenant in node.tenants() if tenant["name"] not in expected]
        if not names or time.monotonic() > deadline:
            return names
        time.sleep(0.2)
