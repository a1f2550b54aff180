"""A file that a stranger hands over holds nobody up, however long its close takes."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aliquot.adapters.host import handedfiles
from aliquot.adapters.host.handedfiles import Connection, Listener, close_here, discard, is_behind, limit_files, release
from kit.running.lingering import SECONDS, hand_over, lingering, nested
from kit.running.scarcefiles import scarce_files

KINDS = {"stream": socket.SOCK_STREAM, "packets": socket.SOCK_SEQPACKET}


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < SECONDS / 2


@pytest.fixture(params=KINDS.values(), ids=list(KINDS))
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[Connection, socket.socket]]:
    """Ours, and the stranger's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, request.param)
    with Connection(fileno=ours.detach()) as connection, theirs:
        yield connection, theirs


def test_received_file_is_closed_without_waiting(ends: tuple[Connection, socket.socket]) -> None:
    ours, theirs = ends
    with lingering() as file, open(os.devnull) as null:
        hand_over(theirs, b"message", file, *[null.fileno()] * 100)
        with at_once():
            assert ours.recv(100) == b"message"


@pytest.mark.parametrize("receives", [True, False], ids=["received", "in the queue at the end"])
def test_file_that_comes_while_no_file_is_left_does_not_hold_us_up(
    ends: tuple[Connection, socket.socket], receives: bool
) -> None:
    """The kernel closes what it has no number for, inside of our call."""
    ours, theirs = ends
    with lingering() as file, open(os.devnull) as null:
        hand_over(theirs, b"message", file, *[null.fileno()] * 100)
        with scarce_files(0), at_once():
            if receives:
                assert ours.recv(100) == b"message"
            ours.close()


def test_file_of_a_message_that_nobody_received_does_not_hold_up_the_close(
    ends: tuple[Connection, socket.socket],
) -> None:
    ours, theirs = ends
    with lingering() as file:
        theirs.send(b"first")
        hand_over(theirs, b"second", file)
        with at_once():
            ours.close()


def test_file_behind_empty_packets_does_not_hold_up_the_close() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with lingering() as file, theirs:
        for _ in range(5):
            theirs.send(b"")
        hand_over(theirs, b"", file)
        with at_once():
            Connection(fileno=ours.detach()).close()


def test_file_in_the_queue_of_a_handed_socket_holds_nobody_up(ends: tuple[Connection, socket.socket]) -> None:
    """SO_LINGER cannot be taken from it: only the close in another thread helps."""
    ours, theirs = ends
    with lingering() as file:
        hand_over(theirs, b"message", nested(file))
        with at_once():
            ours.recv(100)
            ours.close()


def test_many_files_whose_close_hangs_are_all_left_to_threads() -> None:
    with contextlib.ExitStack() as stack, at_once():
        for _ in range(8):
            discard(nested(stack.enter_context(lingering())).detach(), 1)


@pytest.mark.parametrize("is_scarce", [False, True], ids=["usual", "no file is left"])
def test_connection_that_nobody_accepted_does_not_hold_up_the_end(tmp_path: Path, is_scarce: bool) -> None:
    listener = Listener(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(tmp_path / "sock"))
    listener.listen()
    with socket.socket(socket.AF_UNIX) as stranger, lingering() as file:
        stranger.connect(str(tmp_path / "sock"))
        hand_over(stranger, b"message", file)
        with scarce_files(0) if is_scarce else contextlib.nullcontext(), at_once():
            listener.close()


def test_kernel_refuses_files_where_it_can(tmp_path: Path) -> None:
    with Listener(socket.AF_UNIX, socket.SOCK_STREAM) as listener, open(os.devnull) as null:
        listener.refuse_files()
        listener.bind(str(tmp_path / "sock"))
        listener.listen()
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(tmp_path / "sock"))
            with listener.accept()[0] as accepted:
                try:
                    accepted.getsockopt(socket.SOL_SOCKET, handedfiles._SO_PASSRIGHTS)
                except OSError:
                    pytest.skip("Linux before 6.16")
                with pytest.raises(PermissionError):
                    socket.send_fds(stranger, [b"x"], [null.fileno()])
                stranger.send(b"y")
                assert accepted.recv(10) == b"y"


def test_released_connection_goes_on_in_another_copy() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        connection = Connection(fileno=ours.detach())
        with socket.socket(fileno=os.dup(connection.fileno())) as copy:
            release(connection)
            theirs.send(b"x")
            assert copy.recv(1) == b"x"


