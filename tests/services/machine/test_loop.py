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
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from aliquot.adapters.storage.database import Database
from aliquot.adapters.storage.history import OF_A_USER
from aliquot.model.claim import AppClass
from aliquot.model.tenancy import EndedRun
from services.machine.test_control import Daemon, daemon  # noqa: F401 - a fixture

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
container = {"name": "c", "image": "i", "command": ["true"]}
spec = {"containers": [container], "schedulingGates": [{"name": "g"}]}
def pod(at, start="p"):
    return {"kind": "Pod", "metadata": {"name": f"{start}-{at}"}, "spec": spec}
for at in range(100):
    ask({"op": "run", "command": ["x" * 200] * 60, "memory_mib": 1000 + at})
for at in range(40):
    ask({"op": "status"})
for at in range(20):
    ask(None)
ask({"op": "apply", "dry_run": True, "objects": [pod(at, "dry") for at in range(256)]}, True)
end = time.monotonic() + seconds
while time.monotonic() < end:
    ask({"op": "ended"}, True)
    ask({"op": "logs", "name": "run-1"}, True)
    ask({"op": "apply", "objects": [pod(at) for at in range(100)]}, True)
    ask({"op": "apply", "objects": [[[[0] * 1000] * 30]]}, True)
    ask({"op": "run", "command": ["x"], "memory_mib": 99, "wait": False, "detach": True}, True)
    ask({"op": "policy", "policy": "fixed-share"}, True)
    ask({"op": "policy", "policy": "best-effort"}, True)
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
