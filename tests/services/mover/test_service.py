"""Parts of the pool go to another tenant only when nothing reads them any more. The card is a stand-in whose copies are
done when the test says so."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from aliquot.adapters.gpu.page import MAGIC, VERSION, Why
from aliquot.services.daemon.connections import FairShare
from aliquot.services.mover import control, wire
from aliquot.services.mover.cuda import Card
from aliquot.services.mover.main import Process
from aliquot.services.mover.pool import UNIT, PoolFullError
from aliquot.services.mover.service import Mover
from aliquot.services.mover.store import Key, Store

CARD = "GPU-0"
KEY = Key("a", 0, 1, CARD)
OTHER = Key("b", 0, 1, CARD)
PATIENCE = 60.0


class _Card:
    def __init__(self) -> None:
        self.done, self.waits = threading.Event(), threading.Semaphore(0)
        self.broken = False

    def enter(self) -> None: ...
    def close(self) -> None: ...
    def end(self, stream: object) -> None: ...

    def stream(self) -> object:
        return object()

    def open(self, file: int, size: int) -> _Card:
        if self.broken:
            raise RuntimeError("not foreseen")
        return self

    def copy(self, *_: object, out: bool) -> None: ...

    def wait(self, stream: object) -> None:
        self.waits.release()
        assert self.done.wait(PATIENCE)


@pytest.fixture
def mover(tmp_path: Path) -> Mover:
    """Its pool has room for two pieces."""
    made = Mover(Store(tmp_path, 2 * UNIT))
    made.add_memory(0, 2 * UNIT)
    made.permit("a", CARD, permitted=True)
    return made


def keep(mover: Mover, key: Key, *pieces: int) -> None:
    mover.keep(key, mover.reserve(key, [(piece, UNIT) for piece in pieces]))


def twice_returned(mover: Mover) -> None:
    """Two packets name the same piece, and the first is answered."""
    found = mover.find(KEY, [(1, UNIT)])
    assert found is not None
    mover.read(found)
    mover.returned(KEY, found)


def left_again(mover: Mover) -> None:
    """By another connection."""
    keep(mover, KEY, 1)


def ended(mover: Mover) -> None:
    mover.only([("a", 0, 2)], None)


@pytest.mark.parametrize("give_back", [twice_returned, left_again, ended])
def test_parts_that_are_read_are_free_only_when_that_is_over(mover: Mover, give_back: Callable[[Mover], None]) -> None:
    keep(mover, KEY, 1)
    found = mover.find(KEY, [(1, UNIT)])
    assert found is not None
    give_back(mover)
    with pytest.raises(PoolFullError):
        mover.reserve(OTHER, [(1, UNIT), (2, UNIT)])
    free = mover.free()
    mover.read(found)
    assert mover.free() == free + UNIT
    mover.only([], None)
    assert mover.free() == 2 * UNIT


def test_memory_that_is_added_is_without_parts_that_are_still_read(tmp_path: Path) -> None:
    before = Mover(Store(tmp_path, 2 * UNIT))
    before.add_memory(0, 2 * UNIT)
    keep(before, KEY, 1)
    mover = Mover(Store(tmp_path, 2 * UNIT))
    found = mover.find(KEY, [(1, UNIT)])
    assert found is not None
    mover.only([], None)
    mover.add_memory(0, 2 * UNIT)
    assert mover.free() == UNIT
    mover.read(found)
    assert mover.free() == 2 * UNIT


def test_piece_waits_for_memory_that_the_pool_still_gets(tmp_path: Path) -> None:
    mover = Mover(Store(tmp_path, 2 * UNIT))
    assert mover.free() == 2 * UNIT  # soon
    later = threading.Timer(0.2, mover.add_memory, (0, UNIT))
    later.start()
    keep(mover, KEY, 1)
    later.join()
    assert mover.free() == UNIT
    mover.has_grown()  # there was no more
    assert mover.free() == 0
    with pytest.raises(PoolFullError):
        keep(mover, KEY, 2)


def test_pieces_that_are_not_all_here_are_not_marked(mover: Mover) -> None:
    keep(mover, KEY, 1)
    assert mover.find(KEY, [(1, UNIT), (2, UNIT)]) is None
    mover.only([], None)
    assert mover.free() == 2 * UNIT


@contextmanager
def session(mover: Mover, card: _Card) -> Iterator[socket.socket]:
    shim, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    shim.settimeout(PATIENCE)
    thread = threading.Thread(target=mover.serve, args=(ours, KEY, cast("Card", card)))
    thread.start()
    try:
        assert shim.recv(100) == wire.answer(Why.NOTHING)
        yield shim
    finally:
        shim.close()
        card.done.set()
        thread.join(PATIENCE)
    assert not thread.is_alive()


def ask(shim: socket.socket, kind: int, piece: int) -> None:
    packet = wire._HEAD.pack(MAGIC, VERSION, kind) + wire._COUNTS.pack(1, 0) + wire._PIECE.pack(piece, 0, UNIT)
    file = os.open("/dev/null", os.O_RDONLY)
    socket.send_fds(shim, [packet], [file])
    os.close(file)


def test_session_that_is_left_while_it_copies_waits_and_then_gives_back(mover: Mover) -> None:
    keep(mover, KEY, 1)
    card = _Card()
    with session(mover, card) as shim:
        ask(shim, wire.IN, 1)
        assert card.waits.acquire(timeout=PATIENCE)
        mover.only([], None)
        assert mover.free() == UNIT
    assert mover.free() == 2 * UNIT


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_session_that_fails_unforeseen_gives_back(mover: Mover) -> None:
    keep(mover, KEY, 1)
    card = _Card()
    card.broken = True
    card.done.set()
    with session(mover, card) as shim:
        ask(shim, wire.IN, 1)
        assert shim.recv(100) == b""
    mover.only([], None)
    assert mover.free() == 2 * UNIT


def test_piece_returns_and_its_part_is_free(mover: Mover) -> None:
    card = _Card()
    card.done.set()
    with session(mover, card) as shim:
        for kind, free in ((wire.OUT, UNIT), (wire.IN, 2 * UNIT)):
            ask(shim, kind, 1)
            assert shim.recv(100) == wire.answer(Why.NOTHING)
            ask(shim, wire.IN, 9)  # answered when the one before is over
            assert shim.recv(100) == wire.answer(Why.UNKNOWN)
            assert mover.free() == free


def test_tenant_that_may_add_nothing_gets_back_what_is_kept(mover: Mover) -> None:
    """With its next connection it may have another limit, so this one ends."""
    keep(mover, KEY, 1)
    mover.limits["a", CARD] = 0
    card = _Card()
    card.done.set()
    with session(mover, card) as shim:
        ask(shim, wire.IN, 1)
        assert shim.recv(100) == wire.answer(Why.NOTHING)
        ask(shim, wire.OUT, 1)
        assert shim.recv(100) == b""
    assert mover.free() == 2 * UNIT


# --- connections that the daemon hands over ---------------------------------------------------------------------------


def connect(
    process: Process, serial: int, *, slot: int = 0, tenant: str = "a", owner: int | None = None
) -> socket.socket:
    shim, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    shim.settimeout(PATIENCE)
    process._handle(control.Leave(tenant, CARD, permitted=True), [])
    with theirs:
        process._handle(control.Serve(tenant, slot, serial, CARD, None, owner), [theirs.fileno()])
    return shim


def test_process_has_one_connection_for_each_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process, card = Process(tmp_path, 2 * UNIT), _Card()
    process._cards[CARD] = cast("Card", card)
    process._mover.add_memory(0, 2 * UNIT)
    with connect(process, 1) as first, connect(process, 2) as second:
        assert (first.recv(100), first.recv(100)) in ((wire.answer(Why.NOTHING), b""), (b"", b""))
        assert second.recv(100) == wire.answer(Why.NOTHING)
        ask(second, wire.OUT, 1)
        assert card.waits.acquire(timeout=PATIENCE)
        with connect(process, 3) as third:
            assert third.recv(100) == wire.answer(Why.MOVER)  # the one before still copies
        card.done.set()
        process._sessions["a", 0, CARD].thread.join(PATIENCE)

        def no_thread(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            with connect(process, 4) as fourth:
                assert fourth.recv(100) == wire.answer(Why.MOVER)
        assert not process._sessions
        with connect(process, 5) as fifth:
            assert fifth.recv(100) == wire.answer(Why.NOTHING)
            thread = process._sessions["a", 0, CARD].thread
        thread.join(PATIENCE)


def test_session_works_with_file_numbers_above_1023(mover: Mover) -> None:
    """A thousand tenants on a node, or one that connects as often, and no memory could move any more."""
    card = _Card()
    card.done.set()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    try:
        with contextlib.ExitStack() as files:
            for _ in range(1024):
                files.callback(os.close, os.open("/dev/null", os.O_RDONLY))
            with session(mover, card) as shim:
                assert shim.fileno() > 1023
                ask(shim, wire.OUT, 1)
                assert shim.recv(100) == wire.answer(Why.NOTHING)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_process_that_takes_one_slot_after_the_other_has_one_session(tmp_path: Path) -> None:
    process = Process(tmp_path, 2 * UNIT)
    process._cards[CARD] = cast("Card", _Card())
    with contextlib.ExitStack() as shims:
        made: list[socket.socket] = []
        for slot in range(5):
            made.append(shims.enter_context(connect(process, 1, slot=slot)))
            assert made[-1].recv(100) == wire.answer(Why.NOTHING)
        assert [shim.recv(100) for shim in made[:-1]] == [b""] * 4
        other = shims.enter_context(connect(process, 1, tenant="b"))
        assert other.recv(100) == wire.answer(Why.NOTHING)
        alive = {which for which, one in process._sessions.items() if one.thread.is_alive()}
        assert {("a", 4, CARD), ("b", 0, CARD)} <= alive


def test_sessions_of_one_user_leave_room_for_others(tmp_path: Path) -> None:
    process = Process(tmp_path, 2 * UNIT)
    process._cards[CARD] = cast("Card", _Card())
    process._shares = FairShare(10, 3)
    with contextlib.ExitStack() as shims:

        def answers(owner: int, runs: str) -> list[bytes]:
            made = [shims.enter_context(connect(process, 1, tenant=run, owner=owner)) for run in runs]
            return [shim.recv(100) for shim in made]

        served, refused = wire.answer(Why.NOTHING), wire.answer(Why.MOVER)
        assert answers(4711, "abcde") == [served] * 3 + [refused] * 2
        assert answers(4712, "fg") == [served] * 2
        thread = process._sessions["a", 0, CARD].thread
        process._sessions["a", 0, CARD].hang_up()
        thread.join(PATIENCE)
        assert answers(4711, "e") == [served], "one has ended"
    for found in list(process._sessions.values()):
        found.thread.join(PATIENCE)
    assert process._shares.held(4711) == process._shares.held(4712) == 0


# --- tenants that want more than their part ---------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["never", "other tenant", "other card", "withdrawn", "all ended"])
def test_memory_that_was_not_ordered_to_leave_is_not_taken(mover: Mover, end: str) -> None:
    """A program could fill the pool, and no other tenant could be parked."""
    mover.permit("a", CARD, permitted=end in ("withdrawn", "all ended"))
    if end == "other tenant":
        mover.permit("b", CARD, permitted=True)
    elif end == "other card":
        mover.permit("a", "GPU-1", permitted=True)
    elif end == "withdrawn":
        mover.permit("a", CARD, permitted=False)
    elif end == "all ended":
        mover.only([], None)
    card = _Card()
    card.done.set()
    with session(mover, card) as shim:
        for piece in range(1, 4):
            ask(shim, wire.OUT, piece)
            assert shim.recv(100) == wire.answer(Why.BUSY)
        assert mover.free() == 2 * UNIT
        mover.permit("a", CARD, permitted=True)
        ask(shim, wire.OUT, 1)
        assert shim.recv(100) == wire.answer(Why.NOTHING)
        mover.permit("a", CARD, permitted=False)
        ask(shim, wire.IN, 1)  # what is kept comes back at any time
        assert shim.recv(100) == wire.answer(Why.NOTHING)


def test_what_leaves_now_counts_towards_the_limit(mover: Mover) -> None:
    """Nothing is copied yet, and a tenant can have many connections, and leave answers unread."""
    mover.limits["a", CARD] = UNIT
    made = mover.reserve(KEY, [(1, UNIT)])
    with pytest.raises(PoolFullError):
        mover.reserve(Key("a", 1, 1, CARD), [(1, UNIT)])
    mover.give_up(KEY, made)
    keep(mover, KEY, 1)
    with pytest.raises(PoolFullError):
        mover.reserve(KEY, [(2, UNIT)])
    mover.only([], None)
    keep(mover, KEY, 2)
    assert mover.free() == UNIT


def test_tenant_that_reads_no_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aliquot.services.mover.main._UNREAD", struct.pack("@2l", 0, 200_000))
    process, card = Process(tmp_path, 2 * UNIT), _Card()
    process._cards[CARD] = cast("Card", card)
    card.done.set()
    process._mover.add_memory(0, 2 * UNIT)
    with connect(process, 1) as shim:
        shim.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        shim.settimeout(1.0)
        with contextlib.suppress(OSError):
            for _ in range(100_000):
                ask(shim, wire.OUT, 1)
        thread = process._sessions["a", 0, CARD].thread
        thread.join(PATIENCE)
        assert not thread.is_alive()
        process._mover.only([], None)
        assert process._mover.free() == 2 * UNIT


def test_daemon_does_not_wait_for_a_connection_that_still_copies(tmp_path: Path) -> None:
    """A tenant can connect as often as it likes: the daemon's other requests are answered meanwhile."""
    process, card = Process(tmp_path, 2 * UNIT), _Card()
    process._cards[CARD] = cast("Card", card)
    process._mover.add_memory(0, 2 * UNIT)
    with connect(process, 1) as first, contextlib.ExitStack() as others:
        assert first.recv(100) == wire.answer(Why.NOTHING)
        ask(first, wire.OUT, 1)
        assert card.waits.acquire(timeout=PATIENCE)
        began = time.monotonic()
        shims = [others.enter_context(connect(process, serial)) for serial in range(2, 12)]
        assert time.monotonic() - began < 0.9
        assert [shim.recv(100) for shim in shims] == [wire.answer(Why.MOVER)] * 10
        former = process._sessions["a", 0, CARD].thread
        card.done.set()
        former.join(PATIENCE)
        last = others.enter_context(connect(process, 12))
        assert last.recv(100) == wire.answer(Why.NOTHING)


def test_only_the_tenants_that_there_are_keep_anything(mover: Mover) -> None:
    keep(mover, KEY, 1)
    keep(mover, OTHER, 1)
    mover.only_of(["b"])
    assert list(mover.kept) == [OTHER]