def test_discarded_files_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    monkeypatch.setattr(handedfiles, "_close", closed.append)
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(50)]
    for file in files:
        discard(file, 1)
    _until(lambda: len(closed) == 50)
    assert sorted(closed) == sorted(files)
    for file in files:
        os.close(file)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An owner whose files hang, as long as the test goes on, so many that more are waiting than may."""
    real, end, files = handedfiles._close, threading.Event(), set[int]()

    def close(file: int) -> None:
        if file in files:
            end.wait(60)
            files.discard(file)
        real(file)

    monkeypatch.setattr(handedfiles, "_close", close)
    owner = f"owner-{time.monotonic_ns()}"
    for _ in range(600):
        file = os.open(os.devnull, os.O_RDONLY)
        files.add(file)
        discard(file, owner)
    yield owner
    end.set()
    _until(lambda: not files)


def test_owner_whose_files_hang_holds_up_neither_us_nor_files_of_others(hanging: str) -> None:
    assert is_behind(hanging)
    reads, writes = os.pipe()
    discard(writes, "another")
    assert os.read(reads, 1) == b"", "it is closed"
    os.close(reads)
    assert not is_behind("another")
    before = threading.active_count()
    with at_once():
        for _ in range(600):
            discard(os.open(os.devnull, os.O_RDONLY), hanging)
    assert threading.active_count() == before


def test_nothing_more_is_received_of_an_owner_whose_files_hang(
    hanging: str, ends: tuple[Connection, socket.socket]
) -> None:
    ours, theirs = ends
    ours.owner = hanging
    with lingering() as file, open(os.devnull) as null:
        socket.send_fds(theirs, [b"first"], [null.fileno()])
        hand_over(theirs, b"second", file)
        before = len(os.listdir("/proc/self/fd"))
        with at_once():
            with pytest.raises(ConnectionAbortedError):
                ours.recv(100)
            ours.close()
        assert len(os.listdir("/proc/self/fd")) == before + 1, "of the second message nothing came"
        assert theirs.recv(1) == b"", "it is ended"


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_connections_without_files_of_an_owner_whose_files_hang_are_closed(hanging: str) -> None:
    before = _open_files()
    for kind in list(KINDS.values()) * 20:
        ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
        for message in (b"request", b"", b"more") if kind == socket.SOCK_SEQPACKET else (b"request",):
            theirs.send(message)
        connection = Connection(fileno=ours.detach())
        connection.owner = hanging
        connection.close()
        theirs.close()
    assert _open_files() == before


@pytest.mark.parametrize(("kind", "first"), [("packets", b""), ("packets", b"first"), ("stream", b"first")])
def test_files_behind_other_messages_of_such_an_owner_are_not_received(hanging: str, kind: str, first: bytes) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, KINDS[kind])
    with lingering() as file, theirs:
        theirs.send(first)
        hand_over(theirs, b"" if kind == "packets" else b"second", file)
        connection = Connection(fileno=ours.detach())
        connection.owner = hanging
        before = _open_files()
        with at_once():
            connection.close()
        assert _open_files() == before, "it waits for a thread, as a whole"


def test_the_end_of_a_connection_full_of_files_takes_no_more_than_may_wait(
    ends: tuple[Connection, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner is not behind when it begins."""
    ours, theirs = ends
    end = threading.Event()
    real = handedfiles._close
    monkeypatch.setattr(handedfiles, "_close", lambda file: (end.wait(60), real(file)))
    ours.owner = owner = f"owner-{time.monotonic_ns()}"
    before = _open_files()
    try:
        with open(os.devnull) as null:
            for _ in range(10):
                socket.send_fds(theirs, [b"x"], [null.fileno()] * 250)
        assert not is_behind(owner)
        ours.close()
        assert is_behind(owner)
        assert _open_files() < before + 512 + 2 * 253
    finally:
        end.set()
    _until(lambda: _open_files() < before + 10)


# The kernel keeps a TCP socket locked while it copies what is sent from memory: here from a page that never comes.
LOCKED = """
import ctypes, fcntl, mmap, os, socket, struct, sys, time
from aliquot.adapters.host.handedfiles import discard
listener = socket.create_server(("127.0.0.1", 0))
tcp = socket.create_connection(listener.getsockname())
accepted, _ = listener.accept()
if not (child := os.fork()):
    libc = ctypes.CDLL(None, use_errno=True)
    faults = libc.syscall(323, os.O_CLOEXEC)  # userfaultfd
    if faults < 0:
        os._exit(7)
    fcntl.ioctl(faults, 0xC018AA3F, struct.pack("3Q", 0xAA, 0, 0))
    memory = mmap.mmap(-1, 1 << 20)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    fcntl.ioctl(faults, 0xC020AA00, struct.pack("4Q", start, 1 << 20, 1, 0))
    print("sends", flush=True)
    tcp.send(memory)
    os._exit(8)
for _ in range(50):
    time.sleep(0.02)
    if os.waitpid(child, os.WNOHANG)[0]:
        sys.exit(7)
discard(os.dup(tcp.fileno()), 1)
time.sleep(0.5)  # other threads must run
os.kill(child, 9)
os.waitpid(child, 0)
print("goes on", flush=True)
os._exit(0)
"""


def test_a_handed_socket_that_its_maker_keeps_locked_stops_no_thread_of_ours() -> None:
    ran = subprocess.run([sys.executable, "-c", LOCKED], capture_output=True, text=True, timeout=30)
    if ran.returncode == 7:
        pytest.skip("userfaultfd is not allowed")
    assert (ran.returncode, ran.stdout) == (0, "sends\ngoes on\n"), ran.stderr


class Counting(Connection):
    """How often it is read at its end."""

    times = 0

    def recvmsg(self, *arguments: Any) -> Any:
        type(self).times += 1
        return super().recvmsg(*arguments)


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
@pytest.mark.parametrize("open_still", [False, True])
def test_close_reads_what_is_there_and_no_more(kind: int, open_still: bool) -> None:
    """Each command is a connection: a thousand reads at the end of each would hold the daemon up."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    Counting.times = 0
    with theirs:
        theirs.send(b"request")
        if not open_still:
            theirs.close()
        Counting(fileno=ours.detach()).close()
    assert Counting.times <= 3


def test_file_of_ones_own_session_is_closed_in_its_thread() -> None:
    reads, writes = os.pipe()
    close_here(writes)
    assert os.read(reads, 1) == b""
    os.close(reads)


def test_reserve_is_there_again_after_each_message(ends: tuple[Connection, socket.socket]) -> None:
    ours, theirs = ends
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 4096:
        pytest.skip("too few files are allowed to keep some, or any number")
    try:
        limit_files()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert (soft, hard) == (before[1] - 512, before[1])
        theirs.send(b"message")
        assert ours.recv(100) == b"message"
        with pytest.raises(BlockingIOError):
            ours.recv(100, socket.MSG_DONTWAIT)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
