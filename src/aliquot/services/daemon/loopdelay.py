"""How late the event loop is: a timer that should fire ten times a second, and by how much it is late.

Anything that blocks the loop (a disk, a scan, too much work in one piece) delays every client, and shows here.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.core import Metric

BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)  # seconds
_EVERY = 0.1  # seconds
_REMEMBERED = 60.0  # seconds for which the largest delay is shown


class LoopDelay:
    """The delays since the start."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0
        self._largest: deque[tuple[float, float]] = deque()  # (when, delay): each is larger than those after it

    async def run(self) -> None:
        """Measure, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _EVERY
            await asyncio.sleep(_EVERY)
            now = loop.time()
            self.add(max(0.0, now - due), now)

    def add(self, delay: float, now: float) -> None:
        """The timer was so late."""
        self._counts[bisect_left(BUCKETS, delay)] += 1
        self._sum += delay
        while self._largest and self._largest[-1][1] <= delay:
            self._largest.pop()
        self._largest.append((now, delay))
        while self._largest[0][0] < now - _REMEMBERED:
            self._largest.popleft()

    def largest(self) -> float:
        """The largest delay of the last minute."""
        return self._largest[0][1] if self._largest else 0.0

    def families(self) -> Iterator[Metric]:
        """The metrics for /metrics."""
        from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily

        counts = [float(count) for count in accumulate(self._counts)]
        bounds = [*map(str, BUCKETS), "+Inf"]
        delays = HistogramMetricFamily("aliquot_loop_delay_seconds", "How late the event loop was, ten times a second.")
        delays.add_metric((), list(zip(bounds, counts, strict=True)), sum_value=self._sum)
        yield delays
        yield GaugeMetricFamily(
            "aliquot_loop_delay_max_seconds", "The largest delay of the last minute.", value=self.largest()
        )
