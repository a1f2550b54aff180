"""What the dashboard's charts show: a point a second for ten minutes, a point a minute for a day. Pure.

None is a value that nobody knows; a mean is over those that are known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

SERIES = ("memory", "core", "busy", "fragmentation", "waiting", "online", "offline", "normal")
RANGES = {"10m": (1, 600), "24h": (60, 1440)}  # seconds between points, and how many

Values = Mapping[str, float | None]
_Point = tuple[float, tuple[float | None, ...]]


class History:
    """All series, in both ranges."""

    def __init__(self) -> None:
        self._fine: deque[_Point] = deque(maxlen=RANGES["10m"][1])
        self._coarse: deque[_Point] = deque(maxlen=RANGES["24h"][1])
        self._minute: list[_Point] = []  # of the minute that is not over

    def add(self, now: float, values: Values) -> None:
        """One point; every series has a value."""
        point = (round(now, 1), tuple(values[name] for name in SERIES))
        self._fine.append(point)
        step = RANGES["24h"][0]
        if self._minute and self._minute[0][0] // step != point[0] // step:
            self._coarse.append(_mean(self._minute))
            self._minute = []
        self._minute.append(point)

    def told(self, over: str) -> dict[str, Any]:
        """As the dashboard reads it; `over` is one of RANGES."""
        points = self._fine if over == "10m" else [*self._coarse, *([_mean(self._minute)] if self._minute else [])]
        columns = zip(*(values for _, values in points), strict=True) if points else ([] for _ in SERIES)
        return {
            "step": RANGES[over][0],
            "times": [time for time, _ in points],
            "series": {name: list(column) for name, column in zip(SERIES, columns, strict=True)},
        }


def _mean(points: list[_Point]) -> _Point:
    """At the time of the last."""
    columns = [
        [value for value in column if value is not None] for column in zip(*(point[1] for point in points), strict=True)
    ]
    return points[-1][0], tuple(round(sum(column) / len(column), 2) if column else None for column in columns)
