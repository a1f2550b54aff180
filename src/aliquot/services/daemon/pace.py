"""Limits how often something is done beside the work that matters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")

_STEP = 0.01  # seconds of work after which others have their turn
_AT_ONCE = 0.005  # seconds of the processor for one thing in a look: others may need its lock
_SLOW = 0.001  # seconds of the processor: who looked for longer lets others have the locks,
_PAUSE = 0.0005  # for so long


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


async def in_steps(steps: Iterator[T]) -> list[T]:
    """What the steps yield. Others have their turn in between."""
    found: list[T] = []
    began = time.perf_counter()
    for one in steps:
        found.append(one)
        if time.perf_counter() - began > _STEP:
            await asyncio.sleep(0)
            began = time.perf_counter()
    return found


class Together:
    """Work in the running event loop, once for all who ask for it before it begins. Between two it rests as long as
    the last one took, but not long."""

    def __init__(self, work: Callable[[], Awaitable[None]], *, longest_rest: float = 0.1) -> None:
        self._work, self._longest = work, longest_rest
        self._lock = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None
        self._not_before = 0.0

    async def __call__(self) -> None:
        """Returns when work that began after this call is done."""
        if self._next is None or self._next.done():  # done: it was cancelled before it began
            self._next = asyncio.create_task(self._run())
        await asyncio.shield(self._next)

    async def _run(self) -> None:
        async with self._lock:
            clock = asyncio.get_running_loop().time
            await asyncio.sleep(max(0.0, self._not_before - clock()))
            self._next, began = None, clock()
            try:
                await self._work()
            finally:
                self._not_before = clock() + min(self._longest, clock() - began)


class Turns:
    """Looks at the things of many owners, where those of one owner may take so many seconds of the processor in each.
    What there was no time for comes first in the next one, and so does what was not there in the last. Any thread."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last: dict[str, int] = {}  # by thing: the number of the look that had time for it
        self._looks = 0

    def look(self, owners: Mapping[str, Hashable]) -> Iterator[tuple[str, float]]:
        """Each thing, with the seconds that there are for it: 0 if its owner has none left."""
        self._looks += 1
        number = self._looks
        self._last = {thing: at for thing, at in list(self._last.items()) if thing in owners}
        spent: dict[Hashable, float] = {}
        for thing in sorted(owners, key=lambda thing: self._last.get(thing, 0)):
            owner, began = owners[thing], time.thread_time()
            left = max(0.0, self._seconds - spent.get(owner, 0.0))
            if left:
                self._last[thing] = number
            yield thing, min(left, _AT_ONCE)
            took = time.thread_time() - began
            spent[owner] = spent.get(owner, 0.0) + took
            if took > _SLOW:
                time.sleep(_PAUSE)  # else a thread that waits for the lock of these things may not get it in between
