"""A node as the cluster's dashboard shows it, live: asked for by the scheduler while somebody looks at that node.

Who held the cards is traced from the first question on, and no longer once nobody has asked for a while.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from aliquot.arbiter.timeline import Record
from aliquot.model.status.machine import Status
from aliquot.services.dashboard.nodeview import Cards, node_told
from aliquot.services.dashboard.timelines import Timelines

_FORGET = 30.0  # seconds without a question


class Traced(Protocol):
    """services/runtime/arbiterd.py."""

    def keep_trace(self, wanted: bool) -> None: ...
    def records(self) -> dict[str, list[Record]]: ...


class AgentLive:
    """See the head of the file."""

    def __init__(self, arbiter: Traced, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._arbiter, self._clock = arbiter, clock
        self._timelines = Timelines()
        self._ending: asyncio.TimerHandle | None = None

    def node(self, told: Status, now: float) -> dict[str, Any]:
        """As a machine tells of itself. In the loop's thread."""
        status = msgspec.to_builtins(told)
        if self._ending is None:
            self._timelines = Timelines()
            self._arbiter.keep_trace(True)
        else:
            self._ending.cancel()
        self._ending = asyncio.get_running_loop().call_later(_FORGET, self._end)
        self._timelines.add(self._arbiter.records(), status["tenants"])
        cards = status["cards"]
        timeline = self._timelines.told([card["uuid"] for card in cards], None, self._clock(), now)
        about = {"name": status["daemon"]["node"], "offers": [], "policy": status["rules"]["policy"]}
        return node_told(about, cards, status, Cards(status), timeline)

    def _end(self) -> None:
        self._ending = None
        self._arbiter.keep_trace(False)
