"""Programs whose memory may leave the card, on a daemon with a pool: what the rows of this folder share."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.gpu import words
from bench.gpu.children import Child, ChildError, answer
from bench.gpu.grounds import Node, Stock
from bench.gpu.lab import ROOT, Lab
from bench.gpu.stage import Stage
from bench.gpu.words import Ask

from aliquot.adapters.host.home import POOLS, pool_name
from aliquot.services.mover.control import Quit, encode

WORKLOAD = ROOT / "bench" / "gpu" / "workloads" / "parked.py"
READY_SECONDS = 180.0  # PyTorch starts, and an allocation may wait
_CARD_GIB, _SIMULATED_GIB = 139, 24  # sizes of the rows are those of an H200
_CONTEXT, _SIMULATED_CONTEXT = 2, 0.25  # GiB of a quota beyond what the program fills
_STEP = 0.02


def gib(lab: Lab, size: float) -> int:
    """Of a size for the H200: the same part of a simulated card."""
    return int(size) if lab.simulate is None else max(1, int(size * _SIMULATED_GIB / _CARD_GIB))


def quota(lab: Lab, size: float, contexts: int = 1) -> str:
    """What a tenant has to book that fills so many GiB."""
    return f"{int(1024 * (size + contexts * (_CONTEXT if lab.simulate is None else _SIMULATED_CONTEXT)))}MiB"


@dataclass(slots=True)
class Program:
    """workloads/parked.py as a tenant, or on the stock driver."""

    name: str
    folder: Path
    child: Child

    def ready(self) -> float:
        """Until its memory is filled; seconds that this took."""
        self.child.wait_for("READY", READY_SECONDS)
        lines = self.child.printed().splitlines()
        return float(next(line for line in lines if line.startswith("READY")).split()[1])

    def hold(self) -> None:
        """It does nothing from now on."""
        before = self.child.printed().count("HELD")
        (self.folder / f"{self.name}.hold").touch()
        until(lambda: self.child.printed().count("HELD") > before or not self.child.alive(), 60, f"{self.name} holds")

    def unhold(self) -> None:
        """It may go on."""
        (self.folder / f"{self.name}.hold").unlink()

    def go(self) -> None:
        """And goes on; until its next step is done."""
        before = len(self.steps())
        self.unhold()
        until(lambda: len(self.steps()) > before or not self.child.alive(), 90, f"{self.name} goes on")

    def steps(self) -> list[float]:
        """The moments at which its steps ended."""
        with contextlib.suppress(FileNotFoundError):
            text = (self.folder / f"{self.name}.steps").read_text()
            return [float(line.split()[0]) for line in text[: text.rfind("\n") + 1].splitlines()]
        return []

    def rate(self, begin: float, end: float) -> float:
        """Steps per second in that time."""
        return sum(begin <= moment < end for moment in self.steps()) / (end - begin)

    def longest_gap(self, end: float) -> float:
        moments = self.steps()
        return max((after - before for before, after in pairwise([*moments, end])), default=0.0)

    def stop(self) -> None:
        (self.folder / f"{self.name}.stop").touch()

    def finish(self, seconds: float = 120.0) -> dict[str, Any]:
        """What it found in its memory. Raises ChildError."""
        self.stop()
        return self.child.result(seconds)


class Crowd:
    """A daemon with a pool, and programs on it."""

    def __init__(self, lab: Lab, node: Node, stage: Stage) -> None:
        self.lab, self.node, self.stage = lab, node, stage

    def begin(self, name: str, size: float, *more: str, ask: Ask | None = None, env: str = "") -> Program:
        ask = ask or Ask(name=name, app_class="offline", core=0, memory=quota(self.lab, size))
        return begin(self.lab, self.stage, ask, size, *more, env=env)

    def sleeper(self, name: str, size: float, *more: str, env: str = "") -> Program:
        """One that may be parked once it was idle for ten minutes: by hand only."""
        ask = Ask(name=name, core=0, memory=quota(self.lab, size, 3), park="600s")
        return self.begin(name, size, *more, ask=ask, env=env)

    def residency(self, name: str) -> dict[str, Any]:
        tenants = self.node.standings()["tenants"]
        found = [card.get("residency") for tenant in tenants if tenant["name"] == name for card in tenant["cards"]]
        return next((there for there in found if there), {})

    def park(self, name: str) -> str:
        """Why it was refused; empty: it has left."""
        try:
            answer(words.park(name), self.node.env, 90)
        except ChildError as error:
            return str(error).strip().splitlines()[-1]
        return ""

    def warm(self, seconds: float = 60.0) -> None:
        """Until the pool has its memory: what it has grows no more."""
        if self.lab.simulate is None:
            pool, before, limit = (
                Path(POOLS, pool_name(str(self.node.folder), os.geteuid()), "memory"),
                -1,
                time.monotonic() + seconds,
            )
            while time.monotonic() < limit and (now := pool.stat().st_blocks if pool.exists() else 0) != before:
                before = now
                time.sleep(2.0)

    def parked_files(self) -> list[str]:
        """What is kept in the pool, by process."""
        folder = Path(POOLS, pool_name(str(self.node.folder), os.geteuid()), "parked")
        return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def begin(lab: Lab, stage: Stage, ask: Ask, size: float, *more: str, env: str = "") -> Program:
    words_ = [sys.executable, str(WORKLOAD), str(stage.folder), ask.name, str(size), *more]
    if lab.simulate is not None:
        words_.append("--plain")
    return Program(ask.name, stage.folder, stage.child(ask, ["env", env, *words_] if env else words_))


@contextlib.contextmanager
def crowded(lab: Lab, pool: float, factor: float = 2.0) -> Iterator[Crowd]:
    """A fresh daemon with so many GiB of host memory; its pool is removed at the end."""
    with contextlib.ExitStack() as last:  # the daemon would start another mover
        host_pool = f"{int(pool) if lab.simulate is None else gib(lab, pool) + 2}GiB"
        with lab.node(more=("--host-pool", host_pool)) as node, lab.stage(node) as stage:
            last.callback(_end_pool, Path(POOLS, pool_name(str(node.folder), os.geteuid())))
            answer(words.oversubscribe(factor), node.env)
            yield Crowd(lab, node, stage)


def _end_pool(folder: Path) -> None:
    """Its mover would stay for a minute, and with it the memory: two pools may be more than the machine has."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as mover:
        mover.settimeout(5.0)
        mover.connect(str(folder / "sock"))
        mover.send(encode(Quit()))
        mover.recv(1)  # until it is gone
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def on_stock(lab: Lab) -> Iterator[Stage]:
    with lab.stage(Stock(lab.stock.env)) as stage:
        yield stage


def until(holds: Callable[[], bool], seconds: float, what: str) -> None:
    """Raises ChildError where it does not come to that."""
    limit = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > limit:
            raise ChildError(f"not in {seconds:.0f} s: {what}")
        time.sleep(_STEP)
