"""Which part of the pool holds which piece. Pure: offsets and sizes, no memory.

Parts are multiples of UNIT. A piece may be split over several parts, so the pool never fails for being in fragments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

UNIT = 2 << 20
# Is touched and registered with the driver at a time: the others on the card may wait for the driver meanwhile. No copy
# may cross its border.
CHUNK = 64 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of the pool, in bytes."""

    offset: int
    size: int


class PoolFullError(Exception):
    """The pool has no room for the memory."""


@dataclass(slots=True)
class Pool:
    """Free parts in order of offset, never two that touch. It begins empty: `give_back` adds memory to it."""

    _free: list[Part] = field(default_factory=list)

    @property
    def free(self) -> int:
        """Bytes left."""
        return sum(part.size for part in self._free)

    def take(self, size: int) -> tuple[Part, ...]:
        """Parts of that size together: one where there is one, the smallest that fits; else the first ones."""
        wanted = -(-size // UNIT) * UNIT
        if wanted > self.free:
            raise PoolFullError(f"{wanted} bytes do not fit: {self.free} are left")
        whole = min((part for part in self._free if part.size >= wanted), key=lambda part: part.size, default=None)
        taken: list[Part] = []
        for part in [whole] if whole is not None else list(self._free):
            used = min(part.size, wanted)
            taken.append(Part(part.offset, used))
            wanted -= used
            at = self._free.index(part)
            self._free[at : at + 1] = [Part(part.offset + used, part.size - used)] if part.size > used else []
            if not wanted:
                break
        return tuple(taken)

    def give_back(self, parts: Iterable[Part]) -> None:
        """Merge with neighbours."""
        merged: list[Part] = []
        for part in sorted((*self._free, *parts), key=lambda part: part.offset):
            if merged and merged[-1].offset + merged[-1].size > part.offset:
                raise ValueError(f"{part} of the pool was free already")
            if merged and merged[-1].offset + merged[-1].size == part.offset:
                merged[-1] = Part(merged[-1].offset, merged[-1].size + part.size)
            else:
                merged.append(part)
        self._free = merged


def copies(parts: Iterable[Part], size: int) -> Iterator[Part]:
    """The stretches of the pool that the first `size` bytes of these parts are copied to, none across a border."""
    for part in parts:
        end = part.offset + min(part.size, size)
        size -= end - part.offset
        at = part.offset
        while at < end:
            step = min(end, (at // CHUNK + 1) * CHUNK) - at
            yield Part(at, step)
            at += step


def without(whole: Part, taken: Iterable[Part]) -> list[Part]:
    """What is left of a part. `taken` do not overlap."""
    left, at = [], whole.offset
    end = whole.offset + whole.size
    for part in sorted(taken, key=lambda part: part.offset):
        if part.offset + part.size <= at or part.offset >= end:
            continue
        if part.offset > at:
            left.append(Part(at, part.offset - at))
        at = part.offset + part.size
    return [*left, Part(at, end - at)] if at < end else left
