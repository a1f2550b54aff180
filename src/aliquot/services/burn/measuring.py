"""Counts finished kernels over time, and latencies: what a burn is judged by."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from pathlib import Path

_MARK_SECONDS = 0.002  # completions closer than this are recorded as one
_FILE_SECONDS = 0.005


class Marks:
    """The number of finished kernels over time."""

    def __init__(self, began: float, file: Path | None = None, index: int = 0) -> None:
        self._times, self._counts = array("d", [began]), array("d", [0.0])
        self._latest = (began, 0.0)
        self._file = file.open("a", buffering=1) if file else None
        self._index, self._written = index, 0.0

    def add(self, now: float, done: float) -> None:
        self._latest = (now, done)
        if now - self._times[-1] >= _MARK_SECONDS:
            self._times.append(now)
            self._counts.append(done)
        if self._file and now - self._written >= _FILE_SECONDS:
            self._written = now
            self._file.write(f"{now:.6f} {self._index} {done:.0f}\n")

    def close(self) -> None:
        """Record the last completion, however close to the one before."""
        now, done = self._latest
        if now > self._times[-1]:
            self._times.append(now)
            self._counts.append(done)
        if self._file:
            self._file.write(f"{now:.6f} {self._index} {done:.0f}\n")
            self._file.close()

    def at(self, moment: float) -> float:
        """Kernels finished at that time, interpolated between two completions."""
        after = bisect_right(self._times, moment)
        if after == 0:
            return 0.0
        if after == len(self._times):
            return self._counts[-1]
        before = after - 1
        part = (moment - self._times[before]) / (self._times[after] - self._times[before])
        return self._counts[before] + part * (self._counts[after] - self._counts[before])

    def longest_gap(self, begin: float, end: float) -> float:
        """The longest time without a completion, of those that touch the window."""
        times = self._times
        first, last = max(1, bisect_right(times, begin)), bisect_right(times, end)
        between = [times[at] - times[at - 1] for at in range(first, min(last + 1, len(times)))]
        return max(between, default=end - begin)


def percentiles(values: list[float]) -> dict[str, float] | None:
    """Nearest-rank percentiles; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    ranks = {"p50": 0.50, "p90": 0.90, "p99": 0.99, "max": 1.0}
    return {name: round(ordered[max(0, math.ceil(part * len(ordered)) - 1)], 1) for name, part in ranks.items()}
