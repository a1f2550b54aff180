"""What the dashboard of a large cluster costs: CPU of the process that serves it, and what goes over the wire.

The cluster is only the scheduler's own books: 5,000 nodes of 8 cards, 100,000 Pods, 200 changes a second.
Each trial is a process of its own; what the changes alone cost is measured first, and taken off. `--serve PORT` has it
to look at in a browser.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

from aliquot.model.claim import AppClass, Claim, ContainerClaim, Role, Slice
from aliquot.model.device import CORE_MILLI, Card
from aliquot.model.grant import ContainerGrant, Grant, Share
from aliquot.model.node import Closed, Isolation, Node, Offer
from aliquot.placement.book import occupant_of
from aliquot.services.dashboard.access import Access
from aliquot.services.dashboard.server import show
from aliquot.services.scheduler.cluster import Cluster, Pending, Placed
from aliquot.services.scheduler.dashboard.details import Details
from aliquot.services.scheduler.dashboard.view import ClusterView, Surroundings

CARDS = 8
MEMORY = 24 * 1024
PODS_PER_CARD = 2.5
CLASSES = (AppClass.NORMAL,) * 5 + (AppClass.ONLINE,) * 3 + (AppClass.OFFLINE,) * 2
OFFERS = ((Offer.QGPU, Offer.QGPU_MIXED), (Offer.GPUSHARE,), (Offer.T9K_EXCLUSIVE, Offer.T9K_SHARED))
MODELS = ("NVIDIA-A30", "NVIDIA-A10", "NVIDIA-L4")  # of 24 GiB all of them
PATHS = ("/", "/api/v1/state", "/api/v1/history?range=24h", "/api/v1/search?q=job-99", "/api/v1/nodes/gpu-7")
BATCH = 0.05  # seconds between two batches of changes


class World:
    """A cluster that is only books, and what happens in it."""

    def __init__(self, nodes: int, seed: int = 1) -> None:
        self.cluster = Cluster("binpack")
        self._chance = random.Random(seed)
        self._count = 0
        self._keys: list[str] = []
        self._names = [f"gpu-{at}" for at in range(nodes)]
        with self.cluster.board.together():
            for at, name in enumerate(self._names):
                self.cluster.board.set_node(self._node(at, name))
            for _ in range(int(nodes * CARDS * PODS_PER_CARD)):
                self.come()
        for name in self._chance.sample(self._names, nodes // 100):
            self.cluster.reported.closed[name] = (Closed.CORDONED,)
        for at in range(120):
            self._wait(at)

    def _node(self, at: int, name: str) -> Node:
        cards = tuple(
            Card(index, MEMORY, f"GPU-{at:05d}-{index}", MODELS[at % 3], healthy=self._chance.random() > 0.002)
            for index in range(CARDS)
        )
        return Node(name, cards, frozenset(OFFERS[at % 3]), (*Isolation,)[at % 3])

    def come(self) -> None:
        """One more Pod, on some card of some node."""
        self._count += 1
        chance, uid = self._chance, f"uid-{self._count}"
        memory, core = chance.choice((1, 2, 4, 6)) * 1024, chance.choice((100, 200, 300))
        row, card = self._room(memory, core)
        app_class, offer = chance.choice(CLASSES), OFFERS[row % 3][0]
        offline = app_class is AppClass.OFFLINE
        part = Slice(memory, 0, None if offline else core, core if offline else None)
        claim = Claim(
            uid, f"team-{self._count % 40}", f"job-{self._count}", "qgpu", offer,
            (ContainerClaim("main", 0, Role.MAIN, part),), app_class,
        )  # fmt: skip
        share = Share(card, memory, part.core_milli, part.greedy_milli, uuid=f"GPU-{row:05d}-{card}")
        grant = Grant(uid, self._names[row], (ContainerGrant("main", 0, Role.MAIN, (share,)),))
        self.cluster.seen[claim.key] = uid
        self.cluster.placed[uid] = Placed(claim, grant)
        self.cluster.ledger.confirm(uid, grant.node, occupant_of(claim, grant))
        self._keys.append(claim.key)

    def _room(self, memory: int, core: int) -> tuple[int, int]:
        """A node and a card of it that have so much free."""
        board = self.cluster.board
        while True:
            row, card = self._chance.randrange(len(self._names)), self._chance.randrange(CARDS)
            at = (board.row_of[self._names[row]], card)
            if board.used_memory[at] + memory <= MEMORY and board.used_core[at] + core <= CORE_MILLI:
                return row, card

    def go(self) -> None:
        """Some Pod ends."""
        at = self._chance.randrange(len(self._keys))
        self._keys[at], self._keys[-1] = self._keys[-1], self._keys[at]
        self.cluster.drop_pod(self._keys.pop())

    def _wait(self, at: int) -> None:
        uid = f"waits-{at}"
        part = Slice((30 + at % 8) * 1024, core_milli=500)
        claim = Claim(
            uid, "team-0", f"big-{at}", "qgpu", Offer.QGPU, (ContainerClaim("main", 0, Role.MAIN, part),), owner=None
        )
        since = (datetime.now(UTC) - timedelta(minutes=at)).isoformat(timespec="seconds")
        self.cluster.seen[claim.key] = uid
        self.cluster.pending[uid] = Pending(claim.key, uid, claim, True, "default-scheduler", since)

    async def change(self, per_second: float) -> None:
        """Pods come and go, evenly."""
        due, began = 0.0, time.monotonic()
        while True:
            await asyncio.sleep(BATCH)
            wanted = (time.monotonic() - began) * per_second
            while due < wanted:
                self.come() if int(due) % 2 else self.go()
                due += 1


async def serve(world: World, port: int | None, changes: float) -> None:
    """Until killed. No port: the changes alone."""
    changing = asyncio.create_task(world.change(changes))
    print("ready", flush=True)
    if port is None:
        await changing
        return
    view = ClusterView(
        world.cluster,
        Details(world.cluster),
        Surroundings(name="bench", leading=lambda: True, metrics=lambda: b""),
    )
    listener = socket.create_server(("127.0.0.1", port), backlog=64)
    await show(view, listener, Access("127.0.0.1", port))


# --- the other side ------------------------------------------------------------------------------------------------


@contextmanager
def server(nodes: int, port: int | None, changes: float) -> Iterator[int]:
    """The process that serves; its id."""
    words = [sys.executable, __file__, "--nodes", str(nodes), "--changes", str(changes), "--serve", str(port or 0)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.terminate()


def cpu_seconds(pid: int) -> float:
    """Of all its threads, so far."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def ask(port: int, path: str) -> tuple[float, int]:
    """Seconds until the first byte, and how many bytes in all, packed as a browser gets them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began = time.perf_counter()
    writer.write(
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n".encode()
    )
    first = await reader.read(1)
    took = time.perf_counter() - began
    size = len(first) + len(await reader.read())
    writer.close()
    return took, size


async def listen(port: int, ticks: list[int]) -> None:
    """One who looks; the size of each tick."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    writer.write(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    name = b""
    try:
        while line := await reader.readline():
            if line.startswith(b"event: "):
                name = line
            elif line.startswith(b"data: ") and b"tick" in name:
                ticks.append(len(line) + len(name) + 1)
    finally:
        writer.close()


