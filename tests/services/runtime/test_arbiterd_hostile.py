"""A hostile tenant: whatever it says, hands over or writes, the daemon lives, keeps nothing, and serves the others."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aliquot.adapters.gpu import link, rm
from aliquot.adapters.gpu import page as pages
from aliquot.model.claim import AppClass
from aliquot.model.tenant import FindingKind, Level, SharingRules
from aliquot.services.runtime.cards.cardloop import CardLoop
from aliquot.services.runtime.limits import audit, owners
from aliquot.services.runtime.processes import registration
from kit.cards.arbiterd import SUBDEVICE, UUIDS, FakeShim, Rig, open_files, same_files, until
from kit.running.lingering import SECONDS, hand_over, lingering, nested

quick = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


class HostileTenant:
    """A hostile tenant beside a good one that is registered; what the good one has must stay as it is."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.folder = rig.tenant("bad")
        self.good = rig.registered(rig.tenant("good"), 11)
        self.files = open_files()

    def attack(self) -> FakeShim:
        return FakeShim(self.folder, self.rig.pid("bad"))

    def is_in_order(self) -> None:
        """Every file that came is gone, and the good tenant is served."""
        until(lambda: open_files() == self.files, "the end of what was handed over")
        assert not self.good.ended()
        standing = self.rig.standing("good")
        assert standing.processes == (self.good.pid,)
        assert standing.level is Level.HARDWARE
        assert standing.memory_limit == 10 << 30
        assert all(thread.is_alive() for thread in self.rig.daemon._threads)
        assert all(loop._thread.is_alive() for loop in self.rig.daemon._loops.values())
        self.rig.driver.calls.clear()
        self.good.group(11, self.rig.rm_file).done(1)
        until(lambda: any(call[1] == 11 for call in self.rig.driver.calls), "an answer to the good one")
        touched = {client for _, client, _ in self.rig.driver.calls if client != 11}
        assert not touched


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostileTenant]:
    before = open_files()
    rig = Rig(tmp_path, monkeypatch)
    made = HostileTenant(rig)
    yield made
    rig.end()
    assert same_files(before), "files were left open"


def send(shim: FakeShim, data: bytes, files: list[int]) -> None:
    """Whether or not anybody still listens."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        socket.send_fds(shim.sock, [data], files)


_head = st.builds(
    lambda kind, body: struct.pack("<I2H", pages.MAGIC, pages.VERSION, kind) + body,
    st.integers(0, 6),
    st.binary(max_size=60),
)
_group = st.builds(
    lambda words, channels: struct.pack(
        f"<I2H{8 + channels}I", pages.MAGIC, pages.VERSION, 2, *words, *range(channels)
    ),
    st.lists(st.sampled_from([0, 1, 2, SUBDEVICE, 2**32 - 1]), min_size=8, max_size=8),
    st.integers(0, 130),
)
_said = st.tuples(st.binary(max_size=900) | _head | _group, st.integers(0, 10))


@quick
@given(hello=st.booleans(), messages=st.lists(_said, max_size=12))
def test_registrar_survives_any_message(hostile: HostileTenant, hello: bool, messages: list[tuple[bytes, int]]) -> None:
    shim = hostile.attack()
    if hello:
        shim.hello()
    for data, files in messages:
        send(shim, data, [0] * files)
    shim.close()
    hostile.is_in_order()


def was_thrown_out(say: Callable[[], object], times: int) -> bool:
    try:
        for _ in range(times):
            say()
    except (BrokenPipeError, ConnectionResetError):
        return True
    return False


def _file(folder: Path) -> int:
    return os.open(folder / "plain", os.O_RDWR | os.O_CREAT)


def _folder(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY)


def _pipe(folder: Path) -> int:
    reading, writing = os.pipe()
    os.close(writing)
    return reading


def _device(folder: Path) -> int:
    return os.open("/dev/null", os.O_RDWR)


def _page(folder: Path) -> int:
    return os.open(folder / "good/page", os.O_RDWR)


def _path(folder: Path) -> int:
    return os.open(folder, os.O_PATH)


def _socket(folder: Path) -> int:
    ours, theirs = socket.socketpair()
    theirs.close()
    return ours.detach()


@pytest.mark.parametrize("make", [_file, _folder, _pipe, _device, _page, _path, _socket])
def test_registrar_survives_any_file_passed_as_the_drivers(hostile: HostileTenant, make: Callable[[Path], int]) -> None:
    shim = hostile.attack().hello()
    handed = make(hostile.rig.folder)
    shim.say(link.GROUP, 66, 1, 0, SUBDEVICE, 1, 1, 1, 0, 7, files=(handed,))
    os.close(handed)
    shim.done(1).say(link.WAKE, 0)
    until(lambda: hostile.rig.daemon._tenancies["bad"].processes)
    shim.close()
    hostile.is_in_order()
    until(lambda: not hostile.rig.standing("bad").processes, "the end of what was held at the gate")


def test_another_file_with_known_handles_gets_no_controls(hostile: HostileTenant) -> None:
    """What was asked of the driver once is remembered, but not of the file."""
    shim = hostile.rig.registered(hostile.folder, 66)
    handed = os.open("/dev/null", os.O_RDWR)
    shim.say(link.GROUP, 66, 1, 0, SUBDEVICE, 1, 1, 3, 0, 7, 8, 9, files=(handed,))
    os.close(handed)
    shim.done(1)
    until(lambda: hostile.rig.standing("bad").level is Level.GATE, "the gate in the place of controls")
    shim.close()
    hostile.is_in_order()


def test_a_passed_socket_with_linger_does_not_block_us(hostile: HostileTenant) -> None:
    """SO_LINGER with data that nobody takes: its last close would last a minute, and the daemon's ear is one thread."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        sender.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                sender.send(bytes(1 << 16))
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
        shim = hostile.attack().hello()
        until(lambda: hostile.rig.daemon._tenancies["bad"].processes)
        shim.say(link.GROUP, 66, 1, 0, SUBDEVICE, 1, 1, 1, 0, 7, files=(sender.fileno(),))
        sender.close()  # not the last: one is on its way
        shim.done(1)
        shim.close()
        until(lambda: not hostile.rig.daemon._tenancies["bad"].processes)
    hostile.is_in_order()


