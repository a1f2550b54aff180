"""Nothing blocks the event loop of the daemon, whatever its clients ask and however slow its disk is.

Measured of every callback: the time in which the process ran or waited for something, without the time in which the
kernel gave the processor to others. So a busy machine changes nothing.
"""

from __future__ import annotations

import asyncio
import asyncio.events
import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from adapters.storage.test_folders import nested
from aliquot.adapters.host.home import Home
from aliquot.adapters.storage import folders
from aliquot.adapters.storage.database import Database
from aliquot.adapters.storage.history import OF_A_USER
from aliquot.model.claim import AppClass
from aliquot.model.tenancy import EndedRun
from aliquot.services.dashboard.access import NO_DASHBOARD, Listen
from aliquot.services.machine.service import Setup, run_daemon
from kit.machines.machine import PaperArbiter, PaperNvml, cards, eventually
from services.machine.test_control import Daemon, daemon  # noqa: F401 - a fixture
from services.machine.test_sweeper import unreadable  # noqa: F401 - a fixture

MOST = 0.1  # seconds
SLOW = 0.15  # seconds of one write

# Runs with a hundred different shapes wait and never read, others ask and never read, some say nothing, some send
# what is as large as it may be; then all are gone at the same moment.
ATTACK = """
import json, socket, sys, time
path, seconds = sys.argv[1], float(sys.argv[2])
held = []
def ask(request, reads=False):
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    connection.settimeout(60)
    if request is not None:
        try:
            connection.sendall(json.dumps(request).encode() + b"\\n")
        except OSError:
            pass
    if reads:
        connection.recv(1 << 16)
        connection.close()
    else:
        held.append(connection)
for at in range(100):
    ask({"op": "run", "command": ["x" * 200] * 60, "memory_mib": 1000 + at})
for at in range(40):
    ask({"op": "status"})
for at in range(20):
    ask(None)
end = time.monotonic() + seconds
while time.monotonic() < end:
    ask({"op": "ended"}, True)
    ask({"op": "logs", "name": "run-1"}, True)
    ask({"op": "stop", "name": [[[0] * 1000] * 30]}, True)
    ask({"op": "run", "command": ["x"], "memory_mib": 99, "wait": False, "detach": True}, True)
    ask({"op": "policy", "policy": "fixed-share"}, True)
    ask({"op": "policy", "policy": "best-effort"}, True)
"""


# A user's runs fill their own folders with deep trees and many files, and end, again and again.
TENANTS = """
import json, os, socket, sys
path, rounds, deep, many = sys.argv[1], *map(int, sys.argv[2:])

def nested(folder):
    at = os.open(folder, os.O_RDONLY)
    for _ in range(deep):
        os.mkdir("d", dir_fd=at)
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)

def filled(folder):
    for number in range(many):
        os.close(os.open(f"{folder}/{number}", os.O_WRONLY | os.O_CREAT))

def linked(folder):
    os.symlink("/", f"{folder}/root")
    for number in range(many // 10):
        os.mkdir(f"{folder}/d{number}")
        os.symlink("..", f"{folder}/d{number}/up")

for number in range(rounds):
    for fill in (nested, filled, linked):
        run = os.fork()
        if run:
            assert os.waitpid(run, 0)[1] == 0
            continue
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        connection.sendall(json.dumps({"op": "run", "command": ["x"], "memory_mib": 99}).encode() + b"\\n")
        granted = json.loads(connection.makefile().readline())
        fill(granted["ok"]["set"]["ALIQUOT_TENANT"])
        os._exit(0)
"""


def waited_for_processor() -> float:
    """Seconds in which threads of this process could run and had no processor: all of them, because one of the others
    may have had Python's lock."""
    waited = 0
    for thread in os.listdir("/proc/self/task"):
        with (
            contextlib.suppress(FileNotFoundError, ProcessLookupError),
            open(f"/proc/self/task/{thread}/schedstat") as file,
        ):
            waited += int(file.read().split()[1])
    return waited / 1e9


@contextlib.contextmanager
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[float, str]]]:
    """What blocked the loop for longer than allowed."""
    blocked: list[tuple[float, str]] = []
    run = asyncio.events.Handle._run

    def timed(handle: asyncio.events.Handle) -> None:
        began, without = time.perf_counter(), waited_for_processor()
        run(handle)
        took = time.perf_counter() - began
        if took > MOST:
            took -= waited_for_processor() - without
            if took > MOST:
                blocked.append((took, repr(handle)))

    gc.collect()
    gc.freeze()  # what other tests have loaded is no work of the daemon
    try:
        with monkeypatch.context() as patch:
            patch.setattr(asyncio.events.Handle, "_run", timed)
            yield blocked
    finally:
        gc.unfreeze()


def an_ended_run(at: int) -> EndedRun:
    user = 70001 + at // OF_A_USER
    return EndedRun(f"{at:010x}", f"run-{at}", AppClass.NORMAL, user, ("x" * 200,) * 10, 1.0, 2.0, 0, None)


