"""The pool's memory, a file on a tmpfs, and a log for each process of which pieces are where in it.

The log is written before a shim hears that its pieces were kept, and after it heard that they are back. So a mover that
dies at any line leaves either a piece on the card, or one in the pool that is written down, or both.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import logging
import mmap
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from aliquot.services.mover.pool import CHUNK, UNIT, Part, without

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE: unlike a write, it fails where a tmpfs is full
_SHORT = 1 << 16  # bytes of a log that are never too many
_FRESH = ".fresh"  # no name of a log: what is left of one is removed at the next start
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Key:
    """A process on a card, by tenant, slot and serial on its tenant's page, and the card's UUID."""

    tenant: str
    slot: int
    serial: int
    card: str

    @property
    def file(self) -> str:
        """The name of its log. Raises ValueError for a name that is none."""
        if not _NAME.fullmatch(self.tenant) or not _NAME.fullmatch(self.card):
            raise ValueError(f"tenant {self.tenant!r} on card {self.card!r}")
        return f"{self.tenant}@{self.slot}@{self.serial}@{self.card}"

    @classmethod
    def of_file(cls, name: str) -> Key:
        """Raises ValueError."""
        tenant, slot, serial, card = name.split("@")
        return cls(tenant, int(slot), int(serial), card)


@dataclass(frozen=True, slots=True)
class Kept:
    """A piece in the pool."""

    size: int
    parts: tuple[Part, ...]


class Store:
    """A folder on a tmpfs. One mover has it at a time: its process holds a lock."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        self._logs = folder / "parked"
        self._logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._open: dict[Key, int] = {}
        self._most: dict[Key, int] = {}  # bytes of a log until it is written anew
        self._file = os.open(folder / "memory", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._check_identity()
        self.size = max(size // UNIT * UNIT, os.fstat(self._file).st_size)
        os.ftruncate(self._file, self.size)
        self._map = mmap.mmap(self._file, self.size) if self.size else None
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map)) if self._map is not None else 0

    def _check_identity(self) -> None:
        """Forget what was kept in another file: that memory is lost, and nothing here may pass for it."""
        found = os.fstat(self._file)
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        identity = f"{boot} {found.st_dev} {found.st_ino}"
        path = self.folder / "identity"
        known = path.read_text() if path.exists() else ""
        if known != identity:
            for log in self._logs.iterdir():
                log.unlink()
            fresh = path.with_name(".identity")
            fresh.write_text(identity)
            fresh.replace(path)

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Offset and size of each chunk."""
        for offset in range(0, self.size, CHUNK):
            yield offset, min(CHUNK, self.size - offset)

    def populate(self, offset: int, size: int) -> None:
        """Have the kernel give memory to that part of the file. Raises OSError: there is no more."""
        if self._libc.madvise(ctypes.c_void_p(self.address + offset), ctypes.c_size_t(size), _POPULATE_WRITE):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def discard(self) -> None:
        """Give the memory back to the host. Only when nothing is kept."""
        with contextlib.suppress(OSError):
            (self.folder / "memory").unlink()

    # --- what is kept -------------------------------------------------------------------------------------------

    def kept(self) -> dict[Key, dict[int, Kept]]:
        """What the logs say. A last line that was cut short was never confirmed.

        Where a log cannot be read, its process has lost what was kept: parts that it names may hold another's bytes by
        now. What no other log names of them stays taken until the process ends, under numbers that no shim can send.
        """
        found: dict[Key, dict[int, Kept]] = {}
        unreadable: dict[Key, bytes] = {}
        for log in sorted(self._logs.iterdir()):
            try:
                key = Key.of_file(log.name)
                key.file  # noqa: B018 - a name that is none
            except ValueError:
                log.unlink()
                continue
            data = log.read_bytes()
            if not data.endswith(b"\n"):  # or the next line would be appended to half of one
                data = data[: data.rfind(b"\n") + 1]
                os.truncate(log, len(data))
            try:
                found[key] = _replay(data)
            except (ValueError, TypeError) as error:
                _log.error("move_log_unreadable", extra={"data": {"log": log.name, "why": str(error)}})
                unreadable[key] = data
        taken = [part for pieces in found.values() for kept in pieces.values() for part in kept.parts]
        for key, data in unreadable.items():
            rest = [left for part in _parts(data) for left in _take(part, taken)]
            found[key] = {-number: Kept(part.size, (part,)) for number, part in enumerate(rest, 1)}
            os.truncate(self._logs / key.file, 0)  # what is kept for it from now on can be read again
            with contextlib.suppress(OSError):
                self.write_kept(key, found[key])
        return found

    def write_kept(self, key: Key, pieces: Mapping[int, Kept]) -> None:
        """Before the shim hears of it. Raises OSError."""
        self._append(key, _lines(pieces))

    def write_returned(self, key: Key, pieces: Mapping[int, Kept], *, left: int) -> None:
        """After the shim heard of it; `left`: how many others are still kept. Raises OSError."""
        if left:
            self._append(key, _encoded([piece] for piece in pieces))
        else:
            self.forget(key)

    def shorten(self, key: Key, pieces: Mapping[int, Kept]) -> None:
        """Write the log anew if most of it is over: a process can move a piece out and back as often as it likes. If
        there is no room for that, it is tried again when the log has twice the size."""
        file = self._open.get(key)
        if file is None or (size := os.fstat(file).st_size) <= self._most.get(key, _SHORT):
            return
        fresh = self._logs / _FRESH
        data = _lines(pieces)
        try:
            fresh.write_bytes(data)
            fresh.replace(self._logs / key.file)
        except OSError as error:
            _log.warning("move_log_long", extra={"data": {"log": key.file, "bytes": size, "why": str(error)}})
            self._most[key] = 2 * size
            return
        os.close(self._open.pop(key))
        self._most[key] = max(_SHORT, 4 * len(data))

    def forget(self, key: Key) -> None:
        """Remove its log."""
        self._most.pop(key, None)
        file = self._open.pop(key, None)
        if file is not None:
            os.close(file)
        with contextlib.suppress(FileNotFoundError):
            (self._logs / key.file).unlink()

    def _append(self, key: Key, data: bytes) -> None:
        file = self._open.get(key)
        if file is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            file = self._open[key] = os.open(self._logs / key.file, flags, 0o600)
        before, written = os.fstat(file).st_size, 0
        try:
            written = os.write(file, data)
        finally:
            if written < len(data):  # or the next line would be appended to half of one
                os.ftruncate(file, before)
        if written < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._logs / key.file))


def _lines(pieces: Mapping[int, Kept]) -> bytes:
    return _encoded(
        [piece, kept.size, [[part.offset, part.size] for part in kept.parts]] for piece, kept in pieces.items()
    )


def _encoded(lines: Iterable[list[object]]) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def _replay(data: bytes) -> dict[int, Kept]:
    """Raises ValueError or TypeError."""
    kept: dict[int, Kept] = {}
    for line in data.splitlines():
        piece, size, parts = _read(line)
        if parts:
            kept[piece] = Kept(size, parts)
        else:
            kept.pop(piece, None)
    return kept


def _read(line: bytes) -> tuple[int, int, tuple[Part, ...]]:
    """A piece; no parts: it has returned. Raises ValueError or TypeError."""
    piece, *rest = json.loads(line)
    if not rest:
        return piece, 0, ()
    size, parts = rest
    return piece, size, tuple(Part(offset, size) for offset, size in parts)


def _parts(data: bytes) -> Iterator[Part]:
    """All that the lines name which can be read."""
    for line in data.splitlines():
        with contextlib.suppress(ValueError, TypeError):
            yield from _read(line)[2]


def _take(part: Part, taken: list[Part]) -> list[Part]:
    """What is left of it; that is taken from now on."""
    left = without(part, taken)
    taken += left
    return left
