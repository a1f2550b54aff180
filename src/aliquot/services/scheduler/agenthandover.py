"""Agents that are about to go: told, once nothing is under way to their node, that no Pod will come.

A kubelet fails the Pods that it is to start while no agent answers it, for good. So an agent that is told to end says
so on its Node (`aliquot.dev/agent: away`), and goes when the leader has answered there (`aliquot.dev/seen`): from then
on the board has no room on that node, and whatever was being bound there is bound, and can be seen by the agent.
Without an answer, from a role that may not patch Nodes say, the agent goes all the same, a few seconds later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.dialects.native import SEEN
from aliquot.dialects.wire.objects import NodeObject
from aliquot.services.scheduler.cluster import Cluster

log = logging.getLogger(__name__)

_AGAIN = 0.05  # seconds between two looks while something is under way


class Farewells:
    """Hears of every Node; answers as long as `run` runs and we lead."""

    def __init__(self, kube: Kube, cluster: Cluster, *, leading: Callable[[], bool]) -> None:
        self._kube, self._cluster, self._leading = kube, cluster, leading
        self._due: set[str] = set()
        self._wake = asyncio.Event()
        self._refused = False

    def observe(self, node: NodeObject) -> None:
        """A Node was told, and the cluster has it already."""
        if node.agent_away and SEEN not in (node.metadata.annotations or {}):
            self._due.add(node.metadata.name)
            self._wake.set()
        else:
            self._due.discard(node.metadata.name)

    def forget(self, name: str) -> None:
        """The Node is gone."""
        self._due.discard(name)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wake.wait()
            if self._leading():
                busy = {placed.grant.node for placed in self._cluster.assumed.values()}
                await asyncio.gather(*(self._answer(name) for name in self._due - busy))
            if not self._due:
                self._wake.clear()
            else:
                await asyncio.sleep(_AGAIN)

    async def _answer(self, name: str) -> None:
        body = {"metadata": {"annotations": {SEEN: "true"}}}
        try:
            await self._kube.patch(f"/api/v1/nodes/{name}/status", body, into=bytes)
        except Unreachable:
            return  # and again
        except ApiError as error:
            if not self._refused:
                self._refused = True
                log.warning("an agent that goes is not answered", extra={"data": {"node": name, "why": str(error)}})
        self._due.discard(name)
