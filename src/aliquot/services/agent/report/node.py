"""Reads the Node's labels, writes its inventory annotation, and emits events on the Node and its Pods.

Writes are level-triggered: each is compared with what the API server last reported, and repeated until it is there. The
inventory is written by a patch of the Node's `status`, which may change its metadata: the role that existing
deployments have allows no more. The same role allows the amounts of resources that the kubelet does not count
(advertising.py). It keeps them, and sets them to 0 when it has lost its own records: then they are written again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

import aliquot
from aliquot import dialects
from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.dialects import Rules
from aliquot.dialects.native import COUNTED, SEEN, parse_counted, render_agent, render_counted
from aliquot.dialects.wire.cdi import is_silent
from aliquot.dialects.wire.objects import Metadata, NodeObject, PodObject
from aliquot.dialects.wire.otherplugins import mentions_others, served_by_other
from aliquot.model.backoff import backoff
from aliquot.model.claim import Claim
from aliquot.model.device import Card
from aliquot.model.health import describe_out
from aliquot.model.node import Node
from aliquot.model.quantity import QuantityError, parse_count
from aliquot.model.refusal import Invalid
from aliquot.model.residency import Arrival, Where
from aliquot.model.tenancy import Tenancy
from aliquot.model.tenant import Finding, FindingKind, Standing
from aliquot.services.daemon.events import EventSink, ObjectRef, pod_ref
from aliquot.services.runtime.elastic.moves import MovePace
from aliquot.wording.amounts import memory
from aliquot.wording.parking import arrival_words

log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 15.0
_REASONS = {  # of events
    FindingKind.OVERUSE: "GPUMemoryExceeded",
    FindingKind.ENDED: "GPUProcessEnded",
    FindingKind.INERT: "GPUControlInert",
}


class Health(Protocol):
    """The cards, and why some are unhealthy, by UUID."""

    @property
    def cards(self) -> tuple[Card, ...]: ...
    @property
    def why(self) -> Mapping[str, str]: ...


class Pods(Protocol):
    """The Pods of the node."""

    def by_uid(self, uid: str) -> PodObject | None: ...


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
        self._kube, self._events, self._name, self._changed = kube, events, name, changed
        self._seen: NodeObject | None = None
        self._runtime = self._kubelet = ""
        self._labels: dict[str, str] | None = None  # as last reported; kept while the Node is deleted and created again
        self._inventory: dict[str, str] = {}
        self._counted: dict[str, int] = {}  # amounts in the Node's status, by resource
        self._leaving = False
        self._annotations: dict[str, tuple[PodObject, dict[str, str]]] = {}  # annotations to write on Pods, by UID
        self._unhealthy: frozenset[str] = frozenset()
        self._refused: Invalid | None = None
        self._limited: dict[tuple[str, str], int] = {}  # refused allocations as last reported, by tenant and card
        self._paces: dict[str, MovePace] = {}  # of tenants whose memory has moved
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
        self._report(
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
        """Tell the scheduler to bind no Pod here until the next agent is ready. Returns whether that was written."""
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
        """After the annotation that names them: nobody must see an amount and take it for devices."""
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

    # --- events ----------------------------------------------------------------------------------------------------

    def report_health(self, health: Health, tenancies: Iterable[Tenancy]) -> None:
        """Emit events for cards that became unhealthy or healthy, on the Node and on the Pods that use them."""
        why = health.why  # read once: another thread replaces it
        unhealthy = frozenset(why)
        cards = {card.uuid: card for card in health.cards}
        for uuid in unhealthy - self._unhealthy:
            text = describe_out(cards[uuid], why[uuid])
            self._report("GPUUnhealthy", text)
            for tenancy in tenancies:
                if any(share.uuid == uuid for share in tenancy.shares):
                    self._events.emit(_pod_ref(tenancy), "GPUUnhealthy", text, action="Watch")
        for uuid in self._unhealthy - unhealthy:
            if uuid in cards:
                self._report("GPUHealthy", f"card {cards[uuid].index} ({uuid}) is back", type="Normal")
        self._unhealthy = unhealthy

    def report_findings(self, findings: Iterable[Finding], pods: Pods) -> None:
        """Emit each finding on the Pod it belongs to, else on the Node."""
        by_topic: dict[tuple[ObjectRef, str], list[str]] = {}
        for finding in findings:
            pod = pods.by_uid(finding.owner) if finding.owner else None
            about = self._reference() if pod is None else pod_ref(pod.metadata)
            who = "" if finding.pid is None else f"process {finding.pid} "
            topic = (about, _REASONS.get(finding.kind, "GPUFinding"))
            by_topic.setdefault(topic, []).append(f"card {finding.uuid}: {who}{finding.text}")
        for (about, reason), texts in by_topic.items():
            self._events.emit(about, reason, "; ".join(sorted(texts)), action="Watch")

    def report_limits(
        self, standings: Iterable[Standing], tenancies: Mapping[str, Tenancy], cards: Iterable[Card]
    ) -> None:
        """Emit an event on a Pod whose allocations were refused: the first time, and whenever the number has doubled.
        Caching allocators try for more and then do with less, which must not cause an event every few seconds."""
        hit = {
            (standing.tenant, standing.uuid): standing
            for standing in standings
            if standing.refused and standing.tenant in tenancies
        }
        grown = {key[0] for key, standing in hit.items() if standing.refused >= 2 * self._limited.get(key, 0)}
        self._limited = {
            key: standing.refused if key[0] in grown else self._limited[key] for key, standing in hit.items()
        }
        numbers = {card.uuid: card.index for card in cards}
        for uid in grown:
            texts = (_limit_text(standing, numbers) for key, standing in sorted(hit.items()) if key[0] == uid)
            self._events.emit(_pod_ref(tenancies[uid]), "GPUMemoryLimit", "; ".join(texts), action="Watch")

    def report_moves(
        self,
        arrivals: Iterable[Arrival],
        tenancies: Mapping[str, Tenancy],
        users: Callable[[str], Iterable[PodObject]],
        cards: Iterable[Card],
        now: float,
    ) -> None:
        """Emit events when the memory of a Pod has left its card and when it is back, at most one pair a minute. Those
        of a claim are on its `users`. Call it also without arrivals."""
        by_tenant: dict[str, list[Arrival]] = {}
        for arrival in arrivals:
            by_tenant.setdefault(arrival.tenant, []).append(arrival)
        known = {*self._paces, *by_tenant} & tenancies.keys()
        self._paces = {uid: self._paces.get(uid) or MovePace() for uid in known}
        numbers = {card.uuid: card.index for card in cards}
        for uid, pace in self._paces.items():
            for arrival, left_out in pace.choose(by_tenant.get(uid, ()), now):
                text = arrival_words(arrival, _card_text(arrival.uuid, numbers), left_out)
                reason = "GPUMemoryParked" if arrival.where is Where.PARKED else "GPUMemoryReturned"
                tenancy = tenancies[uid]
                refs = [pod_ref(pod.metadata) for pod in users(uid)] if tenancy.claim else [_pod_ref(tenancy)]
                for about in refs:
                    self._events.emit(about, reason, text, type="Normal", action="MoveMemory")

    def report_lingering(self, tenancies: Iterable[Tenancy]) -> None:
        """Emit an event for Pods that ended a while ago and still have processes on a card."""
        for tenancy in tenancies:
            self._report(
                "GPUStillInUse",
                f"Pod {tenancy.key} ({tenancy.id}) has ended, but its processes are still on its cards",
            )

    def report_refused(self, problem: Invalid) -> None:
        """Emit an event, once, for what the Node's labels enable and we cannot advertise."""
        if problem != self._refused:
            self._refused = problem
            self._report("CannotAdvertise", problem.sentence())

    def _report(self, reason: str, text: str, *, type: str = "Warning") -> None:
        log.warning("node_event", extra={"data": {"reason": reason, "text": text}})
        self._events.emit(self._reference(), reason, text, type=type, action="Watch")

    def _reference(self) -> ObjectRef:
        return ObjectRef("Node", self._name, uid=self.uid)


def _amount(quantity: str | int | float | None) -> int | None:
    """The API server writes 655000 as 655k."""
    try:
        return None if quantity is None else parse_count(quantity)
    except QuantityError:
        return None


def _pod_ref(tenancy: Tenancy) -> ObjectRef:
    return ObjectRef("Pod", tenancy.name, tenancy.namespace, tenancy.id)


def _limit_text(standing: Standing, numbers: Mapping[str, int]) -> str:
    limit = "" if standing.memory_limit is None else f" of {memory(standing.memory_limit >> 20)}"
    card = _card_text(standing.uuid, numbers)
    return f"allocations were refused past its limit{limit} on {card}: {standing.refused} so far"


def _card_text(uuid: str, numbers: Mapping[str, int]) -> str:
    return f"card {numbers.get(uuid, '?')} ({uuid})"
