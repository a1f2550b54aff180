"""The agent's side of the shutdown handshake: no new Pods are bound to the node, and bound ones can still start.

A kubelet without our device plugins fails Pods for good when it should start them. The scheduler's side is
services/scheduler/agenthandover.py.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from aliquot.services.agent.podcache import PodCache

_LONGEST = 10.0  # seconds from SIGTERM until the agent stops
_LOOK = 0.1  # seconds between two checks


class Reporter(Protocol):
    """services/agent/report/node.py."""

    @property
    def acknowledged(self) -> bool: ...
    async def announce_departure(self) -> bool: ...


async def hand_over(reporter: Reporter, pods: PodCache, *, patience: float) -> None:
    """Return when the agent may stop. `patience`: seconds for the scheduler to acknowledge."""
    if not await reporter.announce_departure():
        return
    began = time.monotonic()
    while not reporter.acknowledged and time.monotonic() - began < patience:
        await asyncio.sleep(_LOOK)
    while time.monotonic() - began < _LONGEST and await _arriving(pods):
        await asyncio.sleep(_LOOK)


async def _arriving(pods: PodCache) -> bool:
    """Whether the kubelet has not yet taken up a Pod that is bound here. Lists again: the watch may lag."""
    await pods.refresh()
    return any(not (pod.taken_up or pod.finished) for pod in pods)