@pytest.mark.skipif(not os.path.exists("/proc/thread-self/schedstat"), reason="the kernel counts no waiting times")
def test_no_request_blocks_the_loop(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    for at in range(1000):
        daemon.machine.history._runs.append(an_ended_run(at))
    transaction = Database.transaction

    @contextlib.contextmanager
    def slow(database: Database) -> Iterator[Any]:
        time.sleep(SLOW)
        with transaction(database) as connection:
            yield connection

    async def act() -> None:
        daemon.store.writer.start()
        async with daemon.serving():
            me = os.geteuid()
            assert "ok" in await daemon.ask(me, op="run", command=["x"])
            command = [sys.executable, "-c", ATTACK, daemon.home.control, "0.5"]
            attacker = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
            daemon.pid = attacker.pid
            _, said = await attacker.communicate()
            assert attacker.returncode == 0, said.decode()
            daemon.pid = os.getpid()
            assert "ok" in await daemon.ask(me, op="ended")
        await asyncio.to_thread(daemon.store.writer.stop)

    monkeypatch.setattr(Database, "transaction", slow)
    with measured(monkeypatch) as blocked:
        asyncio.run(act())
    assert blocked == []


def while_running(
    home: Home,
    act: Callable[[], None],
    listen: Listen = NO_DASHBOARD,
    ready: Callable[[], None] = lambda: None,
    arbiter: Callable[[], PaperArbiter] = PaperArbiter,
) -> None:
    """A whole daemon in this process; what is done meanwhile is done in a thread. `ready` is called in its loop."""
    failed: list[BaseException] = []

    def acting() -> None:
        try:
            act()
        except BaseException as error:
            failed.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_ready(_: str) -> None:
        ready()
        thread.start()

    thread = threading.Thread(target=acting)
    nvml: Any = PaperNvml(cards())
    run_daemon(Setup(home, nvml, lambda *_: arbiter(), on_ready, environment={}, front={}, listen=listen))
    thread.join()
    for error in failed:
        raise error


@pytest.mark.usefixtures("unreadable")
@pytest.mark.skipif(not os.path.exists("/proc/thread-self/schedstat"), reason="the kernel counts no waiting times")
def test_no_folder_and_no_process_of_a_user_blocks_the_loop(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deep trees and many files in the folders of tenants, from before the start too, while the processes of their user
    cannot be read."""
    tenants = Path(home.tenants)
    tenants.mkdir()
    nested(tenants / "left-deep", 3000)
    (tenants / "left-full").mkdir()
    for number in range(5000):
        (tenants / "left-full" / str(number)).touch()

    def act() -> None:
        command = [sys.executable, "-S", "-c", TENANTS, home.control, "1", "3000", "20000"]
        done = subprocess.run(command, stderr=subprocess.PIPE, timeout=120, check=False)
        assert done.returncode == 0, done.stderr.decode()
        eventually(lambda: all(folder.name.startswith(folders.ASIDE) for folder in tenants.iterdir()))

    with measured(monkeypatch) as blocked:
        while_running(home, act)
    assert blocked == []
    folders.wait_removed()
    assert [*tenants.iterdir()] == []


# Runs that end at one moment, when the input of this program ends.
ENDING = """
import json, os, socket, sys
path, runs = sys.argv[1], int(sys.argv[2])
read, write = os.pipe()
for _ in range(runs):
    if os.fork() == 0:
        os.close(write)
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        connection.sendall(json.dumps({"op": "run", "command": ["x"], "memory_mib": 1}).encode() + b"\\n")
        assert "ok" in json.loads(connection.makefile().readline())
        os.write(1, b"+")
        os.read(read, 1)
        os._exit(0)
sys.stdin.read()
"""


@pytest.mark.skipif(not os.path.exists("/proc/thread-self/schedstat"), reason="the kernel counts no waiting times")
def test_runs_that_end_at_one_moment_do_not_block_the_loop_however_long_their_pages_take(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locks that a user takes on the pages of its runs, and folders, make each of them slow."""
    runs = 30

    class SlowArbiter(PaperArbiter):
        def alive(self, tenant_id: str, seconds: float = 0.02) -> bool:
            time.sleep(0.02)
            return super().alive(tenant_id, seconds)

        def remove(self, tenant_id: str) -> None:
            time.sleep(0.008)
            super().remove(tenant_id)

    def act() -> None:
        command = [sys.executable, "-S", "-c", ENDING, home.control, str(runs)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
            assert program.stdout is not None
            assert program.stdout.read(runs) == b"+" * runs
            assert len(arbiter.tenants) == runs
            program.communicate()
        eventually(lambda: not arbiter.tenants)

    arbiter = SlowArbiter()
    with measured(monkeypatch) as blocked:
        while_running(home, act, arbiter=lambda: arbiter)
    assert blocked == []


def test_metrics_of_a_machine_show_what_blocked_its_loop(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    metrics: dict[str, float] = {}

    def look() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            lines = [line.rpartition(" ") for line in answer.read().decode().splitlines()]
        metrics.update({name: float(value) for name, _, value in lines if name.startswith("aliquot_loop_delay")})
        return metrics["aliquot_loop_delay_max_seconds"] >= 0.4

    def act() -> None:
        asyncio.run_coroutine_threadsafe(block(), loops[0]).result(60)
        eventually(look)

    async def block() -> None:
        time.sleep(0.6)

    loops: list[asyncio.AbstractEventLoop] = []
    while_running(home, act, Listen("127.0.0.1", port), ready=lambda: loops.append(asyncio.get_running_loop()))
    assert metrics["aliquot_loop_delay_seconds_count"] >= 1
    assert metrics["aliquot_loop_delay_seconds_sum"] >= 0.4
    slow = metrics["aliquot_loop_delay_seconds_count"] - metrics['aliquot_loop_delay_seconds_bucket{le="0.25"}']
    assert slow >= 1
