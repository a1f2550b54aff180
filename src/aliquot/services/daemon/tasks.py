"""Parts that run as long as the process does, and the end of that."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


async def run_forever(work: Callable[[], Awaitable[None]]) -> None:
    """A part that fails is told and started again: the others do not stop for it."""
    while True:
        try:
            await work()
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("a part failed; it starts again")
            await asyncio.sleep(1.0)
        else:
            return


def termination_signal() -> asyncio.Event:
    """Set by SIGTERM and SIGINT from now on."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
