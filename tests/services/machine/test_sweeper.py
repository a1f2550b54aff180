"""However long it takes to read other users' processes, the event loop goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Set
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from aliquot.adapters.host import users
from aliquot.adapters.host.process import procscan
from aliquot.adapters.host.process.procscan import Reading, Scan
from aliquot.model.tenancy import Tenancy
from aliquot.services.machine.sweeper import Scanner, Sweeper

MANY = 200
# Unmaps its own environment, so that reading it returns nothing, as in an exec; its children inherit that.
UNREADABLE = f"""
import ctypes, os, signal
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
start, end = int(fields[47]) & ~4095, (int(fields[48]) + 4095) & ~4095
libc = ctypes.CDLL(None)
for _ in range({MANY - 1}):
    if os.fork() == 0:
        break
else:
    print("ready", flush=True)
libc.munmap(ctypes.c_void_p(start), ctypes.c_size_t(end - start))
signal.pause()
"""


@pytest.fixture(scope="module")
def unreadable() -> Iterator[int]:
    """The parent of many processes whose environment cannot be read."""
    command = [sys.executable, "-S", "-c", UNREADABLE, "x" * 16384]  # keeps the environment off the stack's pages
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={"A": "b"}, start_new_session=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        yield parent.pid
        os.killpg(parent.pid, signal.SIGKILL)


async def _delayed(scanner: Scanner) -> tuple[Scan, float, float]:
    """What a scan finds, how long the event loop was held up meanwhile, and how long it all took."""
    scanning = asyncio.create_task(scanner.scan({os.geteuid()}))
    began = last = time.monotonic()
    longest = 0.0
    while not scanning.done():
        await asyncio.sleep(0.005)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    return scanning.result(), longest, time.monotonic() - began


def test_processes_with_unreadable_environments_do_not_block_the_event_loop(unreadable: int) -> None:
    async def act() -> tuple[Scan, float, float]:
        return await _delayed(Scanner(("ALIQUOT_TENANT",)))

    found, longest, took = asyncio.run(act())
    assert Path(f"/proc/{unreadable}/environ").read_bytes() == b""
    children = [pid for pid, seen in found.processes.items() if seen.parent == unreadable]
    assert len(children) == MANY - 1
    assert found.unfinished == set()
    assert longest < 3, "one after the other they took 11 seconds"
    assert took < 8


def test_scan_that_hangs_in_a_process_is_given_up_and_its_user_skipped(tmp_path: Path) -> None:
    """A FIFO stands for memory that a hostile file system never delivers."""
    folder = tmp_path / str(os.getpid())
    folder.mkdir()
    os.mkfifo(folder / "environ")
    (folder / "stat").write_text(Path("/proc/self/stat").read_text())

    async def act() -> None:
        scanner = Scanner(("ALIQUOT_TENANT",), patience=0.3, proc=str(tmp_path))
        found, longest, _ = await _delayed(scanner)
        assert found.unfinished == {os.geteuid()}
        assert longest < 3
        skipped, _, _ = await _delayed(scanner)
        assert (skipped.processes, skipped.unfinished) == ({}, {os.geteuid()})
        os.close(os.open(folder / "environ", os.O_RDWR))  # now it can be read
        (folder / "environ").unlink()
        (folder / "environ").write_bytes(b"ALIQUOT_TENANT=x\0")
        deadline = time.monotonic() + 60
        while not (again := await scanner.scan({os.geteuid()})).processes:
            assert time.monotonic() < deadline
        assert again.marked("ALIQUOT_TENANT", "x").keys() == {os.getpid()}

    asyncio.run(act())


def test_scans_that_are_asked_for_meanwhile_are_one_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[set[int]] = []

    def scan(_names: object, uids: set[int], **_: object) -> Scan:
        asked.append(set(uids))
        time.sleep(0.05)
        return Scan()

    monkeypatch.setattr("aliquot.services.machine.sweeper.procscan.scan", scan)

    async def act() -> None:
        scanner = Scanner(("ALIQUOT_TENANT",))
        first = asyncio.create_task(scanner.scan({1}))
        while not asked:
            await asyncio.sleep(0.001)
        await asyncio.gather(first, *(scanner.scan({user}) for user in range(2, 50)))

    asyncio.run(act())
    assert asked == [{1}, set(range(2, 50))]


class Suspects:
    """No tenants, and no Pods."""

    def suspects(self) -> dict[str, int]:
        return {}

    def to_clear(self) -> dict[str, int]:
        return {}

    def without_processes(self, found: Scan, tenants: Collection[str]) -> Iterator[Tenancy | None]:
        yield from ()

    def without_page(self, tenancies: Collection[Tenancy]) -> list[Tenancy]:
        return []

    def release(self, now: float, tenancies: Collection[Tenancy]) -> Iterator[None]:
        yield from ()


def test_all_who_wait_for_a_look_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """240 connections that waited for the name of a run each had looks of their own: `hello` took 3.5 s."""
    looks = 0

    class Counted(Suspects):
        def suspects(self) -> dict[str, int]:
            nonlocal looks
            looks += 1
            return {"a": os.geteuid()}

    async def act() -> None:
        known = Counted()
        sweeper = Sweeper(known, ("ALIQUOT_TENANT",))
        first = asyncio.create_task(sweeper.look())
        while not looks:
            await asyncio.sleep(0)
        await asyncio.gather(first, *(sweeper.look() for _ in range(240)))

    monkeypatch.setattr("aliquot.services.machine.sweeper.procscan.scan", lambda *_, **__: Scan())
    asyncio.run(act())
    assert looks == 2, "the second for all who asked after the first had begun"


def test_pages_are_asked_about_in_a_thread_and_tenants_end_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both take the loop's time otherwise, as long as a user wants it to."""
    threads: list[str] = []
    ended: list[float] = []
    turns: list[float] = []
    tenancy: Any = object()

    class Slow(Suspects):
        def suspects(self) -> dict[str, int]:
            return {"a": os.geteuid()}

        def without_processes(self, found: Scan, tenants: Collection[str]) -> Iterator[Tenancy | None]:
            yield from [tenancy] * 10

        def without_page(self, tenancies: Collection[Tenancy]) -> list[Tenancy]:
            threads.append(threading.current_thread().name)
            return [*tenancies]

        def release(self, now: float, tenancies: Collection[Tenancy]) -> Iterator[None]:
            for _ in tenancies:
                time.sleep(0.02)
                ended.append(time.monotonic())
                yield

    async def count() -> None:
        while True:
            turns.append(time.monotonic())
            await asyncio.sleep(0)

    async def act() -> None:
        known = Slow()
        counting = asyncio.create_task(count())
        await Sweeper(known, ("ALIQUOT_TENANT",)).look()
        counting.cancel()

    monkeypatch.setattr("aliquot.services.machine.sweeper.procscan.scan", lambda *_, **__: Scan())
    asyncio.run(act())
    assert [name.startswith("pages") for name in threads] == [True]
    assert len(ended) == 10
    for earlier, later in pairwise(ended):
        assert any(earlier < turn < later for turn in turns), "others had no turn between the ends of two tenants"


