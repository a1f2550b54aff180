"""The pool's memory, a file on a tmpfs, and a log for each process of which pieces are where in it.

The log is written before a shim hears that its pieces were kept, and after it heard that they are back. So a mover that
dies at any line leaves either a piece on the card, or one in the pool that is written down, or both.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from aliquot.services.mover.pool import CHUNK, UNIT, Part

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE: unlike a write, it fails where a tmpfs is full
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


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
        """What the logs say. A last line that was cut short was never confirmed."""
        found: dict[Key, dict[int, Kept]] = {}
        for log in sorted(self._logs.iterdir()):
            try:
                key = Key.of_file(log.name)
            except ValueError:
                log.unlink()
                continue
            found[key] = _replay(log.read_text())
        return found

    def write_kept(self, key: Key, pieces: Mapping[int, Kept]) -> None:
        """Before the shim hears of it. Raises OSError."""
        lines = [
            [piece, kept.size, [[part.offset, part.size] for part in kept.parts]] for piece, kept in pieces.items()
        ]
        self._append(key, lines)

    def write_returned(self, key: Key, pieces: Mapping[int, Kept], *, left: int) -> None:
        """After the shim heard of it; `left`: how many others are still kept."""
        if not left:
            self.forget(key)
            return
        with contextlib.suppress(OSError):  # what stays written down is forgotten when the process ends
            self._append(key, [[piece] for piece in pieces])

    def forget(self, key: Key) -> None:
        """Remove its log."""
        file = self._open.pop(key, None)
        if file is not None:
            os.close(file)
        with contextlib.suppress(FileNotFoundError):
            (self._logs / key.file).unlink()

    def _append(self, key: Key, lines: list[list[object]]) -> None:
        file = self._open.get(key)
        if file is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            file = self._open[key] = os.open(self._logs / key.file, flags, 0o600)
        data = "".join(json.dumps(line) + "\n" for line in lines).encode()
        if os.write(file, data) != len(data):
            raise OSError("the log was cut short")


def _replay(text: str) -> dict[int, Kept]:
    kept: dict[int, Kept] = {}
    for line in text.splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        piece, *rest = json.loads(line)
        if rest:
            kept[piece] = Kept(rest[0], tuple(Part(offset, size) for offset, size in rest[1]))
        else:
            kept.pop(piece, None)
    return kept
