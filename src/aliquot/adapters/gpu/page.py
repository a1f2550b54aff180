"""The page that a tenant shares with the daemon: the layout of shim/abi.h in Python (tests/shim/test_abi.py compares).

Plain reads and writes of aligned words; each has one writer, named in abi.h. What a tenant writes may be hostile: it is
read as counters and nothing else. So is the file: its owner may truncate it at any time, and a process that touches the
mapping then dies (SIGBUS). So we read through the file, where a truncated page is merely empty. A write through it
would wait for its owner, who holds the file's lock while it makes the file longer (a third of a second per GiB): we
write through our own memory (/proc/self/mem), where a truncated page is merely an error.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import stat
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import NamedTuple

from aliquot.adapters.host import samemount
from aliquot.adapters.host.process.processes import is_shortage
from aliquot.model.tenant import Allotment

MAGIC = 0x54514C41
VERSION = 1
CARDS = 16
SLOTS = 256
UNLIMITED = 2**64 - 1

_CARD_AT, _CARD_SIZE = 64, 128
_CARD = struct.Struct("<48sQQ")
GAPS, GAP_NS = 24, 50_000  # lengths of gaps that are told apart, and the shortest
_GAPS = struct.Struct(f"<{GAPS}H")
_USE_SIZE = 64
_SLOT_AT = _CARD_AT + CARDS * _CARD_SIZE
_SLOT_SIZE = 64 + CARDS * _USE_SIZE
_USE = struct.Struct("<3Q6I2Q")
_MOVE_AT = _SLOT_AT + SLOTS * _SLOT_SIZE
_MOVE_SIZE = 64
_MOVE = struct.Struct("<4I2Q2I3Q")
SIZE = _MOVE_AT + SLOTS * CARDS * _MOVE_SIZE

LOOK = 0.02  # seconds of the processor for one sweep; one of all slots takes about a thousandth
_REST = 100  # times what a longer one took, before the next
_FLOCK = struct.Struct("@2h2qi4x")  # struct flock
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
MOST = 2**63 - 1  # no sum is reported as more: readers have 64 bits, and a tenant can claim anything
# offsets inside a card and inside a use
LIMIT, HEARTBEAT, PARKABLE, ROOM_MS, RESERVE, GAPS_AT = 48, 56, 64, 68, 72, 80
ORDER, WHY, ROOM = 0, 12, 56  # inside a move
KEPT_SHIFT, KEPT_UNIT = 8, 2 << 20  # of its `stays`
NO_ROOM = (1 << 64) - 1  # the answer to an allocation for which waiting would not help
MEMORY, OVERHEAD, LAUNCHES, WAITING, GATE, PAUSED, WAKE, REFUSED, RESCUED, BUSY, BUSY_SINCE = (
    0, 8, 16, 24, 28, 32, 36, 40, 44, 48, 56,
)  # fmt: skip


_FUTEX = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine)
_FUTEX_WAKE = 1
_libc = ctypes.CDLL(None)


class PageError(Exception):
    """The page cannot be used."""


class Use(NamedTuple):  # not a dataclass: read hundreds of times a second at rest, and four times as slow to make
    """What the page says of one process on one card."""

    memory: int
    overhead: int
    launches: int
    waiting: int
    gate: int
    paused: int
    wake: int
    refused: int
    rescued: int
    busy_ns: int
    busy_since_ns: int


class Order(IntEnum):
    """What a process shall do with its memory on a card."""

    STAY = 0
    LEAVE = 1
    RETURN = 2


class State(IntEnum):
    """Where that memory is."""

    RESIDENT = 0
    LEAVING = 1
    PARKED = 2
    RETURNING = 3
    LOST = 4


class Why(IntEnum):
    """Why an order was not obeyed, or something was not moved."""

    NOTHING = 0
    BUSY = 1  # a call did not come back in time
    CAPTURE = 2  # a CUDA graph is being captured
    POOL = 3  # the host's pool is full
    ROOM = 4  # the card is full
    ERROR = 5  # the driver failed
    MOVER = 6  # there is no mover, or it went away
    UNKNOWN = 7  # the mover does not have it: it is lost


class Stays(IntFlag):
    """Memory that cannot leave the card."""

    POOLED = 1  # stream-ordered: cudaMallocAsync
    SHARED = 2  # with other processes
    OTHER = 4  # arrays, managed memory, memory of graphs, what was allocated before it could be parked


@dataclass(frozen=True, slots=True)
class Move:
    """What the page says of the memory of one process on one card: is it there?"""

    order: int
    state: int
    wanted: int
    why: int
    movable: int
    parked: int
    moves: int
    stays: int  # a mask of `Stays`
    out_ns: int
    in_ns: int
    room: int
    kept: int = 0  # of `movable`: freed by the program and kept for later; given back instead of moved


class Page:
    """One tenant's page, mapped. The daemon makes it, and the next daemon adopts it."""

    def __init__(self, path: Path, allotments: Sequence[Allotment], *, folder: int | None = None) -> None:
        """`folder`: that of the path, open; None: it is ours. Raises PageError; OSError where we lack files."""
        if len(allotments) > CARDS:
            raise PageError(f"a tenant may have {CARDS} cards, not {len(allotments)}")
        self.path = path
        self._not_held: set[int] = set()  # slots that the looks so far found free, or of others
        self._not_before = 0.0  # when the next sweep may be; later if the last one took long
        self.trouble: OSError | None = None  # why a write failed: the owner truncated it, or the disk is full
        self.uuids = tuple(allotment.uuid for allotment in allotments)
        self.index = {uuid: at for at, uuid in enumerate(self.uuids)}
        # Truncated to size, never replaced: running processes have it mapped.
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK
            self._fd = (
                samemount.open_path(path, flags) if folder is None else samemount.open_in(folder, path.name, flags)
            )
        except OSError as error:
            if is_shortage(error):
                raise
            raise PageError(f"{path}: {error.strerror}") from error
        try:
            found = os.fstat(self._fd)
            if not stat.S_ISREG(found.st_mode):
                raise PageError(f"{path} is not a regular file")
            if found.st_nlink > 1:  # its user owns the folder, and may have linked a file there that only we can write
                raise PageError(f"{path} has another hard link: it may be another user's file")
            if os.fstat(self._fd).st_size < SIZE:
                os.posix_fallocate(self._fd, 0, SIZE)  # so that a full disk is noticed now
            self._map = mmap.mmap(self._fd, SIZE)
            self._memory = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
        except (OSError, ValueError, PageError) as error:
            os.close(self._fd)
            if isinstance(error, PageError) or (isinstance(error, OSError) and is_shortage(error)):
                raise
            raise PageError(f"{path}: {error}") from error
        self._write(8, struct.pack("<2I", len(allotments), SLOTS))
        for at, allotment in enumerate(allotments):
            limit = UNLIMITED if allotment.memory_bytes is None else allotment.memory_bytes
            self._write(_CARD_AT + at * _CARD_SIZE, struct.pack("<48sQ", allotment.uuid.encode()[:47], limit))
        self._write(0, struct.pack("<2I", MAGIC, VERSION))

    def fileno(self) -> int:
        """The page's file."""
        return self._fd

    def close(self) -> None:
        """Unmap; the file stays."""
        if self._fd >= 0:
            self._map.close()
            os.close(self._memory)
            os.close(self._fd)
            self._fd = -1  # the number may soon be another file's

    def beat(self, card: int, now_ns: int) -> None:
        """Write the daemon's heartbeat."""
        self._write(_CARD_AT + card * _CARD_SIZE + HEARTBEAT, _U64.pack(now_ns))

    def use(self, slot: int, card: int) -> Use:
        """The entry of a process and card."""
        return Use(*_USE.unpack(self._read(self._at(slot, card), _USE_SIZE)))

    def set_word(self, slot: int, card: int, field: int, value: int) -> None:
        """One of the daemon's 32-bit words: GATE, PAUSED, WAKE."""
        self._write(self._at(slot, card) + field, _U32.pack(value))

    def set_gate(self, slot: int, card: int, *, closed: bool) -> None:
        """Close the gate, or open it and wake the threads that wait there."""
        self.set_word(slot, card, GATE, closed)
        if not closed and not self._map.closed:  # its tenant may be gone already
            _wake_waiters(self._map, self._at(slot, card) + GATE)

    def gaps(self, card: int) -> tuple[int, ...]:
        """How often its processes came back to the card after so long, by length. They count round at 65,536."""
        return _GAPS.unpack(self._read(_CARD_AT + card * _CARD_SIZE + GAPS_AT, _GAPS.size))

    def set_parkable(self, card: int, parkable: bool) -> None:
        """Whether memory that its processes allocate from now on can leave the card."""
        self._write(_CARD_AT + card * _CARD_SIZE + PARKABLE, _U32.pack(parkable))

    def set_reserve(self, card: int, size: int) -> None:
        """Bytes of the card that memory which can leave does not take."""
        self._write(_CARD_AT + card * _CARD_SIZE + RESERVE, _U64.pack(size))

    def set_room_wait(self, card: int, seconds: float) -> None:
        """How long an allocation waits for room that others have."""
        self._write(_CARD_AT + card * _CARD_SIZE + ROOM_MS, _U32.pack(round(seconds * 1000)))

    def move(self, slot: int, card: int) -> Move:
        """The memory of a process on a card."""
        read = _MOVE.unpack(self._read(self._move_at(slot, card), _MOVE.size))
        order, state, wanted, why, movable, parked, moves, stays, out_ns, in_ns, room = read
        kept = (stays >> KEPT_SHIFT) * KEPT_UNIT
        stays &= (1 << KEPT_SHIFT) - 1
        room = 0 if room == NO_ROOM else room
        return Move(order, state, wanted, why, movable, parked, moves, stays, out_ns, in_ns, room, kept)

    def refuse_room(self, slot: int, card: int) -> None:
        """Have its allocation fail now, as it would without us."""
        self._write(self._move_at(slot, card) + ROOM, _U64.pack(NO_ROOM))

    def order(self, slot: int, card: int, order: int) -> None:
        """Have its memory stay, leave or return."""
        at = self._move_at(slot, card)
        self._write(at + WHY, _U32.pack(0))
        self._write(at + ORDER, _U32.pack(order))
        _wake_waiters(self._map, at + ORDER)

    def set_overhead(self, slot: int, card: int, value: int) -> None:
        """What the driver uses for the process in addition to its allocations."""
        self._write(self._at(slot, card) + OVERHEAD, _U64.pack(value))

    def serial(self, slot: int) -> int:
        """Counts the owners that the slot has had."""
        return int(_U32.unpack(self._read(_SLOT_AT + slot * _SLOT_SIZE + 4, _U32.size))[0])

    def pid(self, slot: int) -> int:
        """The pid in the process's own namespace; 0: the slot was never used."""
        return int(_U32.unpack(self._read(_SLOT_AT + slot * _SLOT_SIZE, _U32.size))[0])

    def totals(self, card: int) -> tuple[int, int]:
        """Bytes that all its processes use on the card, with overhead; and allocations refused so far."""
        slots = self._read(_SLOT_AT, SLOTS * _SLOT_SIZE)
        used = refused = 0
        for slot in _taken(slots):
            at = self._at(slot, card) - _SLOT_AT
            use = Use(*_USE.unpack_from(slots, at))
            used, refused = used + use.memory + use.overhead, refused + use.refused
        return min(MOST, used), refused

    def used(self, card: int) -> int:
        """The first of the totals."""
        return self.totals(card)[0]

    def refused(self, card: int) -> int:
        """The second."""
        return self.totals(card)[1]

    def sweep(self, *, slots: int = SLOTS, seconds: float = LOOK) -> list[int]:
        """Clear the slots of dead processes among the first so many; returns the slots of living ones.

        A living process holds the lock of its byte. If we get the lock, the process is dead, and no other takes the
        slot while we hold it. The kernel goes through all locks of the file each time, and its owner may have taken any
        number of them (3 ms with 20,000): beyond so many seconds of the processor the rest of the slots counts as
        living, and where that took the usual time, for a while.
        """
        living, taken = [], _taken(self._read(_SLOT_AT, slots * _SLOT_SIZE))
        if time.monotonic() < self._not_before:
            return taken
        began = time.thread_time()
        for at, slot in enumerate(taken):
            if time.thread_time() - began >= seconds:
                living += taken[at:]
                break
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
            except OSError:
                living.append(slot)
                continue
            self._write(self._at(slot, 0), bytes(CARDS * _USE_SIZE))
            self._write(self._move_at(slot, 0), bytes(CARDS * _MOVE_SIZE))
            self._write(_SLOT_AT + slot * _SLOT_SIZE, bytes(_U32.size))
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, slot)
        if (took := time.thread_time() - began) > LOOK:
            self._not_before = time.monotonic() + _REST * took
        return living

    def may_be_held(self, slots: Sequence[int], by: Callable[[int], bool], *, seconds: float = LOOK) -> bool:
        """Whether one of the processes that `by` says yes to may hold the lock of one of these slots: one that is not
        visible may. A look has so many seconds of the processor. The next one goes on with the slots that are left;
        until all are seen the answer is yes."""
        spent = 0.0
        for slot in slots:
            if slot in self._not_held:
                continue
            if spent > seconds:
                return True
            began = time.thread_time()
            pid = self.holder(slot)
            spent += time.thread_time() - began
            if pid is not None and (pid == 0 or by(pid)):
                self._not_held.clear()
                return True
            self._not_held.add(slot)
        self._not_held.clear()
        return False

    def holder(self, slot: int) -> int | None:
        """The process that holds the lock of that slot, as the kernel says. None: no process, or not by a shim. 0: a
        process that is visible neither here nor in the /proc that we see."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, slot, 1, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_GETLK, asked))
        if kind == fcntl.F_UNLCK or pid < 0:
            return None
        return int(pid) or _holder_in_proc(os.fstat(self._fd), slot)

    def is_longer(self) -> bool:
        """Whether its owner made it longer: the file is in the host's memory, and nothing else limits it."""
        return os.fstat(self._fd).st_size > SIZE

    def _read(self, at: int, size: int) -> bytes:
        """Zeros, where the file was truncated."""
        return os.pread(self._fd, size, at).ljust(size, b"\0")

    def _write(self, at: int, data: bytes) -> None:
        """Errors go to `trouble`: a tenant that makes this fail must not keep us from writing the others' pages."""
        here: ctypes.c_char | None = None
        try:
            if self._map.closed:  # the address may be reused by now
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            here = ctypes.c_char.from_buffer(self._map, at)
            os.pwrite(self._memory, data, ctypes.addressof(here))
            self.trouble = None
        except OSError as error:
            self.trouble = error
        finally:
            here = None  # it keeps the page mapped, and the error keeps this frame

    @staticmethod
    def _move_at(slot: int, card: int) -> int:
        return _MOVE_AT + (slot * CARDS + card) * _MOVE_SIZE

    @staticmethod
    def _at(slot: int, card: int) -> int:
        return _SLOT_AT + slot * _SLOT_SIZE + 64 + card * _USE_SIZE


