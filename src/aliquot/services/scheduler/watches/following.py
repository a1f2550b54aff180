"""What the scheduler watches at the API server, and whether it knows enough to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from aliquot.adapters.kubernetes.kube import Kube
from aliquot.adapters.kubernetes.reflector import Reflector
from aliquot.dialects import gpushare
from aliquot.dialects.wire.objects import ConfigMapObject, NodeObject, PodObject
from aliquot.services.scheduler.agenthandover import AgentHandover
from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.groups.following import PodGroups
from aliquot.services.scheduler.nodeupkeep import NodeUpkeep
from aliquot.services.scheduler.rejectedpods import RejectedPods
from aliquot.services.scheduler.settings import Settings
from aliquot.services.scheduler.watches.firstlists import NODES, PODS, FirstLists
from aliquot.services.scheduler.watches.resourceslices import ResourceSlices, SliceSink
from aliquot.services.scheduler.watches.sinks import ConfigSink, NodeSink, PodSink


class Watches:
    """Nodes, Pods, ResourceSlices, PodGroups, and the ConfigMaps that take cards out of use -> `cluster`."""

    def __init__(
        self,
        kube: Kube,
        cluster: Cluster,
        settings: Settings,
        upkeep: NodeUpkeep | None,
        handover: AgentHandover,
        rejected: RejectedPods | None = None,
        first: FirstLists | None = None,
    ) -> None:
        first = first or FirstLists()
        self._settings = settings
        node_sink = NodeSink(
            cluster,
            upkeep,
            unit_known=settings.memory_unit is not None,
            reread=self._reread_pods,
            reread_nodes=self._reread_nodes,
            handover=handover,
        )
        pod_sink = PodSink(cluster, rejected)
        self.nodes = Reflector(kube, NODES, NodeObject, node_sink, broke_off=node_sink.broke_off, first=first.nodes)
        self.pods = Reflector(
            kube,
            PODS,
            PodObject,
            pod_sink,
            after=self.nodes.synced,
            broke_off=pod_sink.broke_off,
            first=first.pods,
        )
        self.configs = Reflector(
            kube, "/api/v1/namespaces/kube-system/configmaps", ConfigMapObject, ConfigSink(cluster, upkeep)
        )
        self.slices = ResourceSlices(kube, SliceSink(cluster, self._reread_nodes))
        self.groups = PodGroups(kube, cluster, self.pods.synced)
        self._rereading: asyncio.Task[None] | None = None
        self._rereading_nodes: asyncio.Task[None] | None = None

    def programs(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """What runs for the whole lifetime of the process."""
        configs = [self.configs.run] if self._watches_configmaps else []
        return [self.nodes.run, self.pods.run, self.slices.run, self.groups.run, *configs, self._reconcile]

    def synced(self) -> bool:
        """Whether we may answer: unhealthy cards, DRA drivers and PodGroups are known by then, or we may not read
        them."""
        configs = self.configs.answered.is_set() or not self._watches_configmaps
        others = self.slices.answered.is_set() and self.groups.answered.is_set()
        return self._listed() and configs and others

    @property
    def _watches_configmaps(self) -> bool:
        """gpushare takes cards out of use by ConfigMap; without that dialect we need no right to read them."""
        return gpushare.DIALECT in self._settings.served

    def _listed(self) -> bool:
        return self.nodes.synced.is_set() and self.pods.synced.is_set()

    async def refresh(self, others_wrote: bool = True) -> None:
        """Read everything as the API server has it now or later. The first list may be older: the last binds of
        another leader may be missing from it."""
        listed = self._listed()
        await self.nodes.synced.wait()
        await self.pods.synced.wait()
        if listed or others_wrote:
            await asyncio.gather(self.nodes.relist(), self.pods.relist())

    async def _reconcile(self) -> None:
        """Compare periodically what the watches reported with what the API server has."""
        while True:
            await asyncio.sleep(self._settings.reconcile_seconds)
            await self.refresh()

    def _reread_nodes(self) -> None:
        self.nodes.report_all_again()  # also of a first list that is under way: a part of it was read by other rules
        if self.nodes.synced.is_set():
            self._rereading_nodes = asyncio.get_running_loop().create_task(self.nodes.relist())

    def _reread_pods(self) -> None:
        self.pods.report_all_again()
        if self.pods.synced.is_set():
            self._rereading = asyncio.get_running_loop().create_task(self.pods.relist())
