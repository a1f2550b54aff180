"""Reflector sinks: apply Nodes, Pods and the ConfigMaps that take cards out of use to the cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from aliquot import dialects
from aliquot.dialects import MemoryUnit
from aliquot.dialects.wire.objects import ConfigMapObject, NodeObject, PodObject
from aliquot.services.scheduler.agenthandover import AgentHandover
from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.nodeupkeep import NodeUpkeep
from aliquot.services.scheduler.rejectedpods import RejectedPods

log = logging.getLogger(__name__)

_PART = 100  # nodes


class NodeSink:
    """Applies Nodes. The unit of gpu-mem is what most of them show, as long as no Pod is booked in it: after each list,
    and when a node comes that shows one. The first list is applied as it comes, in the unit that its beginning shows,
    and again in the rare case that the whole of it shows another."""

    def __init__(
        self,
        cluster: Cluster,
        upkeep: NodeUpkeep | None,
        *,
        unit_known: bool,
        reread: Callable[[], None],
        reread_nodes: Callable[[], None] = lambda: None,
        handover: AgentHandover | None = None,
    ):
        self.cluster, self.upkeep, self.handover = cluster, upkeep, handover
        self._unit_given, self._reread, self._reread_nodes = unit_known, reread, reread_nodes
        self._poll = dialects.UnitPoll()
        self._unit: MemoryUnit | None = None  # that nodes said whose agents were there
        self._unit_guessed = False
        self._list: list[NodeObject] | None = None
        self._applied = 0  # of the list
        self._first = True

    def listing(self) -> None:
        if self._list is None:  # else the last list broke off
            self._list = []
        self.cluster.begin()

    def changed(self, item: NodeObject) -> None:
        speaks_up = self._poll.hear(item)
        if self._list is not None:
            self._list.append(item)
            if self._first and len(self._list) >= self._applied + _PART:
                self._apply_beginning(self._list)
            return
        # One node that says now this and now that is not believed before the next list.
        if (speaks_up or self._unit is None) and self._learn_unit():
            self._reread_nodes()
        self._apply(item)

    def gone(self, key: str) -> None:
        if self._list is not None and self._applied:
            kept = [item for item in self._list if item.metadata.name != key]
            self._applied -= len(self._list) - len(kept)
            self._list = kept
        self._poll.forget(key)
        self.cluster.drop_node(key)
        if self.upkeep is not None:
            self.upkeep.forget(key)
        if self.handover is not None:
            self.handover.forget(key)

    def listed(self, drift: int) -> None:
        items, applied, first = self._list or [], self._applied, self._first
        self._list, self._applied, self._first = None, 0, False
        try:
            other = self._learn_unit()
            for item in items[0 if other else applied :]:
                self._apply(item)
            if other and not first:  # which has all nodes; a later list only what differs
                self._reread_nodes()
        finally:
            self.cluster.end()
        _log_drift("nodes", drift)

    def broke_off(self) -> None:
        """The rest of the first list comes with another one, which does not report again what came."""
        try:
            self._apply_beginning(self._list or [])
        finally:
            self.cluster.break_off()

    def _apply_beginning(self, items: list[NodeObject]) -> None:
        if not self._unit_given and not self._applied:
            self.cluster.use_unit(self._poll.unit() or MemoryUnit.GIB)
        for item in items[self._applied :]:
            self._apply(item)
            self._applied += 1

    def _apply(self, item: NodeObject) -> None:
        self.cluster.set_node(item)
        if self.upkeep is not None:
            self.upkeep.observe(item, self.cluster.reported.unusable.get(item.metadata.name, ()))
        if self.handover is not None:
            self.handover.observe(item)

    def _learn_unit(self) -> bool:
        """True if the unit is another one now. By nodes whose agents are away only until another says it: what they say
        may be old. What is booked is never read anew in another unit that most nodes come to say: a Pod's request
        would count a thousandfold, or a thousandth."""
        unit = None if self._unit_given else self._poll.unit(self._unit)
        if unit is None or unit is self._unit or (self._unit is not None and self.cluster.holds_gpu_mem):
            return False
        if self._poll.only_away:
            if self._unit_guessed:
                return False
            self._unit_guessed = True
        else:
            self._unit = unit
        log.info("gpu_mem_unit", extra={"data": {"unit": str(unit)}})
        if not self.cluster.use_unit(unit):
            return False
        self._reread()
        return True


@dataclass(slots=True)
class PodSink:
    """Applies Pods."""

    cluster: Cluster
    rejected: RejectedPods | None = None

    def listing(self) -> None:
        self.cluster.begin()

    def broke_off(self) -> None:
        self.cluster.break_off()

    def changed(self, item: PodObject) -> None:
        if self.rejected is not None and item.finished:
            self.rejected.observe(item)
        self.cluster.set_pod(item)

    def gone(self, key: str) -> None:
        self.cluster.drop_pod(key)
        if self.rejected is not None:
            self.rejected.forget(key)

    def listed(self, drift: int) -> None:
        self.cluster.end()
        _log_drift("pods", drift)


@dataclass(slots=True)
class ConfigSink:
    """Applies unhealthy cards to the cluster, and passes them to the upkeep of Nodes."""

    cluster: Cluster
    upkeep: NodeUpkeep | None
    before: dict[str, frozenset[int]] = field(default_factory=dict)

    def listing(self) -> None: ...

    def changed(self, item: ConfigMapObject) -> None:
        problem = self.cluster.set_unhealthy(item)
        if problem is not None:
            log.warning("configmap_ignored", extra={"data": {"why": problem.sentence()}})
        self._notify_upkeep()

    def gone(self, key: str) -> None:
        self.cluster.drop_unhealthy(key)
        self._notify_upkeep()

    def listed(self, drift: int) -> None: ...

    def _notify_upkeep(self) -> None:
        now = dict(self.cluster.reported.sick)
        for name in self.before.keys() | now.keys():
            if self.upkeep is not None and self.before.get(name) != now.get(name):
                self.upkeep.observe_unhealthy(name, now.get(name, frozenset()))
        self.before = now


def _log_drift(resource: str, drift: int) -> None:
    if drift:
        log.info("watch_drift", extra={"data": {"resource": resource, "differences": drift}})