def test_user_whose_processes_cannot_all_be_read_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """One who starts processes faster than they can be read."""
    restless, calm = 1, 2
    asked: list[set[int]] = []

    def scan(_names: object, uids: set[int], **_: object) -> Scan:
        asked.append(set(uids))
        time.sleep(1.0 if restless in uids else 0.0)
        return Scan(unfinished=uids & {restless})

    seen: list[set[str]] = []

    class Two(Suspects):
        def suspects(self) -> dict[str, int]:
            return {"a": restless, "b": calm}

        def without_processes(self, found: Scan, tenants: Collection[str]) -> Iterator[None]:
            seen.append(set(tenants))
            yield

    monkeypatch.setattr("aliquot.services.machine.sweeper.procscan.scan", scan)

    async def act() -> None:
        known = Two()
        sweeper = Sweeper(known, ("ALIQUOT_TENANT",))
        await sweeper.look()
        assert (asked, seen) == ([{restless, calm}], [{"a", "b"}])
        began = time.monotonic()
        for _ in range(5):
            await sweeper.look()
            assert (await sweeper.scan({calm})).unfinished == set()
        assert asked.count({calm}) == 10
        assert time.monotonic() - began < 0.9, "it did not wait"
        assert (await sweeper.scan({restless, calm})).unfinished == {restless}
        assert {"a"} in seen

    asyncio.run(act())


def test_user_whose_processes_hang_scans_under_lent_numbers_delays_others_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each number has one process whose environment a file system of the user never delivers."""
    first, calm = 3_000_000_000, 2
    numbers = range(first, first + 5)
    (tmp_path / "subuid").write_text(f"70001:{first}:{len(numbers)}\n")
    monkeypatch.setattr(users, "_LENT", tmp_path / "subuid")
    released, hung = threading.Event(), list[int]()

    def scan(_names: object, uids: set[int], *, skip: Set[int], reading: Reading, **_: object) -> Scan:
        for user in sorted(uids & set(numbers) - skip):
            reading.uid, reading.pid = user, user
            hung.append(user)
            released.wait(60)
        return Scan(unfinished=uids & skip)

    monkeypatch.setattr("aliquot.services.machine.sweeper.procscan.scan", scan)

    async def act() -> None:
        scanner = Scanner(("ALIQUOT_TENANT",), patience=0.2)
        assert (await scanner.scan({calm, numbers[0]})).unfinished == {calm, numbers[0]}
        for user in numbers:
            found = await scanner.scan({calm, user})
            assert found.unfinished == {user}
        assert scanner.restless({calm, *numbers}) == {calm, *numbers}, "all of that scan"
        assert (await scanner.scan(set(numbers))).unfinished == set(numbers)
        released.set()

    asyncio.run(act())
    assert hung == [numbers[0]], "no thread for the other numbers"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")
def test_process_that_hangs_when_it_is_read_again_is_blamed_on_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks first as in an exec; meanwhile processes of another user are read."""
    mine, other = 70001, 70002
    stat = Path("/proc/self/stat").read_text()
    for pid, user, many in ((1, mine, 1), (2, other, 2), (3, other, 2)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(stat)
        (tmp_path / str(pid) / "environ").write_bytes(b"" if user == mine else b"A=b\0" * many)
        os.chown(tmp_path / str(pid), user, -1)
    reading, blamed = Reading(), list[int | None]()

    def content(folder: int, name: str) -> bytes:
        if name == "environ" and os.fstat(folder).st_uid == mine:
            blamed.append(reading.uid)
        return original(folder, name)

    original = procscan._content
    monkeypatch.setattr(procscan, "_content", content)
    procscan.scan(("A",), {mine, other}, reading=reading, proc=str(tmp_path))
    assert len(blamed) > 1
    assert set(blamed) == {mine}
