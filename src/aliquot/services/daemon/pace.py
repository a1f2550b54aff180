"""How fast we may write to the API server beside the work that matters: so many at once, so many per second after."""

from __future__ import annotations


class Pace:
    """A bucket of tokens that fills by the clock. `now` is an argument, so that no test need wait."""

    def __init__(self, *, per_second: float, burst: int) -> None:
        self._per_second, self._burst = per_second, float(burst)
        self._tokens = float(burst)
        self._filled_at: float | None = None

    def take(self, now: float) -> bool:
        """Whether one more may go now."""
        self._fill(now)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def wait(self, now: float) -> float:
        """Seconds until one may go; 0 when it may now."""
        self._fill(now)
        return max(0.0, (1 - self._tokens) / self._per_second)

    def _fill(self, now: float) -> None:
        if self._filled_at is not None:  # a clock that was set back fills nothing
            self._tokens = min(self._burst, self._tokens + max(0.0, now - self._filled_at) * self._per_second)
        self._filled_at = now
