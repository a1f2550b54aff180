"""Waiting for what another task or process is about to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until the condition is true; fail when that takes too long."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not condition():
        assert loop.time() < end, "it did not come to that in time"
        await asyncio.sleep(0.001)
