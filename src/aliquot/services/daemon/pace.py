"""Limits how often something is done beside the work that matters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

_STEP = 0.01  # seconds of work after which others have their turn


class Pace:
    """A token bucket: a burst, then so many per second. `now` is an argument, so that no test has to wait."""

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


class Steps:
    """Work in small steps in the running event loop, soon after it is called for: once for all calls until it begins,
    and at most a quarter of the time."""

    def __init__(self, work: Callable[[], Iterator[None]], *, every: float) -> None:
        self._work, self._every = work, every
        self._loop = asyncio.get_running_loop()
        self._steps: Iterator[None] | None = None  # under way
        self._wanted = False
        self._spent = 0.0  # seconds, by the work under way
        self._not_before = 0.0

    def __call__(self) -> None:
        """Call for it."""
        if not self._wanted and self._steps is None:
            self._loop.call_at(max(self._loop.time(), self._not_before), self._begin)
        self._wanted = True

    def _begin(self) -> None:
        self._wanted, self._spent, self._steps = False, 0.0, self._work()
        self._step()

    def _step(self) -> None:
        assert self._steps is not None
        began = time.perf_counter()
        try:
            while time.perf_counter() - began < _STEP:
                next(self._steps)
        except StopIteration:
            self._end(began)
            return
        except BaseException:
            self._end(began)
            raise
        self._spent += time.perf_counter() - began
        self._loop.call_soon(self._step)

    def _end(self, began: float) -> None:
        self._spent += time.perf_counter() - began
        self._steps = None
        self._not_before = self._loop.time() + max(self._every, 3 * self._spent)
        if self._wanted:
            self._loop.call_at(self._not_before, self._begin)
