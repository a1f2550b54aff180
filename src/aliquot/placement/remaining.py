"""What remains of each card: the `room_*` columns and what follows from them, worked out from what is taken.

Row by row when a Pod comes or goes, in plain numbers; for many rows at once with numpy, when a cluster is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from aliquot.model.device import CORE_MILLI
from aliquot.placement.columns import CLOSED, Bools, Columns, Ints
from aliquot.placement.rooms import elastic_rooms, free_pool

_SHUT = (CLOSED, CLOSED, CLOSED, CLOSED, 0)


class Remaining(Columns):
    """The columns, and those of them that follow from the others."""

    def __init__(self) -> None:
        super().__init__()
        self.elastic: set[int] = set()  # rows with a card that may be booked beyond its memory
        self.clock = 0  # counts changes; `changed` says at which count each row changed last
        self._stale: set[int] | None = None  # rows to be worked out when `together` ends

    def room_for(self, parkable: bool, rows: Ints | slice) -> Ints:
        """[row, slot]: MiB that are left of each card for work that may, or may not, be parked."""
        room = self.room_memory[rows]
        return room + self.extra[rows] if parkable and self.elastic else room

    def booked_core(self, rows: Ints | slice, slots: Ints | slice) -> Ints:
        """Thousandths of compute that are booked of each of these cards, as Usage.booked_milli."""
        return np.where(self.exclusive[rows, slots] > 0, CORE_MILLI, self.used_core[rows, slots])

    @contextmanager
    def together(self) -> Iterator[None]:
        """Batch many changes, as when a cluster is loaded: the room of each row is computed once, at the end.

        Inside, the `room_*` columns are not to be read.
        """
        outermost = self._stale is None
        self._stale = set() if self._stale is None else self._stale
        try:
            yield
        finally:
            if outermost:
                rows, self._stale = np.array(sorted(self._stale), np.int64), None
                self._refresh_all(rows)

    def _refresh(self, row: int) -> None:
        """Compute what is left on the row, and record that it changed.

        In plain numbers: on the few cards of one node they are faster than numpy.
        """
        if self._stale is not None:
            self._stale.add(row)
            return
        usable = bool(self.present[row]) and not self.taken[row]
        rooms = [
            self._room(usable and healthy, *columns)
            for healthy, *columns in zip(
                self.healthy[row].tolist(),
                self.memory[row].tolist(),
                self.used_memory[row].tolist(),
                self.used_core[row].tolist(),
                self.used_greedy[row].tolist(),
                self.max_slices[row].tolist(),
                self.used_slices[row].tolist(),
                self.exclusive[row].tolist(),
                strict=True,
            )
        ]
        memory, core, greedy, slices, milli = zip(*rooms, strict=True)
        self.room_memory[row] = memory
        self.room_core[row] = core
        self.room_greedy[row] = greedy
        self.room_slices[row] = slices
        self.milli[row] = milli
        cards = sum(room is not _SHUT for room in rooms)
        free = sum(milli)
        self.cards[row] = cards
        self.free[row] = free
        self.load[row] = 1000 - free // max(cards, 1)
        self.left[row] = sum(map(int.__mul__, milli, self.memory[row].tolist())) // CORE_MILLI
        if row in self.elastic:
            self._stretch(np.array([row]))
        self.clock += 1
        self.changed[row] = self.clock

    def _refresh_all(self, rows: Ints) -> None:
        """The same for many rows at once, where numpy is faster. tests/placement compares the two."""
        memory, exclusive, is_open = self.memory[rows], self.exclusive[rows] > 0, self._are_open(rows)
        left, core = memory - self.used_memory[rows], CORE_MILLI - self.used_core[rows]
        milli = np.maximum(0, np.minimum(core, left * 1000 // np.maximum(memory, 1)))
        milli[~is_open | exclusive] = 0
        slices = np.where(exclusive, CLOSED, self.max_slices[rows] - self.used_slices[rows])
        for column, room in (
            (self.room_memory, left),
            (self.room_core, core),
            (self.room_greedy, CORE_MILLI - self.used_greedy[rows]),
            (self.room_slices, slices),
        ):
            column[rows] = np.where(is_open, room, CLOSED)
        self.milli[rows] = milli
        cards, free = is_open.sum(axis=1), milli.sum(axis=1)
        self.cards[rows] = cards
        self.free[rows] = free
        self.load[rows] = 1000 - free // np.maximum(cards, 1)
        self.left[rows] = (milli * memory).sum(axis=1) // CORE_MILLI
        if self.elastic:
            self._stretch(rows[np.isin(rows, list(self.elastic))])
        self.changed[rows] = self.clock + 1 + np.arange(len(rows))
        self.clock += len(rows)

    def _stretch(self, rows: Ints) -> None:
        """The room of cards that may be booked beyond their memory, on top of what was worked out without that."""
        is_open = self._are_open(rows)
        self.pool_left[rows] = free_pool(self, rows)
        fixed, parkable = elastic_rooms(self, rows)
        self.room_memory[rows] = np.where(is_open, fixed, CLOSED)
        self.extra[rows] = np.where(is_open, parkable - fixed, 0)

    def _are_open(self, rows: Ints) -> Bools:
        """[row, slot]: whether the card takes anything at all."""
        usable = self.present[rows] & (self.taken[rows] == 0)
        return usable[:, None] & self.healthy[rows] & (self.memory[rows] > 0)

    @staticmethod
    def _room(
        is_open: bool,
        memory: int,
        used_memory: int,
        used_core: int,
        used_greedy: int,
        max_slices: int,
        used_slices: int,
        exclusive: int,
    ) -> tuple[int, int, int, int, int]:
        """(memory, core, greedy, slices, milli) that are left of one card."""
        if not is_open or not memory:
            return _SHUT
        left, core = memory - used_memory, CORE_MILLI - used_core
        if exclusive:
            return left, core, CORE_MILLI - used_greedy, CLOSED, 0
        milli = max(0, min(core, left * 1000 // memory))
        return left, core, CORE_MILLI - used_greedy, max_slices - used_slices, milli