@pytest.mark.parametrize("how", ["behind many files", "in a message that is never read", "within another socket"])
def test_file_whose_close_hangs_does_not_hold_up_other_tenants(hostile: HostileTenant, how: str) -> None:
    """The kernel closes what it has no room for, and what is left in a connection: in the thread that serves all."""
    with lingering() as file, open(os.devnull) as null:
        shim = hostile.attack().hello()
        until(lambda: hostile.rig.daemon._tenancies["bad"].processes)
        if how == "within another socket":
            file = nested(file)
        if how == "in a message that is never read":
            with hostile.rig.daemon._lock:  # so that both are there before it reads the first
                shim.say(9999)
                shim.sock.send(b"no message")
                hand_over(shim.sock, b"no message", file)
        else:
            hand_over(shim.sock, b"no message", file, *[null.fileno()] * 100)
        until(lambda: not hostile.rig.daemon._tenancies["bad"].processes)
        began = time.monotonic()
        hostile.rig.standing("good")
        assert time.monotonic() - began < SECONDS / 2
        shim.close()
    hostile.is_in_order()


def test_the_drivers_file_with_foreign_handles_is_refused(hostile: HostileTenant) -> None:
    """The driver knows whose they are: it answers that there is no such client."""
    hostile.rig.driver.gone |= {(66, 1)}
    shim = hostile.attack().hello().group(66, hostile.rig.rm_file).done(1)
    until(lambda: any(call[1] == 66 for call in hostile.rig.driver.calls))
    shim.close()
    hostile.is_in_order()


@pytest.mark.parametrize("sends", ["nothing", "a copy group", "unknown handles", "another file", "no group at all"])
def test_half_a_registration_is_held_at_the_gate_and_reported(hostile: HostileTenant, sends: str) -> None:
    """It speaks with us and keeps its context to itself: it had the driver's own slice, no cap, and no finding."""
    rig = hostile.rig
    rig.patch.setattr(audit, "_GRACE", -1.0)
    if sends == "no group at all":  # but some other object: the driver refuses, as where it lets nobody control
        rig.driver.refuses |= {"get"}
    else:
        rig.driver.gone |= {(66, 1)}
    shim = hostile.attack().hello()
    if sends != "nothing":
        file = hostile.folder / "page" if sends == "another file" else rig.rm_file
        shim.group(66, file, compute=sends != "a copy group")
    shim.done(sends != "nothing")
    until(lambda: rig.standing("bad").level is Level.GATE, "the gate")
    rig.nvml.on_card[UUIDS[0]] = {shim.pid: 1 << 30, hostile.good.pid: 1 << 30}

    def found() -> list[tuple[int | None, FindingKind, str | None]]:
        return [(finding.pid, finding.kind, finding.owner) for finding in rig.daemon._auditor.inspect(UUIDS[0])]

    assert found() == [(shim.pid, FindingKind.UNREGISTERED, "bad")]
    assert shim.use().overhead == 1 << 30, "its memory counts all the same"
    rig.nvml.mps = {shim.pid}
    assert found() == [], "under MPS no process has a context of its own"
    rig.nvml.mps = set()
    rig.driver.gone.clear()
    rig.driver.refuses.clear()
    shim.group(66, rig.rm_file, group=2).done(1)
    until(lambda: rig.standing("bad").level is Level.HARDWARE, "the whole registration")
    assert found() == []
    shim.close()
    hostile.is_in_order()


