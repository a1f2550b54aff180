"""The node as the cluster's dashboard shows it, live: the scheduler asks for it while a viewer has that node open.

Who held the cards is traced from the first request on, until no request has come for a while.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from aliquot.arbiter.timeline import Record
from aliquot.model.status.dashboard import Node
from aliquot.model.status.machine import NodeStatus, Status
from aliquot.services.dashboard.nodeview import node_view, tenants_by_card
from aliquot.services.dashboard.timelines import Timelines

_FORGET = 30.0  # seconds without a request


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

    def node(self, status: Status, now: float) -> Node:
        """As a machine shows itself. Call it in the loop's thread."""
        if self._ending is None:
            self._timelines = Timelines()
            self._arbiter.keep_trace(True)
        else:
            self._ending.cancel()
        self._ending = asyncio.get_running_loop().call_later(_FORGET, self._end)
        self._timelines.add(self._arbiter.records(), status.tenants)
        uuids = [card.uuid for card in status.cards]
        timeline = self._timelines.since(uuids, None, self._clock(), now)
        node = NodeStatus(status.daemon.node or "", uuids, [], status.rules.policy)
        return node_view(node, status, tenants_by_card(status), timeline)

    def _end(self) -> None:
        self._ending = None
        self._arbiter.keep_trace(False)
