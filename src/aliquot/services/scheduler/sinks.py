"""What the reflectors tell, into the cluster: nodes, Pods, and the ConfigMaps that take cards out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from aliquot import dialects
from aliquot.dialects.wire.objects import ConfigMapObject, NodeObject, PodObject
from aliquot.services.scheduler.agenthandover import Farewells
from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.nodeupkeep import NodeKeeper

log = logging.getLogger(__name__)


class NodeSink:
    """Nodes into the cluster. While the unit of gpu-mem is not known, each list is read whole before it is believed."""

    def __init__(
        self,
        cluster: Cluster,
        keeper: NodeKeeper | None,
        *,
        unit_known: bool,
        reread: Callable[[], None],
        farewells: Farewells | None = None,
    ):
        self.cluster, self.keeper, self.farewells = cluster, keeper, farewells
        self._unit_known, self._reread = unit_known, reread
        self._list: list[NodeObject] | None = None

    def listing(self) -> None:
        self._list = []

    def changed(self, item: NodeObject) -> None:
        if self._list is not None:
            self._list.append(item)
            return
        self._learn_unit([item])
        self._take(item)

    def gone(self, key: str) -> None:
        self.cluster.drop_node(key)
        if self.keeper is not None:
            self.keeper.forget(key)
        if self.farewells is not None:
            self.farewells.forget(key)

    def listed(self, drift: int) -> None:
        items, self._list = self._list or [], None
        self._learn_unit(items)
        self.cluster.begin()
        try:
            for item in items:
                self._take(item)
        finally:
            self.cluster.end()
        _tell_drift("nodes", drift)

    def _take(self, item: NodeObject) -> None:
        self.cluster.set_node(item)
        if self.keeper is not None:
            self.keeper.observe(item, self.cluster.unusable.get(item.metadata.name, ()))
        if self.farewells is not None:
            self.farewells.observe(item)

    def _learn_unit(self, items: list[NodeObject]) -> None:
        unit = None if self._unit_known else dialects.told_gpushare_unit(items)
        if unit is not None:
            self._unit_known = True
            log.info("unit of aliyun.com/gpu-mem", extra={"data": {"unit": str(unit)}})
            if self.cluster.use_unit(unit):
                self._reread()


@dataclass(slots=True)
class PodSink:
    """Pods into the cluster."""

    cluster: Cluster

    def listing(self) -> None:
        self.cluster.begin()

    def changed(self, item: PodObject) -> None:
        self.cluster.set_pod(item)

    def gone(self, key: str) -> None:
        self.cluster.drop_pod(key)

    def listed(self, drift: int) -> None:
        self.cluster.end()
        _tell_drift("pods", drift)


@dataclass(slots=True)
class ConfigSink:
    """Sick cards into the cluster, and to the keeper of nodes."""

    cluster: Cluster
    keeper: NodeKeeper | None
    before: dict[str, frozenset[int]] = field(default_factory=dict)

    def listing(self) -> None: ...

    def changed(self, item: ConfigMapObject) -> None:
        wrong = self.cluster.set_unhealthy(item)
        if wrong is not None:
            log.warning("a ConfigMap is not heeded", extra={"data": {"why": wrong.sentence()}})
        self._tell_keeper()

    def gone(self, key: str) -> None:
        self.cluster.drop_unhealthy(key)
        self._tell_keeper()

    def listed(self, drift: int) -> None: ...

    def _tell_keeper(self) -> None:
        now = dict(self.cluster.sick)
        for name in self.before.keys() | now.keys():
            if self.keeper is not None and self.before.get(name) != now.get(name):
                self.keeper.observe_unhealthy(name, now.get(name, frozenset()))
        self.before = now


def _tell_drift(what: str, drift: int) -> None:
    if drift:
        log.info("compared with the API server", extra={"data": {"what": what, "differences": drift}})