def test_files_of_every_message_are_closed(hostile: HostileTenant) -> None:
    for files in (1, 3, 8, 9, 253):
        shim = hostile.attack()
        send(shim, struct.pack("<I2H2I", pages.MAGIC, pages.VERSION, link.HELLO, 1, 0), [0] * files)
        until(shim.ended, "the end of it")
        shim.close()
    hostile.is_in_order()


def test_registrations_that_are_never_completed_hold_few_files(hostile: HostileTenant) -> None:
    """Each group is a file that the daemon holds."""
    shims = [FakeShim(hostile.folder, hostile.rig.pid(("bad", at)), at) for at in range(6)]
    for shim in shims:
        shim.hello()
    for _ in range(registration._MOST_GROUPS):
        for shim in shims:
            try:
                shim.group(66, hostile.rig.rm_file)
            except OSError:
                continue
    until(lambda: any(shim.ended() for shim in shims), "a limit")
    until(lambda: hostile.rig.held_files() <= registration._MOST_PENDING + 10, "the end of files of who was expelled")
    for shim in shims:
        shim.close()
    hostile.is_in_order()


def test_too_many_groups_expel_the_process(hostile: HostileTenant) -> None:
    shim = hostile.attack().hello()
    assert was_thrown_out(lambda: shim.group(66, hostile.rig.rm_file), 10 * registration._MOST_GROUPS)
    shim.close()
    hostile.is_in_order()


def test_a_registration_with_lost_groups_expels_the_process(hostile: HostileTenant) -> None:
    shim = hostile.attack().hello().group(66, hostile.rig.rm_file).done(2)
    until(shim.ended)
    shim.close()
    hostile.is_in_order()


def test_a_flood_of_messages(hostile: HostileTenant) -> None:
    shim = hostile.attack().hello()
    assert was_thrown_out(lambda: shim.say(link.WAKE, 0), 20 * registration._MOST_MESSAGES)
    shim.close()
    hostile.is_in_order()


