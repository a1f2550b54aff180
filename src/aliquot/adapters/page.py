"""The page that a tenant shares with the daemon: shim/abi.h, spelled once more (tests/shim/test_abi.py compares).

Plain reads and writes of aligned words; each has one writer, named in abi.h. What a tenant writes is read as counters
and nothing else: it is hostile ground.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
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

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
# offsets inside a card and inside a use
LIMIT, HEARTBEAT = 48, 56
MEMORY, OVERHEAD, LAUNCHES, WAITING, GATE, PAUSED, WAKE, REFUSED, RESCUED, BUSY, BUSY_SINCE = (
    0, 8, 16, 24, 28, 32, 36, 40, 44, 48, 56,
)  # fmt: skip


_FUTEX = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine)
_FUTEX_WAKE = 1


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
        self.uuids = tuple(each.uuid for each in allotments)
        self.index = {uuid: at for at, uuid in enumerate(self.uuids)}
        # Truncated to size, never replaced: running processes have it mapped.
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if os.fstat(self._fd).st_size < SIZE:
                os.ftruncate(self._fd, SIZE)
            self._map = mmap.mmap(self._fd, SIZE)
        except (OSError, ValueError) as error:
            os.close(self._fd)
            raise PageError(f"{path}: {error}") from error
        struct.pack_into("<2I", self._map, 8, len(allotments), SLOTS)
        for at, each in enumerate(allotments):
            limit = UNLIMITED if each.memory_bytes is None else each.memory_bytes
            struct.pack_into("<48sQ", self._map, _CARD_AT + at * _CARD_SIZE, each.uuid.encode()[:47], limit)
        struct.pack_into("<2I", self._map, 0, MAGIC, VERSION)

    def fileno(self) -> int:
        """The page's file."""
        return self._fd

    def close(self) -> None:
        """Unmap; the file stays."""
        self._map.close()
        os.close(self._fd)

    def beat(self, card: int, now_ns: int) -> None:
        """The daemon lives."""
        _U64.pack_into(self._map, _CARD_AT + card * _CARD_SIZE + HEARTBEAT, now_ns)

    def use(self, slot: int, card: int) -> Use:
        """What a process's line says."""
        return Use(*_USE.unpack_from(self._map, self._at(slot, card)))

    def set_word(self, slot: int, card: int, field: int, value: int) -> None:
        """One of the daemon's 32-bit words: GATE, PAUSED, WAKE."""
        _U32.pack_into(self._map, self._at(slot, card) + field, value)

    def set_gate(self, slot: int, card: int, *, closed: bool) -> None:
        """Close the gate, or open it and wake those who wait there."""
        at = self._at(slot, card) + GATE
        _U32.pack_into(self._map, at, closed)
        if not closed:
            _wake_waiters(self._map, at)

    def set_overhead(self, slot: int, card: int, value: int) -> None:
        """What the driver takes for the process beside its allocations."""
        _U64.pack_into(self._map, self._at(slot, card) + OVERHEAD, value)

    def pid(self, slot: int) -> int:
        """As the process sees itself; 0: the slot was never used."""
        return int(_U32.unpack_from(self._map, _SLOT_AT + slot * _SLOT_SIZE)[0])

    def used(self, card: int) -> int:
        """Bytes reserved on the card by all its processes, overhead included."""
        total = 0
        for slot in range(SLOTS):
            if self.pid(slot):
                memory, overhead = struct.unpack_from("<2Q", self._map, self._at(slot, card))
                total += memory + overhead
        return total

    def refused(self, card: int) -> int:
        """Allocations past the quota so far."""
        return sum(
            int(_U32.unpack_from(self._map, self._at(slot, card) + REFUSED)[0])
            for slot in range(SLOTS)
            if self.pid(slot)
        )

    def sweep(self) -> list[int]:
        """Clear the slots of the dead; the slots of the living.

        Whoever lives holds the lock of its byte; so whose lock can be had is dead, and nobody takes the slot meanwhile.
        """
        living = []
        for slot in range(SLOTS):
            if not self.pid(slot):
                continue
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
            except OSError:
                living.append(slot)
                continue
            self._map[self._at(slot, 0) : self._at(slot, CARDS)] = bytes(CARDS * _USE_SIZE)
            _U32.pack_into(self._map, _SLOT_AT + slot * _SLOT_SIZE, 0)
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, slot)
        return living

    @staticmethod
    def _at(slot: int, card: int) -> int:
        return _SLOT_AT + slot * _SLOT_SIZE + 64 + card * _USE_SIZE


def _wake_waiters(mapped: mmap.mmap, at: int) -> None:
    """Those who wait on the word. Without this they would look again by themselves, a tenth of a second later."""
    if _FUTEX is None:
        return
    word = ctypes.c_uint32.from_buffer(mapped, at)
    ctypes.CDLL(None).syscall(ctypes.c_long(_FUTEX), ctypes.byref(word), _FUTEX_WAKE, 2**31 - 1, None, None, 0)
    del word  # while it lives the page cannot be unmapped
