"""What share of the card each context had.

NVML's own figures per process are off by fifteen points and come once a second. So the time is accounted: each process
says how long it had work that was not done yet, the orders say who could run then, and the slices say how the hardware
divided the card among those.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

SPAN = 1.0  # seconds that a share is reported for


def divide(busy: Mapping[str, float], front: Mapping[str, int], behind: Mapping[str, int]) -> dict[str, float]:
    """Parts of one stretch of time, 0 to 1 each.

    `busy` is the part of it in which each had work; `front` and `behind` are the slices of those that could run: those
    behind get what those in front leave.
    """
    parts = _fill(1.0, busy, front)
    return parts | _fill(1.0 - sum(parts.values()), busy, behind)


def _fill(room: float, busy: Mapping[str, float], weights: Mapping[str, int]) -> dict[str, float]:
    """Room by weight, none more than it had work for; what one leaves goes to the others."""
    open_: dict[str, float] = {name: min(1.0, busy.get(name, 0.0)) for name in weights}
    parts = dict.fromkeys(weights, 0.0)
    while open_ and room > 1e-9:
        total = sum(weights[name] for name in open_)
        sated = {name: need for name, need in open_.items() if need <= room * weights[name] / total}
        if not sated:
            return parts | {name: room * weights[name] / total for name in open_}
        parts |= sated
        room -= sum(sated.values())
        open_ = {name: need for name, need in open_.items() if name not in sated}
    return parts


@dataclass(slots=True)
class Shares:
    """The mean over the last second."""

    _stretches: deque[tuple[float, float, dict[str, float]]] = field(default_factory=deque)

    def add(self, began: float, ended: float, parts: dict[str, float]) -> None:
        """One stretch of time."""
        if ended > began:
            self._stretches.append((began, ended, parts))
        while self._stretches and self._stretches[0][1] <= ended - SPAN:
            self._stretches.popleft()

    def of(self, name: str) -> float:
        """0 to 1."""
        since = self._stretches[-1][1] - SPAN if self._stretches else 0.0
        lengths = [(ended - max(began, since), parts) for began, ended, parts in self._stretches]
        total = sum(length for length, _ in lengths)
        return sum(length * parts.get(name, 0.0) for length, parts in lengths) / total if total else 0.0
