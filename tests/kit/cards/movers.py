"""Programs whose GPU memory moves (moving.py), as processes of tenants of a simulated node."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from kit.cards.runtime import Node
from simgpu.rig import ROOT

PATIENCE = 90.0

MOVERS: list[Mover] = []


def until(condition: Callable[[], Any], what: str) -> Any:
    """What the condition gives when it is true. Each look asks the daemon: it is left time for its work."""
    deadline = time.monotonic() + PATIENCE
    while not (result := condition()):
        assert time.monotonic() < deadline, f"waited {PATIENCE:.0f} s until {what}"
        time.sleep(0.02)
    return result


class Mover:
    """A program of kit/cards/moving.py."""

    def __init__(self, node: Node, name: str, gib: int, piece_mib: int = 256, kind: str = "plain") -> None:
        self.name, self._until = name, node.folder / f"{name}.end"
        count = gib * 1024 // piece_mib
        command = [sys.executable, "-m", "kit.cards.moving", str(count), str(piece_mib), str(self._until), kind]
        self.process = subprocess.Popen(
            command, env=node.environment(name), cwd=ROOT / "tests", stdout=subprocess.PIPE, text=True
        )
        MOVERS.append(self)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def hold(self) -> None:
        """The mover does nothing from now on."""
        self._until.with_suffix(".hold").touch()
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "holds\n"

    def look(self, what: str) -> Any:
        """What it answers while it holds."""
        made = self._until.with_suffix(".new")
        made.write_text(what)
        made.rename(self._until.with_suffix(".look"))
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def end(self) -> dict[str, Any]:
        self._until.touch()
        self._until.with_suffix(".hold").unlink(missing_ok=True)
        output, _ = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0
        found: dict[str, Any] = json.loads(output)
        return found


def residency(node: Node, name: str) -> dict[str, Any]:
    return node.standing(name).get("residency") or {}


@contextlib.contextmanager
def pooled_node(host_pool: int) -> Iterator[Node]:
    """A node whose cards are booked twice, with a host pool of so many bytes. Afterwards no mover is left."""
    node = Node(pool=True)
    node.configure(oversubscribe=2.0, host_pool=host_pool)
    yield node
    for mover in MOVERS:
        mover.kill()
    MOVERS.clear()
    process = node.ask("mover")
    if process is not None:
        os.kill(process, signal.SIGKILL)
    node.close()
