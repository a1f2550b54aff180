"""An event loop whose clock jumps to the next thing that happens: minutes of waiting are over at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Running(Protocol):
    """Something with a task that runs on."""

    running: asyncio.Task[None]


R = TypeVar("R", bound=Running)


class VirtualLoop(asyncio.SelectorEventLoop):
    """For tests without sockets: nothing from outside can come while it waits."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        if not ready and scheduled:
            self.now = max(self.now, scheduled[0]._when)
        super()._run_once()  # type: ignore[misc]


def play(scene: Coroutine[Any, Any, T]) -> T:
    """Run it to its end. A failure that nobody looked at is a failure of the test."""
    unseen: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.get_loop().set_exception_handler(lambda loop, context: unseen.append(context))
        result = runner.run(scene)
    assert not unseen, unseen
    return result


def play_beside(make: Callable[[], R], scene: Callable[[R], Awaitable[None]]) -> None:
    """Run the scene beside the task of what `make` makes, which must not end by itself."""

    async def run() -> None:
        rig = make()
        await scene(rig)
        assert not rig.running.done()
        rig.running.cancel()

    play(run())
