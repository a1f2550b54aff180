"""Tasks that run as long as the process does, and the signals that end it."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


async def run_forever(work: Callable[[], Awaitable[None]]) -> None:
    """Run the task; where it fails, log that and start it again: the other tasks do not stop for it."""
    while True:
        try:
            await work()
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("task_failed")
            await asyncio.sleep(1.0)
        else:
            return


def termination_signal(stop: asyncio.Event | None = None) -> asyncio.Event:
    """An event that SIGTERM and SIGINT set from now on: `stop`, or a new one."""
    stop = stop or asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
