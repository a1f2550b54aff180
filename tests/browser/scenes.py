"""What there is to be seen: a machine with simulated cards and its dashboard, empty or busy."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from machines import ALIQUOT, Machine, eventually

LOAD = (*ALIQUOT, "burn", "load", "--seconds", "600", "--iterations-per-us", "1000")
SERVE = (*ALIQUOT, "burn", "serve", "--seconds", "600", "--iterations-per-us", "1000")
BENCH = Path(__file__).resolve().parents[2] / "bench"


def free_port() -> int:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        port: int = server.getsockname()[1]
        return port


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

    @contextmanager
    def somebody_waits(self, name: str, *, memory: int) -> Iterator[None]:
        with self.begin("run", "--name", name, "--memory", str(memory), "--", *LOAD):
            eventually(lambda: any(each["name"] == name for each in self.status()["queue"]))
            yield


@contextmanager
def lively(machine: Shown) -> Iterator[None]:
    """Offline work that an online server interrupts again and again, three that share by quota, and one who waits."""
    machine.aliquot("policy", "set", "burst-share")
    machine.aliquot("policy", "release-delay", "100ms")
    for name, memory, core in (("finetune", 10, 50), ("eval", 6, 30), ("notebook", 6, 20)):
        machine.normal_load(name, memory=memory, core=core)  # one card is full: the next two must share the other
    machine.offline_load("train", memory=10, core=50)
    machine.online_server("serve", memory=8)
    with machine.somebody_waits("late", memory=12):
        yield


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
