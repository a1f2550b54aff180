"""What there is to be seen: a machine with simulated cards and its dashboard, empty or busy."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kit.machines.machine import ALIQUOT, Machine, eventually
from kit.running.ports import free_port

LOAD = (*ALIQUOT, "burn", "load", "--seconds", "600", "--iterations-per-us", "1000")
SERVE = (*ALIQUOT, "burn", "serve", "--seconds", "600", "--iterations-per-us", "1000")
BENCH = Path(__file__).resolve().parents[2] / "bench"


class Shown(Machine):
    """A machine with a dashboard. `url` is its address."""

    def __init__(self, spec: str = "2x24GiB", *, address: str = "127.0.0.1", more: tuple[str, ...] = ()) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/"
        super().__init__([*ALIQUOT, "up", "--simulate", spec, "--listen", f"{address}:{self.port}", *more])

    def answer(self, path: str, *, method: str = "GET", host: str = "127.0.0.1") -> tuple[int, str]:
        """The status and the text that a program gets."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)) as connection:
            connection.request(method, path, headers={"Host": f"{host}:{self.port}"})
            found = connection.getresponse()
            return found.status, found.read().decode()

    def offline_load(self, name: str, *, memory: int = 6, core: int = 50) -> None:
        words = ("--name", name, "--class", "offline", "--memory", str(memory), "--core", str(core))
        self.detach(*words, "--", *LOAD)

    def online_server(self, name: str, *, memory: int = 6, period: str = "700ms") -> None:
        """Seldom enough that the card is handed back in between, and taken again: one preemption each time."""
        words = ("--name", name, "--class", "online", "--memory", str(memory))
        self.detach(*words, "--", *SERVE, "--kernel", "20ms", "--period", period)

    def normal_load(self, name: str, *, memory: int, core: int) -> None:
        self.detach("--name", name, "--memory", str(memory), "--core", str(core), "--", *LOAD)

    def run_pods(self, manifest: str) -> None:
        """In the background."""
        done = self.aliquot("run", "-d", "-f", "-", input=manifest)
        assert done.returncode == 0, done.stderr

    @contextmanager
    def somebody_waits(self, name: str, *, memory: int) -> Iterator[None]:
        with self.begin("run", "--name", name, "--memory", str(memory), "--", *LOAD):
            eventually(lambda: any(entry["name"] == name for entry in self.status()["queue"]))
            yield


_CLASS = "tke.cloud.tencent.com/app-class"
_CORE, _GREEDY, _MEMORY = (f"tke.cloud.tencent.com/qgpu-{what}" for what in ("core", "core-greedy", "memory"))
# One second in six, so that it is seen who takes the card and who gets it back.
_BURSTS = (*SERVE, "--kernel", "1s", "--period", "6s")
_FULL_CARD = (
    ("finetune", {_MEMORY: 10, _CORE: 50}, LOAD, None),
    ("notebook", {_MEMORY: 5, _CORE: 20}, LOAD, None),
    ("embeddings", {"tensorstack.dev/nvidia-gpu-percent": 25}, LOAD, None),
)
_MIXED_CARD = (("train", {_MEMORY: 10, _GREEDY: 50}, LOAD, "offline"), ("serve", {_MEMORY: 8}, _BURSTS, "online"))
_NO_ROOM = (("late", {_MEMORY: 12, _CORE: 40}, LOAD, None),)


def pods(*wanted: tuple[str, dict[str, int], tuple[str, ...], str | None]) -> str:
    """A manifest of Pods: name, limits, command, class."""
    items = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": {_CLASS: app_class} if app_class else {}},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "main", "image": "none", "command": command, "resources": {"limits": limits}}],
            },
        }
        for name, limits, command, app_class in wanted
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


@contextmanager
def lively(machine: Shown) -> Iterator[None]:
    """Pods of all three dialects: some share a card by quota, online takes another from offline again and again; one
    waits."""
    machine.aliquot("policy", "set", "burst-share")
    machine.aliquot("policy", "release-delay", "100ms")
    machine.run_pods(pods(*_FULL_CARD))
    machine.run_pods(pods(*_MIXED_CARD))  # one card is full: these must share the other
    machine.run_pods(pods(*_NO_ROOM))
    try:
        yield
    finally:
        machine.aliquot("stop", "--all", "--timeout", "0")


@contextmanager
def shown(spec: str = "2x24GiB", **more: Any) -> Iterator[Shown]:
    """Up; whatever becomes of the test, down again."""
    machine = Shown(spec, **more)
    try:
        machine.up()
        yield machine
    finally:
        machine.aliquot("down")
        machine.close()


@contextmanager
def large_cluster() -> Iterator[str]:
    """5,000 nodes of the scheduler's own books, in which something happens all the time; its address."""
    port = free_port()
    command = [sys.executable, str(BENCH / "dashboard.py"), "--serve", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            yield f"http://127.0.0.1:{port}/"
        finally:
            server.kill()
