"""The scheduler's half of an agent's shutdown: acknowledges that no more Pods will be bound to the agent's node.

A kubelet fails Pods for good if it starts them while no agent answers. So an agent that must stop annotates its Node
(`aliquot.dev/agent: away`) and exits when the leader has acknowledged (`aliquot.dev/seen`). From then on the board has
no room on that node, and every bind to it that was in progress is done and visible to the agent. Without an
acknowledgement, for example because our role may not patch Nodes, the agent exits anyway a few seconds later.
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

_RETRY = 0.05  # seconds between two attempts while a bind to the node is in progress


class AgentHandover:
    """Receives every Node from the sink; acknowledges while `run` runs and this instance leads."""

    def __init__(self, kube: Kube, cluster: Cluster, *, leading: Callable[[], bool]) -> None:
        self._kube, self._cluster, self._leading = kube, cluster, leading
        self._due: set[str] = set()
        self._wake = asyncio.Event()
        self._warned = False

    def observe(self, node: NodeObject) -> None:
        """A Node was added or has changed; the cluster has it already."""
        if node.agent_away and SEEN not in (node.metadata.annotations or {}):
            self._due.add(node.metadata.name)
            self._wake.set()
        else:
            self._due.discard(node.metadata.name)

    def forget(self, name: str) -> None:
        """The Node was deleted."""
        self._due.discard(name)

    async def run(self) -> None:
        """Answer agents that leave, until cancelled."""
        while True:
            await self._wake.wait()
            if self._leading():
                busy = {placed.grant.node for placed in self._cluster.assumed.values()}
                await asyncio.gather(*(self._acknowledge(name) for name in self._due - busy))
            if not self._due:
                self._wake.clear()
            else:
                await asyncio.sleep(_RETRY)

    async def _acknowledge(self, name: str) -> None:
        body = {"metadata": {"annotations": {SEEN: "true"}}}
        try:
            await self._kube.patch(f"/api/v1/nodes/{name}/status", body, into=bytes)
        except Unreachable:
            return  # try again
        except ApiError as error:
            if not self._warned:
                self._warned = True
                log.warning("handover_ack_failed", extra={"data": {"node": name, "why": str(error)}})
        self._due.discard(name)
