"""Limits how fast we write to the API server beside the work that matters: a burst, then so many per second."""

from __future__ import annotations


class Pace:
    """A token bucket. `now` is an argument, so that no test has to wait."""

    def __init__(self, *, per_second: float, burst: int) -> None:
        self._per_second, self._burst = per_second, float(burst)
        self._tokens = float(burst)
        self._filled_at: float | None = None

    def take(self, now: float) -> bool:
        """Take a token, if there is one."""
        self._fill(now)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def wait(self, now: float) -> float:
        """Seconds until there is a token; 0 when there is one now."""
        self._fill(now)
        return max(0.0, (1 - self._tokens) / self._per_second)

    def _fill(self, now: float) -> None:
        if self._filled_at is not None:  # a clock that was set back fills nothing
            self._tokens = min(self._burst, self._tokens + max(0.0, now - self._filled_at) * self._per_second)
        self._filled_at = now
