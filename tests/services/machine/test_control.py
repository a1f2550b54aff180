"""The control socket of the machine's daemon under attack: root and other users are served all the same."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aliquot.adapters.host import samemount
from aliquot.adapters.host.control import AnswerError, Connection, ControlError, ask
from aliquot.adapters.host.handedfiles import Listener
from aliquot.adapters.host.home import Home
from aliquot.adapters.host.process import processes
from aliquot.adapters.storage.store import Store
from aliquot.model.status.machine import DaemonStatus
from aliquot.model.tenancy import TenantEnvironment
from aliquot.services.daemon.connections import Clients
from aliquot.services.daemon.control import Caller, listen
from aliquot.services.machine import control as module
from aliquot.services.machine.control import ControlServer
from aliquot.services.machine.sweeper import Sweeper
from aliquot.services.machine.tenants.machine import LocalMachine
from kit.machines.machine import PaperArbiter, cards
from kit.running.lingering import SECONDS, hand_over, lingering

ROOT = 0
USERS = range(70001, 70006)
# Two that the daemon serves: one that is not root's serves its own user alone.
ONE, ANOTHER = (70001, 70002) if os.geteuid() == 0 else (os.geteuid(), os.geteuid())


class Daemon:
    """A daemon in this process. `uid` and `pid`: what the kernel says of the next connections."""

    def __init__(self, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home, self.uid, self.pid = home, os.geteuid(), os.getpid()
        for folder in (home.tenants, home.logs):
            os.makedirs(folder, exist_ok=True)
        self.store = Store(home.database, home.tenants)
        self.machine = LocalMachine(
            cards(1, 24),
            home=home,
            store=self.store,
            arbiter=PaperArbiter(),
            watch=lambda _: None,
            environment=lambda _tenancy, folder: TenantEnvironment({"ALIQUOT_TENANT": folder}),
        )
        sweeper = Sweeper(self.machine, ("ALIQUOT_TENANT",))
        information = DaemonStatus(os.getpid(), home=home.run, simulated=None, dashboard=None)
        self.control = ControlServer(self.machine, SimpleNamespace(readings={}), information, sweeper)  # type: ignore[arg-type]
        monkeypatch.setattr(
            module, "caller_of", lambda _: Caller(self.pid, self.uid, self.uid, processes.start_time(self.pid))
        )

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        ready = asyncio.Event()
        task = asyncio.create_task(self.control.serve(listen(self.home.control), ready.set))
        await asyncio.wait_for(ready.wait(), 60)
        try:
            yield
        finally:
            self.control._stopping.set()
            await task

    async def connect(self, uid: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.uid = uid
        seen = len(self.control._clients._all)
        reader, writer = await asyncio.open_unix_connection(self.home.control)
        for _ in range(1000):
            if len(self.control._clients._all) > seen or reader.at_eof():
                break
            await asyncio.sleep(0)
        return reader, writer

    async def ask(self, uid: int, **request: Any) -> dict[str, Any]:
        """The last answer, as a command gets it."""
        self.uid = uid
        try:
            return {"ok": await asyncio.to_thread(ask, [self.home], request, 60)}
        except AnswerError as error:
            return {"error": error.details}


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="alq") as folder:
        found = Daemon(Home(folder, folder), monkeypatch)
        yield found
        found.store.writer.stop()
        found.store.close()


def test_hello_has_what_a_machine_reports_and_nothing_of_an_agent(daemon: Daemon) -> None:
    async def act() -> None:
        async with daemon.serving():
            answer = (await daemon.ask(ROOT, op="hello"))["ok"]
            home = daemon.home.run
            assert answer == {"pid": os.getpid(), "home": home, "simulated": None, "dashboard": None, "rules": "seed"}

    asyncio.run(act())


def test_runs_that_have_waited_for_a_name_go_on_one_in_each_round_of_the_loop(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """240 of them went on in one round, in which nobody else was answered."""
    rounds = 0
    went_on: list[int] = []

    async def count() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    async def wait_for_name() -> None:
        await daemon.control._until_free("taken")
        went_on.append(rounds)

    async def act() -> None:
        counting = asyncio.create_task(count())
        await asyncio.gather(*(wait_for_name() for _ in range(40)))
        counting.cancel()

    monkeypatch.setattr(daemon.machine, "is_ending", lambda name: True)
    monkeypatch.setattr(module, "_NAME_PATIENCE", 0.1)
    asyncio.run(act())
    assert len(went_on) == 40
    assert max(Counter(went_on).values()) <= 2


def test_root_and_another_user_are_served_beside_silent_connections_of_five_users(daemon: Daemon) -> None:
    async def act() -> None:
        async with daemon.serving():
            daemon.control._clients = Clients(connections=128)
            writers = []
            for uid in USERS:
                writers += [(await daemon.connect(uid))[1] for _ in range(40)]
            assert "ok" in await daemon.ask(ROOT, op="hello")
            assert "ok" in await daemon.ask(70099, op="hello")
            refused = await daemon.ask(70001, op="hello")
            assert "connections at once: " in refused["error"]["text"]
            for writer in writers:
                writer.close()

    asyncio.run(act())


@pytest.mark.parametrize("kernel", ["before 6.16", "this one"])
def test_file_that_a_user_hands_over_does_not_hold_up_the_daemon(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    """A socket whose close waits for its peer (SO_LINGER): the kernel closed it inside of the daemon's recv or close,
    and one message of any user held root's daemon up for as long as its sender liked."""
    if kernel != "this one":
        monkeypatch.setattr(Listener, "refuse_files", lambda _: None)

    async def act() -> None:
        async with daemon.serving():
            for message in (b'{"op": "hello"}\n', b"unfinished", b'{"op": "hello"}\nmore\n'):
                connection = socket.socket(socket.AF_UNIX)
                connection.connect(daemon.home.control)
                with contextlib.suppress(PermissionError):
                    hand_over(connection, message, attack.enter_context(lingering()))
                await asyncio.sleep(0.05)
                connection.close()
                assert "ok" in await daemon.ask(70099, op="hello")

    began = time.monotonic()
    with contextlib.ExitStack() as attack:
        asyncio.run(act())
        assert time.monotonic() - began < SECONDS / 2


