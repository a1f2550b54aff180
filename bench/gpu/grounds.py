"""On what ground tenants meet: the stock driver, MPS, or a node of ours. Each tells how a tenant is started there."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bench.gpu import words
from bench.gpu.children import Child, ChildError, answer
from bench.gpu.words import Ask


class Ground(Protocol):
    """A way to share a card."""

    name: str
    env: Mapping[str, str]

    def command(self, ask: Ask, command: list[str]) -> list[str]:
        """What starts the tenant's command."""


@dataclass(slots=True)
class Stock:
    """The driver as it comes: time slices of some 2 ms, no limits."""

    env: Mapping[str, str]
    name: str = "stock"

    def command(self, ask: Ask, command: list[str]) -> list[str]:
        return command


@dataclass(slots=True)
class Mps:
    """NVIDIA's MPS: all tenants in one context. Started by us with its own pipes; the compute mode stays as it is."""

    env: Mapping[str, str]
    name: str = "mps"

    def command(self, ask: Ask, command: list[str]) -> list[str]:
        return command


@dataclass(slots=True)
class Node:
    """A daemon of ours in a home of its own."""

    env: Mapping[str, str]
    folder: Path
    policy: str
    release_delay: str
    simulate: str | None
    name: str = "aliquot"
    control: str = "auto"
    more: tuple[str, ...] = ()  # words for `aliquot up`
    _daemons: list[Child] = field(default_factory=list)

    def command(self, ask: Ask, command: list[str]) -> list[str]:
        return words.run(ask, command)

    @property
    def daemon(self) -> Child:
        return self._daemons[-1]

    def up(self) -> None:
        """Start the daemon, and wait until it answers; it or another, which a tenant's start may have brought up."""
        command = [*words.up(self.policy, self.release_delay, self.simulate), "--control", self.control, *self.more]
        self._daemons.append(Child(f"daemon-{len(self._daemons)}", command, self.env, self.folder))
        deadline = time.monotonic() + 30
        while True:
            try:
                answer(words.tenants(), self.env)
                return
            except ChildError:
                failed = not self.daemon.alive() and words.RUNS_ALREADY not in self.daemon.said()
                if failed or time.monotonic() > deadline:
                    self.daemon.wait_for("READY", 0.0)  # raises, with what the daemon said
                time.sleep(0.1)

    def down(self) -> None:
        with contextlib.suppress(ChildError):
            answer(words.down(), self.env)
        for daemon in self._daemons:
            daemon.kill()

    def set_policy(self, policy: str) -> None:
        answer(words.set_policy(policy), self.env)
        self.policy = policy

    def set_release_delay(self, delay: str) -> None:
        answer(words.set_release_delay(delay), self.env)
        self.release_delay = delay

    def tenants(self) -> list[Any]:
        """Those that the daemon has on its books."""
        found = json.loads(answer(words.tenants(), self.env))
        return list(found.get("tenants", []) if isinstance(found, dict) else found)

    def standings(self) -> Any:
        return json.loads(answer(words.standings(), self.env))


@contextlib.contextmanager
def mps(env: Mapping[str, str], folder: Path) -> Iterator[Mps | None]:
    """MPS while it lasts; None where it is not installed or does not come up."""
    program = shutil.which("nvidia-cuda-mps-control")
    if program is None:
        yield None
        return
    pipes, logs = folder / "p", folder / "l"
    pipes.mkdir()
    logs.mkdir()
    inside = {**env, "CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(logs)}
    control = Child("mps", [program, "-f"], inside, folder)
    try:
        deadline = time.monotonic() + 10
        while control.alive() and not (pipes / "control").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield Mps(inside) if control.alive() and (pipes / "control").exists() else None
    finally:
        _quit(program, inside)
        control.kill()


def _quit(program: str, env: Mapping[str, str]) -> None:
    """MPS ends by itself when asked; its server, which is not of the control's session, by pid when it does not."""
    servers: list[int] = []
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run(
            [program], input="get_server_list\n", env=dict(env), capture_output=True, text=True, timeout=10, check=False
        )
        servers = [int(line) for line in listed.stdout.split() if line.isdigit()]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            [program], input="quit -t 5\n", env=dict(env), capture_output=True, text=True, timeout=20, check=False
        )
    deadline = time.monotonic() + 5
    while any(_lives(pid) for pid in servers) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in servers:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _lives(pid: int) -> bool:
    return os.access(f"/proc/{pid}", os.F_OK)
