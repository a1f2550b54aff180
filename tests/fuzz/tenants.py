"""What a tenant says and writes: its link with the files it hands over, and its page, which changes under us."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from aliquot.adapters.gpu import link
from aliquot.adapters.gpu import page as pages
from aliquot.adapters.gpu.page import Page
from aliquot.adapters.host.handedfiles import discard
from aliquot.model.tenant import Allotment, Level
from kit.cards.arbiterd import SUBDEVICE, FakeShim, Rig, open_files, same_files, until

from .inputs import damaged
from .target import Check, Target, plain, refused

_WORDS = st.sampled_from([0, 1, 2, 15, 16, 127, 128, 129, 255, 256, SUBDEVICE, SUBDEVICE + 1, 2**31, 2**32 - 1])


def _message(kind: int, words: list[int]) -> bytes:
    return struct.pack(f"<I2H{len(words)}I", pages.MAGIC, pages.VERSION, kind, *words)


_GOOD = [
    _message(link.HELLO, [1, 0]),
    _message(link.GROUP, [66, 1, 0, SUBDEVICE, 1, 1, 2, 0, 7, 8]),
    _message(link.DONE, [1]),
    _message(link.WAKE, [0]),
]
messages = (
    st.sampled_from(_GOOD)
    | damaged(_GOOD)
    | st.builds(_message, st.integers(0, 6), st.lists(_WORDS, max_size=12))
    | st.builds(
        lambda count: _message(link.GROUP, [66, 1, 0, SUBDEVICE, 1, 1, count, 0, *range(count)]), st.integers(0, 140)
    )
    | st.binary(max_size=700)
)


def _parsed(said: tuple[bytes, int]) -> None:
    data, files = said
    try:
        found = link.parse(data, list(range(files)))
    except link.LinkError as error:
        refused(str(error))
        return
    match found:
        case link.Hello(_, slot):
            assert slot < pages.SLOTS
        case link.Wake(card):
            assert card < pages.CARDS
        case link.GroupSeen():
            assert 0 < len(found.channels) <= link.CHANNELS
            assert files == 1


# --- over a real socket, with files of every kind -------------------------------------------------------------------

KINDS = ("driver", "plain", "folder", "pipe", "null", "page", "path", "socket", "epoll", "memory", "itself")


def _opened(kind: str, folder: Path, connection: socket.socket) -> int:
    match kind:
        case "driver":
            return os.open(folder / "nvidiactl", os.O_RDONLY)
        case "plain":
            return os.open(folder / "plain", os.O_RDWR | os.O_CREAT)
        case "folder":
            return os.open(folder, os.O_RDONLY)
        case "path":
            return os.open(folder, os.O_PATH)
        case "page":
            return os.open(folder / "plain", os.O_RDONLY | os.O_CREAT)
        case "pipe":
            reading, writing = os.pipe()
            os.close(writing)
            return reading
        case "socket":
            ours, theirs = socket.socketpair()
            theirs.close()
            return ours.detach()
        case "epoll":
            return os.eventfd(0)
        case "memory":
            return os.memfd_create("handed")
        case "itself":
            return os.dup(connection.fileno())
    return os.open("/dev/null", os.O_RDWR)


files = st.lists(st.sampled_from(KINDS), max_size=3) | st.sampled_from([["null"] * 9, ["driver"]])
talks = st.lists(st.tuples(messages, files), max_size=12)


def _send(connection: socket.socket, folder: Path, data: bytes, kinds: list[str]) -> None:
    handed = [_opened(kind, folder, connection) for kind in kinds]
    try:
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            socket.send_fds(connection, [data], handed, socket.MSG_DONTWAIT)
    finally:
        for fd in handed:
            os.close(fd)


@contextlib.contextmanager
def _line() -> Iterator[Check]:
    with tempfile.TemporaryDirectory(prefix="alq-fuzz-") as name:
        folder = Path(name)
        (folder / "nvidiactl").touch()

        def check(talk: list[tuple[bytes, list[str]]]) -> None:
            before = open_files()
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with ours, theirs:
                ours.setblocking(False)
                for data, kinds in talk:
                    _send(theirs, folder, data, kinds)
                for _ in talk:
                    with contextlib.suppress(link.LinkError, BlockingIOError):
                        found = link.receive(ours)
                        if isinstance(found, link.GroupSeen):
                            discard(found.fd, 0)
            assert same_files(before)

        yield check


@contextlib.contextmanager
def _court() -> Iterator[Check]:
    """The whole arbiter, a hostile tenant and a good one: what the good one has stays as it is."""
    patch = pytest.MonkeyPatch()
    with tempfile.TemporaryDirectory(prefix="alq-fuzz-") as name:
        rig = Rig(Path(name), patch)
        bad, good = rig.tenant("bad"), rig.registered(rig.tenant("good"), 11)
        before = open_files()

        def check(talk: list[tuple[bytes, list[str]]]) -> None:
            shim = FakeShim(bad, rig.pid("bad"))
            for data, kinds in talk:
                _send(shim.sock, rig.folder, data, kinds)
            shim.close()
            until(lambda: open_files() == before, "the end of what was handed over")
            standing = rig.standing("good")
            assert (standing.processes, standing.level) == ((good.pid,), Level.HARDWARE)
            assert not good.ended()
            assert all(thread.is_alive() for thread in rig.daemon._threads)
            assert all(loop._thread.is_alive() for loop in rig.daemon._loops.values())

        try:
            yield check
        finally:
            rig.end()
            patch.undo()


# --- the page ---------------------------------------------------------------------------------------------------------

_OFFSETS = st.integers(0, pages.SIZE + 64) | st.integers(0, 64 + 16 * 128 + 3 * 1088)
_SIZES = st.sampled_from([0, 1, 63, 64, 4096, 100_000, pages.SIZE - 1, pages.SIZE, pages.SIZE * 2])
pokes = st.lists(
    st.one_of(
        st.tuples(st.just("write"), _OFFSETS, st.binary(min_size=1, max_size=64)),
        st.tuples(st.just("fill"), _OFFSETS, st.binary(min_size=1, max_size=1)),
        st.tuples(st.just("cut"), _SIZES, st.just(b"")),
        st.tuples(st.just("look"), st.integers(0, 11), st.just(b"")),
    ),
    max_size=30,
)


@contextlib.contextmanager
def _page() -> Iterator[Check]:
    with tempfile.TemporaryDirectory(prefix="alq-fuzz-") as name:
        path = Path(name, "page")

        def check(done: list[tuple[str, int, bytes]]) -> None:
            path.unlink(missing_ok=True)
            page = Page(path, [Allotment("GPU-0", 1 << 30), Allotment("GPU-1")])
            hostile = os.open(path, os.O_RDWR)
            try:
                for what, number, data in done:
                    _poke(page, hostile, what, number, data)
                for at in range(12):
                    _LOOKS[at](page)
            finally:
                os.close(hostile)
                page.close()

        yield check


def _poke(page: Page, hostile: int, what: str, number: int, data: bytes) -> None:
    match what:
        case "write":
            os.pwrite(hostile, data, number)
        case "fill":
            os.pwrite(hostile, data * (pages.SIZE - min(number, pages.SIZE)), number)
        case "cut":
            os.ftruncate(hostile, number)
        case _:
            _LOOKS[number](page)


def _sums(page: Page) -> None:
    for card in (0, pages.CARDS - 1):
        used, refused = page.totals(card)
        assert 0 <= used <= pages.MOST
        assert 0 <= refused <= pages.SLOTS * 2**32


_LOOKS: tuple[Callable[[Page], Any], ...] = (
    _sums,
    lambda page: page.use(0, 0),
    lambda page: page.use(pages.SLOTS - 1, pages.CARDS - 1),
    lambda page: page.sweep(),
    lambda page: [page.holder(slot) for slot in (0, 1, 255)],
    lambda page: page.set_gate(0, 0, closed=True),
    lambda page: page.set_gate(0, 0, closed=False),
    lambda page: page.beat(1, 2**63),
    lambda page: page.set_overhead(255, 15, 2**64 - 1),
    lambda page: [page.pid(slot) for slot in range(pages.SLOTS)],
    lambda page: page.is_longer(),
    lambda page: pages.cut(page.fileno()),
)

TARGETS: tuple[Target, ...] = (
    plain("link", st.tuples(messages, st.integers(0, 9)), _parsed, 200),
    Target("link-socket", talks, _line, 60),
    Target("registration", talks, _court, 12),
    Target("page", pokes, _page, 40),
)
