"""The end of a process, heard by the daemon's loop as soon as it happens."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from aliquot.adapters.host import processes


def when_ended(pid: int | None, started: int | None, then: Callable[[], None]) -> None:
    """See that it is called once that very process is gone; soon, when it is gone already."""
    loop = asyncio.get_running_loop()
    try:
        handle = os.pidfd_open(pid or 0)
    except OSError:
        loop.call_soon(then)
        return

    def ended() -> None:
        loop.remove_reader(handle)
        os.close(handle)
        then()

    if processes.lives(pid, started):
        loop.add_reader(handle, ended)
    else:
        loop.call_soon(ended)
