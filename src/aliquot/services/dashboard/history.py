"""What the dashboard's charts show: a point a second for ten minutes, a point a minute for a day. Pure.

None is a value that is not known; a mean is over the known ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from aliquot.model.status.dashboard import SERIES, History, Point, SeriesValues

RANGES = {"10m": (1, 600), "24h": (60, 1440)}  # seconds between points, and how many


class Recorder:
    """All series, in both ranges."""

    def __init__(self) -> None:
        self._fine: deque[Point] = deque(maxlen=RANGES["10m"][1])
        self._coarse: deque[Point] = deque(maxlen=RANGES["24h"][1])
        self._minute: list[Point] = []  # of the minute that is not over

    def add(self, point: Point) -> None:
        """One more."""
        self._fine.append(point)
        step = RANGES["24h"][0]
        if self._minute and self._minute[0].time // step != point.time // step:
            self._coarse.append(_mean(self._minute))
            self._minute = []
        self._minute.append(point)

    def history(self, over: str) -> History:
        """`over` is one of RANGES."""
        points = self._fine if over == "10m" else [*self._coarse, *([_mean(self._minute)] if self._minute else [])]
        columns = {name: [getattr(point, name) for point in points] for name in SERIES}
        return History(step=RANGES[over][0], times=[point.time for point in points], series=SeriesValues(**columns))


def _mean(points: Sequence[Point]) -> Point:
    """At the time of the last."""
    means: dict[str, float | None] = {}
    for name in SERIES:
        values = [value for point in points if (value := getattr(point, name)) is not None]
        means[name] = round(sum(values) / len(values), 2) if values else None
    return Point(time=points[-1].time, **means)
