"""Reads the Node's labels, and writes its inventory annotation and amounts; annotates its Pods.

Writes are level-triggered: each is compared with what the API server last reported, and repeated until it is there. The
inventory is written by a patch of the Node's `status`, which may change its metadata: the role that existing
deployments have allows no more. The same role allows the amounts of resources that the kubelet does not count
(advertising.py). It keeps them, and sets them to 0 when it has lost its own records: then they are written again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from msgspec.structs import replace

import aliquot
from aliquot import dialects
from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.dialects import Rules
from aliquot.dialects.native import COUNTED, SEEN, parse_counted, render_agent, render_counted
from aliquot.dialects.wire.cdi import is_silent
from aliquot.dialects.wire.objects import Metadata, NodeObject, PodObject
from aliquot.dialects.wire.otherplugins import mentions_others, served_by_other
from aliquot.model.claim import Claim
from aliquot.model.device import Card
from aliquot.model.node import Node
from aliquot.model.numbers.backoff import backoff
from aliquot.model.numbers.quantity import QuantityError, parse_count
from aliquot.services.agent.report.events import NodeEvents
from aliquot.services.daemon.events import EventSink, ObjectRef

log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 15.0


class NodeReporter:
    """A reflector's sink for the one Node. It calls `changed` when the labels have changed."""

    def __init__(
        self,
        kube: Kube,
        events: EventSink,
        name: str,
        *,
        changed: Callable[[], None],
        facts: Callable[[], dict[str, str]] = dict,
    ) -> None:
        self._facts = facts  # more annotations of the Node
        self.node_known = asyncio.Event()  # the Node was read, with its container runtime
        self._kube, self._name, self._changed = kube, name, changed
        self.events = NodeEvents(events, self._reference)
        self._seen: NodeObject | None = None
        self._runtime = self._kubelet = ""
        self._labels: dict[str, str] | None = None  # as last reported; kept while the Node is deleted and created again
        self._inventory: dict[str, str] = {}
        self._counted: dict[str, int] = {}  # amounts in the Node's status, by resource
        self._leaving = False
        self._annotations: dict[str, tuple[PodObject, dict[str, str]]] = {}  # annotations to write on Pods, by UID
        self._read: tuple[object, Node] | None = None  # the Node as last parsed, and from what
        self._wake = asyncio.Event()

    # --- reading the Node ------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether there is a Node of our name."""
        return self._seen is not None

    @property
    def labels(self) -> Mapping[str, str]:
        """The Node's labels, as last reported."""
        return self._labels or {}

    @property
    def uid(self) -> str:
        """The Node's UID; empty while there is none of our name."""
        return self._seen.metadata.uid if self._seen else ""

    @property
    def beside_others(self) -> bool:
        """Whether another device plugin advertises cards on the Node, or did."""
        return self._seen is not None and mentions_others(self._seen)

    def nvidia_gpu_is_taken(self, own: int) -> bool:
        """Whether another plugin serves nvidia.com/gpu; `own` is as much as we would advertise of it."""
        return self._seen is not None and served_by_other(self._seen, own)

    @property
    def runtime(self) -> str:
        """The container runtime with its version, as `containerd://2.1.0`; empty while unknown.

        It is kept while the Node is deleted and created again, and while the runtime restarts.
        """
        return self._runtime

    @property
    def kubelet(self) -> str:
        """The kubelet's version, as `v1.31.2`; kept likewise."""
        return self._kubelet

    @property
    def published(self) -> bool:
        """Whether the Node has our inventory."""
        there = (self._seen.metadata.annotations if self._seen else None) or {}
        return bool(self._inventory) and self._inventory.items() <= there.items()

    def listing(self) -> None: ...

    def changed(self, item: NodeObject) -> None:
        before, self._labels = self._labels, item.metadata.labels
        first, self._seen = self._seen is None, item
        info = item.status.node_info
        silent = info is not None and is_silent(info.container_runtime_version)
        if info is not None:
            self._kubelet = info.kubelet_version
            self._runtime = self._runtime if silent else info.container_runtime_version  # it will come back unchanged
        if self._runtime or not silent:  # else we cannot know how to inject into containers
            self.node_known.set()
        self._wake.set()
        if first or before != item.metadata.labels:
            self._changed()

    def gone(self, key: str) -> None:
        self._seen = None

    def listed(self, drift: int) -> None:
        if self._seen is None:
            fix = "set --nodename or $NODE_NAME to the name that `kubectl get nodes` shows"
            log.warning("node_not_found", extra={"data": {"node": self._name, "fix": fix}})

    def node(self, cards: tuple[Card, ...], rules: Rules) -> Node:
        """The Node with these cards. Its offers come from its labels alone: what it advertises is our own doing."""
        key = (cards, self._labels, rules, self._facts())
        if self._read is not None and self._read[0] == key:
            return self._read[1]
        node = self._parse(cards, self._labels, rules)
        self._read = (key, node)
        return node

    def _parse(self, cards: tuple[Card, ...], labels: dict[str, str] | None, rules: Rules) -> Node:
        metadata = Metadata(
            name=self._name, labels=labels, annotations=dialects.render_inventory(cards) | self._facts()
        )
        node = dialects.parse_node(NodeObject(metadata), rules)
        if isinstance(node, Node):
            return node
        self.events.emit(
            "BadLabel", "; ".join(problem.sentence() for problem in node) + "; the former labels stay in effect"
        )
        before = self._read[1] if self._read else Node(self._name)  # a typo must not remove running Pods' resources
        return replace(before, cards=cards)

    # --- writing ---------------------------------------------------------------------------------------------------

    def publish(self, cards: tuple[Card, ...], *, here: bool, counted: Mapping[str, int] | None = None) -> None:
        """Set the inventory to write, and the amounts of resources that the kubelet does not count. `here`: the kubelet
        has accepted all our resources."""
        agent = render_agent(aliquot.__version__, here=here and not self._leaving)
        self._counted = dict(counted or {})
        self._inventory = dialects.render_inventory(cards) | agent | self._facts() | render_counted(self._counted)
        if not self.published or self._amounts_to_write():
            self._wake.set()

    @property
    def counts(self) -> bool:
        """Whether the Node's status has all amounts that the kubelet does not count, and there are some."""
        return bool(self._counted) and not self._amounts_to_write()

    @property
    def marked(self) -> bool:
        """Whether the Node says that its agent counts such resources: this one, or an earlier one."""
        return self._seen is not None and bool(parse_counted(self._seen.metadata.annotations or {}))

    @property
    def uncounted(self) -> tuple[str, ...]:
        """The resources whose amounts are not in the Node's status yet."""
        return tuple(resource for resource in self._amounts_to_write() if resource in self._counted)

    def _amounts_to_write(self) -> dict[str, str | None]:
        """By resource, what the Node's status has wrong; None: it has to go. That is so when we stop, as the kubelet
        does it with devices: no scheduler of any release may send Pods there. It must not be 0: a kubelet that
        restarts would refuse the Pods that run."""
        if self._seen is None:
            return {}
        status = self._seen.status
        sides = (status.capacity or {}, status.allocatable or {})
        ours = parse_counted(self._seen.metadata.annotations or {})
        if self._leaving:
            return {resource: None for resource in ours if any(resource in side for side in sides)}
        wrong: dict[str, str | None] = {
            resource: str(amount)
            for resource, amount in self._counted.items()
            if any(_amount(side.get(resource)) != amount for side in sides)
        }
        return wrong | dict.fromkeys(ours - self._counted.keys())

    async def announce_departure(self) -> bool:
        """Ask the scheduler to bind no Pod here until the next agent is ready. Returns whether that was written."""
        self._leaving = True
        if not self.exists:
            return False
        away = render_agent(aliquot.__version__, here=False)
        self._inventory = {**self._inventory, **away}
        body = {"metadata": {"annotations": {**away, SEEN: None}}}
        try:
            self.changed(await self._kube.patch(f"/api/v1/nodes/{self._name}/status", body, into=NodeObject))
        except (ApiError, Unreachable) as error:
            log.warning("departure_not_announced", extra={"data": {"why": str(error)}})
            return False
        with suppress(ApiError, Unreachable):  # `run` tries again while there is time
            await self._write_amounts()
        return True

    @property
    def acknowledged(self) -> bool:
        """Whether the scheduler has acknowledged the departure. Checks for the departure, too: a watch that lags may
        still show the acknowledgement that an earlier agent got."""
        seen = self._seen
        return seen is not None and seen.agent_away and SEEN in (seen.metadata.annotations or {})

    def mark_assigned(self, pod: PodObject, claim: Claim) -> None:
        """Annotate that the Pod's container has its cards: tools of peers read that."""
        self.annotate(pod, dialects.render_assigned(claim))

    def annotate(self, pod: PodObject, annotations: dict[str, str]) -> None:
        """Write these annotations on the Pod, in addition to those still to be written."""
        wanted = {**self._annotations.get(pod.metadata.uid, (pod, {}))[1], **annotations}
        if wanted.items() <= (pod.metadata.annotations or {}).items():
            return
        self._annotations[pod.metadata.uid] = (pod, wanted)
        self._wake.set()

    async def run(self) -> None:
        """Write what is wanted, until cancelled."""
        attempt = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._write()
                attempt = 0
            except (ApiError, Unreachable) as error:
                attempt += 1
                if attempt in (1, 5) or attempt % 20 == 0:
                    log.warning("node_write_failed", extra={"data": {"why": str(error)}})
                await asyncio.sleep(backoff(attempt, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE))
                self._wake.set()

    async def _write(self) -> None:
        try:
            await self._write_inventory()
            await self._write_amounts()
        finally:  # our role may allow only some of them
            await self._write_annotations()

    async def _write_inventory(self) -> None:
        if self._inventory and self.exists and not self.published:
            body = {"metadata": {"annotations": dict(self._inventory)}}
            self.changed(await self._kube.patch(f"/api/v1/nodes/{self._name}/status", body, into=NodeObject))

    async def _write_amounts(self) -> None:
        """After the annotation that names them: no reader must take an amount for devices."""
        amounts = self._amounts_to_write()
        if amounts and self.published:
            # The kubelet makes the allocatable amount equal to the capacity, but only every 10 seconds.
            body: dict[str, object] = {"status": {"capacity": amounts, "allocatable": amounts}}
            if not self._counted and not self._leaving:  # the mark stays for the next agent
                body["metadata"] = {"annotations": {COUNTED: None}}
            self.changed(await self._kube.patch(f"/api/v1/nodes/{self._name}/status", body, into=NodeObject))

    async def _write_annotations(self) -> None:
        for uid, (pod, wanted) in list(self._annotations.items()):
            # With the UID the patch fails for a new Pod of the same name.
            body = {"metadata": {"uid": uid, "annotations": wanted}}
            path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"
            try:
                await self._kube.patch(path, body, into=bytes)
            except ApiError as error:
                if error.status not in (403, 404, 409, 422):
                    raise
                log.info("pod_not_annotated", extra={"data": {"pod": path, "why": error.message}})
            if self._annotations.get(uid) == (pod, wanted):  # else more was wanted meanwhile
                del self._annotations[uid]

    def _reference(self) -> ObjectRef:
        return ObjectRef("Node", self._name, uid=self.uid)


def _amount(quantity: str | int | float | None) -> int | None:
    """The API server writes 655000 as 655k."""
    try:
        return None if quantity is None else parse_count(quantity)
    except QuantityError:
        return None