async def watched(pid: int, port: int, listeners: int, seconds: float) -> tuple[float, list[int]]:
    """CPU in parts of a core while so many look, and the size of each tick that they were told."""
    ticks: list[int] = []
    tasks = [asyncio.create_task(listen(port, ticks)) for _ in range(listeners)]
    await asyncio.sleep(3)  # the first state is another matter
    ticks.clear()
    began, before = time.monotonic(), cpu_seconds(pid)
    await asyncio.sleep(seconds)
    used = (cpu_seconds(pid) - before) / (time.monotonic() - began)
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    return used, ticks


async def measure(nodes: int, changes: float, seconds: float) -> None:
    """All of it, as a table."""
    with server(nodes, None, changes) as pid:
        await asyncio.sleep(2)
        alone, _ = await watched(pid, 0, 0, seconds)
    pods = int(nodes * CARDS * PODS_PER_CARD)
    print(f"{nodes:,} nodes x {CARDS} cards, {pods:,} Pods, {changes:g} changes a second\n")
    print(f"{'the changes alone':<36}{alone:>6.1%} of a core")
    port = _free_port()
    with server(nodes, port, changes) as pid:
        await asyncio.sleep(5)
        for listeners in (0, 1, 20):
            used, ticks = await watched(pid, port, listeners, seconds)
            print(f"{f'the dashboard, {listeners} listening':<36}{used - alone:>6.1%} of a core{_of_ticks(ticks)}")
        for path in PATHS:
            asked = [await ask(port, path) for _ in range(20)]
            first = statistics.median(took for took, _ in asked) * 1000
            print(f"{path:<36}{first:>6.1f} ms to the first byte{asked[-1][1]:>10,} bytes")


def _of_ticks(ticks: list[int]) -> str:
    return f"{statistics.median(ticks):>10,.0f} bytes a tick, {max(ticks):,} at most" if ticks else ""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def main() -> None:
    """As the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--changes", type=float, default=200, help="a second")
    parser.add_argument("--seconds", type=float, default=20, help="for each trial")
    parser.add_argument("--serve", type=int, metavar="PORT", help="only serve, to look at it; 0: only the changes")
    given = parser.parse_args()
    with suppress(KeyboardInterrupt):
        if given.serve is not None:
            asyncio.run(serve(World(given.nodes), given.serve or None, given.changes))
        else:
            asyncio.run(measure(given.nodes, given.changes, given.seconds))


if __name__ == "__main__":
    main()