def test_thousands_of_connections(hostile: HostileTenant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one process the newest counts, so nothing piles up."""
    monkeypatch.setattr(registration, "_MOST_ACCEPTED", 10**6)  # else it takes its time
    kept: list[FakeShim] = []
    for at in range(1500):
        kept.append(hostile.attack())
        if at % 3 == 0:
            kept[-1].hello()
        if len(kept) > 50:
            kept.pop(0).close()
    for shim in kept:
        shim.close()
    hostile.is_in_order()


def test_more_processes_than_a_tenant_may_have(hostile: HostileTenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "SLOTS", 3)
    shims = [FakeShim(hostile.folder, hostile.rig.pid(("bad", at)), at) for at in range(4)]
    for shim in shims:
        with contextlib.suppress(BrokenPipeError):  # it may be refused before it says a word
            shim.hello()
    until(lambda: sum(shim.ended() for shim in shims) == 1, "the refusal of one")
    for shim in shims:
        shim.close()
    hostile.is_in_order()


def test_waking_a_card_that_is_not_its_own(hostile: HostileTenant) -> None:
    shim = hostile.attack().hello()
    for card in range(pages.CARDS):
        shim.say(link.WAKE, card)
    shim.done(0)
    until(lambda: hostile.rig.standing("bad").processes)
    for card in range(pages.CARDS):
        shim.say(link.WAKE, card)
    shim.close()
    until(lambda: not hostile.rig.standing("bad").processes)
    hostile.is_in_order()


def test_endless_wakes_while_the_driver_hangs_fill_no_memory() -> None:
    loop = CardLoop(UUIDS[0], SharingRules())  # its thread is not started: so does one look that hangs
    for _ in range(1000):
        loop.wake("bad/1")
        loop.wake("good/1")
    assert loop._inbox.qsize() == 2
    assert loop._drain_inbox(0.0)
    loop.wake("bad/1")  # for something new
    assert loop._inbox.qsize() == 1


def test_accept_without_free_file_descriptors_pauses(hostile: HostileTenant, monkeypatch: pytest.MonkeyPatch) -> None:
    tenancy = hostile.rig.daemon._tenancies["bad"]
    naps: list[float] = []

    class Full:
        def accept(self) -> None:
            raise OSError(24, "too many open files")

    monkeypatch.setattr("aliquot.services.runtime.processes.registration.time.sleep", naps.append)
    door: Any = Full()
    full = registration.Tenancy(tenancy.tenant, tenancy.directory, tenancy.page, door)
    hostile.rig.daemon._registrar._accept(full)
    assert naps, "it does not ask again without a pause"


@settings(quick, max_examples=6)
@given(garbage=st.binary(min_size=1, max_size=2000))
def test_a_page_full_of_garbage_harms_no_tenant(hostile: HostileTenant, garbage: bytes) -> None:
    """Rounds go on, limits are the daemon's own, and what is told can be told."""
    shim = hostile.rig.registered(hostile.folder, 66)
    with open(hostile.folder / "page", "r+b") as page:
        page.write((garbage * (pages.SIZE // len(garbage) + 1))[: pages.SIZE])
    loop = hostile.rig.daemon._loops[UUIDS[0]]
    before = loop._published
    until(lambda: loop._published > before, "another round")
    standing = hostile.rig.standing("bad")
    assert standing.memory_limit == 10 << 30
    assert 0 <= standing.memory_used < 2**63
    assert 0.0 <= (standing.share or 0.0) <= 1.0
    assert hostile.rig.standing("good").share is not None
    shim.close()
    until(lambda: shim.pid not in hostile.rig.standing("bad").processes)
    hostile.rig.driver.calls.clear()


def _has_published(loop: CardLoop, before: float) -> bool:
    return loop._published > before


def test_a_truncated_page_harms_no_tenant(hostile: HostileTenant) -> None:
    shim = hostile.rig.registered(hostile.folder, 66)
    loop = hostile.rig.daemon._loops[UUIDS[0]]
    for left in (pages.SIZE - 1, 70, 0):
        os.truncate(hostile.folder / "page", left)
        before = loop._published
        until(partial(_has_published, loop, before), "a round")
    shim.close()
    hostile.is_in_order()


def test_a_page_made_longer_is_cut_before_it_fills_the_host(hostile: HostileTenant) -> None:
    shim = hostile.rig.registered(hostile.folder, 66)
    os.truncate(hostile.folder / "page", 1 << 40)
    until(lambda: os.stat(hostile.folder / "page").st_size == pages.SIZE, "the cut")
    assert hostile.rig.standing("bad").processes == (shim.pid,)
    shim.close()
    hostile.is_in_order()


def test_a_driver_that_hangs_on_one_group_holds_up_no_other_tenant(hostile: HostileTenant) -> None:
    """A card that fell off: who adds tenants and asks for findings is the agent's loop, which serves all the cards."""
    asked, over = threading.Event(), threading.Event()
    plain = hostile.rig.driver.uuid_of

    def hangs(group: rm.Group) -> str:
        if group.client == 66:
            asked.set()
            assert over.wait(10)
        return plain(group)

    hostile.rig.patch.setattr(rm, "uuid_of", hangs)
    shim = hostile.attack().hello().group(66, hostile.rig.rm_file).done(1)
    assert asked.wait(10)
    try:
        done = threading.Thread(target=hostile.rig.daemon.remove, args=("bad",), daemon=True)
        done.start()
        done.join(5)
        assert not done.is_alive(), "the lock is held while the driver is asked"
        hostile.rig.daemon.findings()
    finally:
        over.set()
    until(shim.ended, "the end of one whose tenant is gone")
    shim.close()
    until(lambda: hostile.rig.held_files() == 1, "the end of the file it had handed over")  # the good one's


def test_an_offline_tenant_that_claims_to_resume_by_itself_disturbs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes everything it can into its line all the time; online work keeps the card."""
    rig = Rig(tmp_path, monkeypatch)
    try:
        online = rig.registered(rig.tenant("on", AppClass.ONLINE), 11)
        offline = rig.registered(rig.tenant("off", AppClass.OFFLINE), 22)
        offline.launch()
        online.launch()
        until(lambda: not rig.driver.runs(22))
        before = len(rig.driver.calls)
        for at in range(150):
            offline.set(pages.GATE, at % 3)
            offline.set(pages.PAUSED, at % 2)
            offline.set(pages.WAKE, at % 2)
            offline.set(pages.LAUNCHES, at * 2**50, size=8)
            offline.set(pages.RESCUED, at)
            offline.say(link.WAKE, 0)
        assert not rig.driver.runs(22)
        assert len(rig.driver.calls) - before <= 6
        assert online.use().paused == online.use().gate == 0
    finally:
        rig.end()
