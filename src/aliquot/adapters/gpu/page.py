"""The page that a tenant shares with the daemon: shim/abi.h, spelled once more (tests/shim/test_abi.py compares).

Plain reads and writes of aligned words; each has one writer, named in abi.h. What a tenant writes is read as counters
and nothing else: it is hostile ground. So is the file itself: its owner may cut it short at any time, and whoever then
touches the mapping dies (SIGBUS). So it is read through the file, where that is merely an empty page. To write through
it would be to wait for its owner, who has the file's lock for as long as it makes it longer (a third of a second for
each GiB): it is written through our own memory (/proc/self/mem), where what was cut off is merely an error.
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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aliquot.model.tenant import Allotment

MAGIC = 0x54514C41
VERSION = 1
CARDS = 16
SLOTS = 256
UNLIMITED = 2**64 - 1

_CARD_AT, _CARD_SIZE = 64, 128
_CARD = struct.Struct("<48sQQ")
_USE_SIZE = 64
_SLOT_AT = _CARD_AT + CARDS * _CARD_SIZE
_SLOT_SIZE = 64 + CARDS * _USE_SIZE
_USE = struct.Struct("<3Q6I2Q")
SIZE = _SLOT_AT + SLOTS * _SLOT_SIZE

_FLOCK = struct.Struct("@2h2qi4x")  # struct flock
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
MOST = 2**63 - 1  # no sum is told as more: whoever reads it may have 64 bits for it, and a tenant may claim anything
# offsets inside a card and inside a use
LIMIT, HEARTBEAT = 48, 56
MEMORY, OVERHEAD, LAUNCHES, WAITING, GATE, PAUSED, WAKE, REFUSED, RESCUED, BUSY, BUSY_SINCE = (
    0, 8, 16, 24, 28, 32, 36, 40, 44, 48, 56,
)  # fmt: skip


_FUTEX = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine)
_FUTEX_WAKE = 1
_libc = ctypes.CDLL(None)


class PageError(Exception):
    """The page is not what it should be."""


@dataclass(frozen=True, slots=True)
class Use:
    """One process on one card, as the page has it."""

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


class Page:
    """One tenant's page, mapped. Made by the daemon, found again by the next one."""

    def __init__(self, path: Path, allotments: Sequence[Allotment]) -> None:
        if len(allotments) > CARDS:
            raise PageError(f"a tenant may have {CARDS} cards, not {len(allotments)}")
        self.path = path
        self.trouble: OSError | None = None  # why something could not be written: its owner's doing, or a full disk
        self.uuids = tuple(allotment.uuid for allotment in allotments)
        self.index = {uuid: at for at, uuid in enumerate(self.uuids)}
        # Truncated to size, never replaced: running processes have it mapped.
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        except OSError as error:
            raise PageError(f"{path}: {error.strerror}") from error
        try:
            found = os.fstat(self._fd)
            if not stat.S_ISREG(found.st_mode):
                raise PageError(f"{path} is no plain file")
            if found.st_nlink > 1:  # the folder is its user's: a file that we may write and they may not, linked there
                raise PageError(f"{path} has another name too: it may be another's file")
            if os.fstat(self._fd).st_size < SIZE:
                os.posix_fallocate(self._fd, 0, SIZE)  # so that a full disk is noticed now
            self._map = mmap.mmap(self._fd, SIZE)
            self._memory = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
        except (OSError, ValueError, PageError) as error:
            os.close(self._fd)
            raise error if isinstance(error, PageError) else PageError(f"{path}: {error}") from error
        self._write(8, struct.pack("<2I", len(allotments), SLOTS))
        for at, each in enumerate(allotments):
            limit = UNLIMITED if each.memory_bytes is None else each.memory_bytes
            self._write(_CARD_AT + at * _CARD_SIZE, struct.pack("<48sQ", each.uuid.encode()[:47], limit))
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
            self._fd = -1  # by its old number another file may soon be known

    def beat(self, card: int, now_ns: int) -> None:
        """The daemon lives."""
        self._write(_CARD_AT + card * _CARD_SIZE + HEARTBEAT, _U64.pack(now_ns))

    def use(self, slot: int, card: int) -> Use:
        """What a process's line says."""
        return Use(*_USE.unpack(self._read(self._at(slot, card), _USE_SIZE)))

    def set_word(self, slot: int, card: int, field: int, value: int) -> None:
        """One of the daemon's 32-bit words: GATE, PAUSED, WAKE."""
        self._write(self._at(slot, card) + field, _U32.pack(value))

    def set_gate(self, slot: int, card: int, *, closed: bool) -> None:
        """Close the gate, or open it and wake those who wait there."""
        self.set_word(slot, card, GATE, closed)
        if not closed:
            _wake_waiters(self._map, self._at(slot, card) + GATE)

    def set_overhead(self, slot: int, card: int, value: int) -> None:
        """What the driver takes for the process beside its allocations."""
        self._write(self._at(slot, card) + OVERHEAD, _U64.pack(value))

    def pid(self, slot: int) -> int:
        """As the process sees itself; 0: the slot was never used."""
        return int(_U32.unpack(self._read(_SLOT_AT + slot * _SLOT_SIZE, _U32.size))[0])

    def totals(self, card: int) -> tuple[int, int]:
        """Bytes reserved on the card by all its processes, overhead included; and allocations past the quota so far."""
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

    def sweep(self, *, slots: int = SLOTS) -> list[int]:
        """Clear the slots of the dead, of the first so many; the slots of the living.

        Whoever lives holds the lock of its byte; so whose lock can be had is dead, and nobody takes the slot meanwhile.
        """
        living = []
        for slot in _taken(self._read(_SLOT_AT, slots * _SLOT_SIZE)):
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
            except OSError:
                living.append(slot)
                continue
            self._write(self._at(slot, 0), bytes(CARDS * _USE_SIZE))
            self._write(_SLOT_AT + slot * _SLOT_SIZE, bytes(_U32.size))
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, slot)
        return living

    def holder(self, slot: int) -> int | None:
        """Which process has the lock of that slot, as the kernel says. None: nobody, or none that a shim has taken. 0:
        it cannot be seen from here, nor in the /proc that we see."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, slot, 1, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_GETLK, asked))
        if kind == fcntl.F_UNLCK or pid < 0:
            return None
        return int(pid) or _holder_in_proc(os.fstat(self._fd), slot)

    def is_longer(self) -> bool:
        """Whether its owner made it longer: it is in the host's memory, and nothing else bounds it."""
        return os.fstat(self._fd).st_size > SIZE

    def _read(self, at: int, size: int) -> bytes:
        """What was cut off is empty."""
        return os.pread(self._fd, size, at).ljust(size, b"\0")

    def _write(self, at: int, data: bytes) -> None:
        """A tenant that makes this fail has lost its page; the others' must be written all the same."""
        here: ctypes.c_char | None = None
        try:
            if self._map.closed:  # its address may be another's by now
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            here = ctypes.c_char.from_buffer(self._map, at)
            os.pwrite(self._memory, data, ctypes.addressof(here))
            self.trouble = None
        except OSError as error:
            self.trouble = error
        finally:
            here = None  # while it lives the page cannot be unmapped, and the error keeps this frame

    @staticmethod
    def _at(slot: int, card: int) -> int:
        return _SLOT_AT + slot * _SLOT_SIZE + 64 + card * _USE_SIZE


def cut(file: int) -> None:
    """A page that its owner made longer, by another number of its file. Waits for as long as that owner is at it."""
    with contextlib.suppress(OSError):
        os.ftruncate(file, SIZE)


def _taken(slots: bytes) -> list[int]:
    """Which of them have an owner."""
    pids = memoryview(slots).cast("I")[:: _SLOT_SIZE // _U32.size].tolist()
    return [slot for slot, pid in enumerate(pids) if pid]


def _wake_waiters(mapped: mmap.mmap, at: int) -> None:
    """Those who wait on the word. Without this they would look again by themselves, a tenth of a second later."""
    if _FUTEX is None:
        return
    word = ctypes.c_uint32.from_buffer(mapped, at)
    _libc.syscall(ctypes.c_long(_FUTEX), ctypes.byref(word), _FUTEX_WAKE, 2**31 - 1, None, None, 0)
    del word  # while it lives the page cannot be unmapped


def _holder_in_proc(file: os.stat_result, at: int) -> int:
    """Who has that byte of the file locked, as /proc says, which may be the host's (movein.py). 0: nobody it knows.

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