def test_refused_client_reads_the_sentence_though_its_request_was_not_read(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        connection = Connection(path)
        peer, _ = listener.accept()
        peer.sendall(b'{"error": {"kind": "failed", "text": "too many"}}\n')
        peer.close()
        connection.send({"op": "status"})
        with pytest.raises(AnswerError, match="too many"):
            list(connection.events(60))
        connection.close()


def test_client_waits_while_more_connect_than_the_daemon_has_room_for(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(path)
        listener.listen(0)
        first.connect(path)
        with pytest.raises(ControlError, match="too many others connect to the daemon now: try again later"):
            Connection(path, timeout=0.05)
        accepting = threading.Timer(0.1, lambda: listener.accept()[0].close())
        accepting.start()
        Connection(path, timeout=60).close()
        accepting.join()


def test_status_is_made_once_for_all_requests_at_the_same_time(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    status = daemon.control.status

    def counted() -> Any:
        nonlocal made
        made += 1
        return status()

    monkeypatch.setattr(daemon.control, "status", counted)

    async def act() -> None:
        answers = await asyncio.gather(*(daemon.control._status() for _ in range(100)))
        assert len(set(answers)) == made == 1
        assert json.loads(answers[0])["ok"]["cards"][0]["uuid"] == "GPU-0"
        await daemon.control._status()
        assert made == 2, "never an old one"

    asyncio.run(act())


def test_run_that_leaves_the_queue_or_finds_no_room_leaves_no_log(daemon: Daemon) -> None:
    async def act() -> None:
        async with daemon.serving():
            me = daemon.uid
            assert "ok" in await daemon.ask(me, op="run", command=["x"])
            with subprocess.Popen(["sleep", "600"]) as other:
                daemon.pid = other.pid
                busy = await daemon.ask(me, op="run", command=["y"], memory_mib=1, wait=False, detach=True)
                assert busy["error"]["kind"] == "busy"
                assert logs() == []
                reader, writer = await daemon.connect(me)
                writer.write(b'{"op": "run", "command": ["z"], "detach": true}\n')
                assert b"waiting" in await asyncio.wait_for(reader.readline(), 60)
                assert len(logs()) == 1
                other.kill()
            writer.close()
            async with asyncio.timeout(60):
                while logs():
                    await asyncio.sleep(0.01)

    def logs() -> list[Path]:
        return list(Path(daemon.home.logs).glob("*.log"))

    asyncio.run(act())


def test_of_a_run_with_many_processes_each_is_looked_at_until_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """`aliquot stop` of a run of 2,000 processes, the last of which does not end: all were read 50 times a second."""
    read: list[int] = []

    def lives(pid: int, _started: int) -> bool:
        read.append(pid)
        return pid == 2000

    monkeypatch.setattr(processes, "lives", lives)

    async def act() -> None:
        living = dict.fromkeys(range(1, 2001), 7)
        for _ in range(50):
            living = await module._from_first_living(living)
        assert living == {2000: 7}

    asyncio.run(act())
    assert len(read) == 2000 + 49


def test_log_of_an_ended_run_is_not_taken_for_absent_while_no_file_is_left(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = daemon.home.log_of("ended")
    Path(log).write_text("what it said")

    def lacks_files(path: str) -> os.stat_result:
        raise OSError(errno.EMFILE, "Too many open files", path)

    async def scene() -> None:
        async with daemon.serving():
            assert (await daemon.ask(os.geteuid(), op="logs", name="ended"))["ok"]["log"] == log
            monkeypatch.setattr(samemount, "lstat", lacks_files)
            answer = await daemon.ask(os.geteuid(), op="logs", name="ended")
            assert answer == {"error": {"kind": "failed", "text": f"{log}: Too many open files"}}
            answer = await daemon.ask(os.geteuid(), op="run", command=["x"], memory_mib=1024, core=10)
            assert answer["error"]["text"].endswith(".log: Too many open files")
            assert list(daemon.machine.queue) == []

    asyncio.run(scene())
