"""An agent that is told to end: no more Pods are sent, and those on their way are waited for.

A kubelet without us fails the Pods that it is to start, for good. `farewells.py` is the scheduler's side of it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from aliquot.services.agent.podcache import Shelf

_LONGEST = 10.0  # seconds from being told to end until we do
_LOOK = 0.1  # seconds between two looks


class Clerk(Protocol):
    """nodeclerk.py."""

    @property
    def answered(self) -> bool: ...
    async def leave(self) -> bool: ...


async def take_leave(clerk: Clerk, shelf: Shelf, *, patience: float) -> None:
    """Until we may go. `patience`: seconds that the scheduler has to answer."""
    if not await clerk.leave():
        return
    began = time.monotonic()
    while not clerk.answered and time.monotonic() - began < patience:
        await asyncio.sleep(_LOOK)
    while time.monotonic() - began < _LONGEST and await _arriving(shelf):
        await asyncio.sleep(_LOOK)


async def _arriving(shelf: Shelf) -> bool:
    """Whether a Pod is bound here that the kubelet has not decided about. The watch may be a moment behind."""
    await shelf.refresh()
    return any(not (pod.taken_up or pod.finished) for pod in shelf)
