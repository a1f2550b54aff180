"""Records who came, left and held one card, while a viewer draws it; and, for the bench, how long each step took."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable

from aliquot.arbiter.timeline import MOST_RECORDS, Came, Record


class Trace:
    """Written by the card's thread, read by one other. Too many records without a reader: the oldest are dropped."""

    def __init__(self) -> None:
        self._records: deque[Record] | None = None

    @property
    def active(self) -> bool:
        """Whether a viewer draws it."""
        return self._records is not None

    def start(self, present: Iterable[Came]) -> None:
        """Begin with the contexts that are there."""
        self._records = deque(present, maxlen=MOST_RECORDS)

    def stop(self) -> None:
        """Drop all of it."""
        self._records = None

    def add(self, record: Record) -> None:
        """Nothing, while no viewer draws it."""
        if self._records is not None:
            self._records.append(record)

    def take(self) -> list[Record]:
        """The records since the last call."""
        records = self._records
        found: list[Record] = []
        while records:  # no other thread takes from it
            found.append(records.popleft())
        return found


class StepLog:
    """Appends a line for each step that may disturb work on a card: what, of whom, and from when to when it took
    (CLOCK_MONOTONIC). Only where ALIQUOT_STEP_LOG names a file: `bench/gpu/run.py --only tail`. Any thread."""

    def __init__(self, path: str | None) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(path, flags, 0o600) if path else None

    def add(self, what: str, began: float, ended: float, whose: str = "") -> None:
        """One write, so that lines of several threads are not mixed."""
        if self._file is not None:
            os.write(self._file, (json.dumps([what, whose, round(began, 6), round(ended, 6)]) + "\n").encode())


STEPS = StepLog(os.environ.get("ALIQUOT_STEP_LOG"))
