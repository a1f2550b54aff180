"""Records who came, left and held one card, while somebody draws it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from aliquot.arbiter.timeline import MOST_RECORDS, Came, Record


class Trace:
    """Written by the card's thread, read by one other. Too many records without a reader: the oldest are dropped."""

    def __init__(self) -> None:
        self._records: deque[Record] | None = None

    @property
    def active(self) -> bool:
        """Whether somebody draws it."""
        return self._records is not None

    def start(self, present: Iterable[Came]) -> None:
        """Begin with the contexts that are there."""
        self._records = deque(present, maxlen=MOST_RECORDS)

    def stop(self) -> None:
        """Drop all of it."""
        self._records = None

    def add(self, record: Record) -> None:
        """Nothing, while nobody draws it."""
        if self._records is not None:
            self._records.append(record)

    def take(self) -> list[Record]:
        """The records since the last call."""
        records = self._records
        found: list[Record] = []
        while records:  # nobody else takes from it
            found.append(records.popleft())
        return found
