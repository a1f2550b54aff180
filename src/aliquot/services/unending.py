"""Parts that run as long as the process does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


async def for_ever(work: Callable[[], Awaitable[None]]) -> None:
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