def cut(file: int) -> None:
    """Truncate a page that its owner made longer, by a dup of its file. Waits while the owner extends it."""
    with contextlib.suppress(OSError):
        os.ftruncate(file, SIZE)


def _taken(slots: bytes) -> list[int]:
    """The slots that have an owner."""
    pids = memoryview(slots).cast("I")[:: _SLOT_SIZE // _U32.size].tolist()
    return [slot for slot, pid in enumerate(pids) if pid]


def _wake_waiters(mapped: mmap.mmap, at: int) -> None:
    """Wake the threads that wait on the word. Without this they would poll, a tenth of a second later."""
    if _FUTEX is None:
        return
    word = ctypes.c_uint32.from_buffer(mapped, at)
    _libc.syscall(ctypes.c_long(_FUTEX), ctypes.byref(word), _FUTEX_WAKE, 2**31 - 1, None, None, 0)
    del word  # it keeps the page mapped


def _holder_in_proc(file: os.stat_result, at: int) -> int:
    """The process that locked that byte of the file, from /proc, which may be the host's (hostmounts.py). 0: unknown.

    By device and inode: any tenant can lock a file of its own that has the inode's number on another device.
    """
    which = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    try:
        with open("/proc/locks") as locks:
            lines = [line.split() for line in locks]
    except OSError:
        return 0
    for words in lines:  # 1: POSIX  ADVISORY  WRITE 4711 00:1b:1234 3 3
        if len(words) == 8 and words[1] == "POSIX" and words[5] == which:
            first, last = int(words[6]), words[7]
            if first <= at and (last == "EOF" or at <= int(last)):
                return max(0, int(words[4]))
    return 0
