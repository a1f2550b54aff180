"""What the agent writes of its node, and what it reads there: labels in, inventory out, events on Node and Pods.

Writes are wishes: each is compared with what the API server last told, and written until it stands there. The inventory
goes in by the `status` of the Node, whose metadata a patch of it may change: that is all that the seeds' role allows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

import aliquot
from aliquot import dialects
from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.dialects import Rules
from aliquot.dialects.native import SEEN, render_agent
from aliquot.dialects.wire.cdi import is_silent
from aliquot.dialects.wire.objects import Metadata, NodeObject, PodObject
from aliquot.model.claim import Claim
from aliquot.model.device import Card
from aliquot.model.health import describe_out
from aliquot.model.node import Node
from aliquot.model.podtenancy import PodTenancy
from aliquot.model.refusal import Invalid
from aliquot.model.tenant import Finding, Standing
from aliquot.services.daemon.events import EventSink, ObjectRef, pod_ref
from aliquot.services.daemon.pace import backoff

log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 15.0


class Sickness(Protocol):
    """What is known of the cards that are out."""

    @property
    def cards(self) -> tuple[Card, ...]: ...
    @property
    def why(self) -> Mapping[str, str]: ...


class Pods(Protocol):
    """The Pods of the node."""

    def by_uid(self, uid: str) -> PodObject | None: ...


class NodeReporter:
    """A reflector's sink for the one Node; `changed` is called when its labels have changed."""

    def __init__(self, kube: Kube, events: EventSink, name: str, *, changed: Callable[[], None]) -> None:
        self.node_known = asyncio.Event()  # of the Node
        self._kube, self._events, self._name, self._changed = kube, events, name, changed
        self._seen: NodeObject | None = None
        self._runtime = self._kubelet = ""
        self._labels: dict[str, str] | None = None  # as last told: a Node that is made anew takes nothing away
        self._inventory: dict[str, str] = {}
        self._leaving = False
        self._marks: dict[str, tuple[PodObject, dict[str, str]]] = {}  # annotations that Pods are to get, by UID
        self._out: frozenset[str] = frozenset()
        self._refused: Invalid | None = None
        self._limited: dict[tuple[str, str], int] = {}  # refused allocations that were told, by tenant and card
        self._read: tuple[object, Node] | None = None  # the Node as it was last read, and from what
        self._wake = asyncio.Event()

    # --- the Node, as it is told -----------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether the API server has a Node of our name."""
        return self._seen is not None

    @property
    def runtime(self) -> str:
        """The container runtime with its version, as `containerd://2.1.0`; empty while it is not known.

        A Node that is deleted, to be made anew, does not take the runtime with it, nor does one that is restarted.
        """
        return self._runtime

    @property
    def kubelet(self) -> str:
        """The kubelet's version, as `v1.31.2`; likewise."""
        return self._kubelet

    @property
    def published(self) -> bool:
        """Whether the inventory on the Node is ours."""
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
            self._runtime = self._runtime if silent else info.container_runtime_version  # it comes back as it was
        if self._runtime or not silent:  # else nobody knows how its containers are to be led
            self.node_known.set()
        self._wake.set()
        if first or before != item.metadata.labels:
            self._changed()

    def gone(self, key: str) -> None:
        self._seen = None

    def listed(self, drift: int) -> None:
        if self._seen is None:
            fix = "name it as `kubectl get nodes` does, with --nodename or $NODE_NAME"
            log.warning("there is no Node of this name", extra={"data": {"node": self._name, "fix": fix}})

    def node(self, cards: tuple[Card, ...], rules: Rules) -> Node:
        """The Node with these cards. What it offers is by its labels alone: what it advertises is our own doing."""
        key = (cards, self._labels, rules)
        if self._read is not None and self._read[0] == key:
            return self._read[1]
        node = self._parse(cards, self._labels, rules)
        self._read = (key, node)
        return node

    def _parse(self, cards: tuple[Card, ...], labels: dict[str, str] | None, rules: Rules) -> Node:
        told = Metadata(name=self._name, labels=labels, annotations=dialects.render_inventory(cards))
        found = dialects.parse_node(NodeObject(told), rules)
        if isinstance(found, Node):
            return found
        self._report("BadLabel", "; ".join(each.sentence() for each in found) + "; what it said before holds")
        before = self._read[1] if self._read else Node(self._name)  # a slip must not take running Pods' resources away
        return replace(before, cards=cards)

    # --- what is to stand there ------------------------------------------------------------------------------------

    def publish(self, cards: tuple[Card, ...], *, here: bool) -> None:
        """These are the cards of the node; `here`: the kubelet has all that is on offer from us."""
        agent = render_agent(aliquot.__version__, here=here and not self._leaving)
        self._inventory = dialects.render_inventory(cards) | agent
        if not self.published:
            self._wake.set()

    async def announce_departure(self) -> bool:
        """We are about to go: the scheduler is to send no Pod until the next of us says so. Whether it was told."""
        self._leaving = True
        if not self.exists:
            return False
        away = render_agent(aliquot.__version__, here=False)
        self._inventory = {**self._inventory, **away}
        body = {"metadata": {"annotations": {**away, SEEN: None}}}
        try:
            self.changed(await self._kube.patch(f"/api/v1/nodes/{self._name}/status", body, into=NodeObject))
        except (ApiError, Unreachable) as error:
            log.warning("the scheduler is not told that we go", extra={"data": {"why": str(error)}})
            return False
        return True

    @property
    def acknowledged(self) -> bool:
        """Whether the scheduler has heard that, and sends no more. A watch that is a moment behind may still tell of
        the answer to the last of us, while we were here."""
        seen = self._seen
        return seen is not None and seen.agent_away and SEEN in (seen.metadata.annotations or {})

    def mark_assigned(self, pod: PodObject, claim: Claim) -> None:
        """The Pod's container is on its cards, which peers' tools read from an annotation."""
        self.annotate(pod, dialects.render_assigned(claim))

    def annotate(self, pod: PodObject, marks: dict[str, str]) -> None:
        """Annotations that the Pod is to have, beside those that it was to get before."""
        marks = {**self._marks.get(pod.metadata.uid, (pod, {}))[1], **marks}
        if marks.items() <= (pod.metadata.annotations or {}).items():
            return
        self._marks[pod.metadata.uid] = (pod, marks)
        self._wake.set()

    async def run(self) -> None:
        """Writes what is to stand there, until cancelled."""
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
                    log.warning("cannot write to the API server", extra={"data": {"why": str(error)}})
                await asyncio.sleep(backoff(attempt, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE))
                self._wake.set()

    async def _write(self) -> None:
        try:
            await self._write_inventory()
        finally:  # a role that lets us write only the one, lets us write that one
            await self._write_marks()

    async def _write_inventory(self) -> None:
        if self._inventory and self.exists and not self.published:
            body = {"metadata": {"annotations": dict(self._inventory)}}
            self.changed(await self._kube.patch(f"/api/v1/nodes/{self._name}/status", body, into=NodeObject))

    async def _write_marks(self) -> None:
        for uid, (pod, marks) in list(self._marks.items()):
            # The UID in the patch: a Pod that was made anew under this name is not meant.
            mark = {"metadata": {"uid": uid, "annotations": marks}}
            path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"
            try:
                await self._kube.patch(path, mark, into=bytes)
            except ApiError as error:
                if error.status not in (403, 404, 409, 422):
                    raise
                log.info("a Pod is not marked", extra={"data": {"pod": path, "why": error.message}})
            if self._marks.get(uid) == (pod, marks):  # else more was wanted meanwhile
                del self._marks[uid]

    # --- what happened ---------------------------------------------------------------------------------------------

    def report_health(self, health: Sickness, tenancies: Iterable[PodTenancy]) -> None:
        """Cards that have gone out, or are back: on the Node, and on the Pods that have them."""
        why = health.why  # once: it is another thread's
        out = frozenset(why)
        cards = {card.uuid: card for card in health.cards}
        for uuid in out - self._out:
            text = describe_out(cards[uuid], why[uuid])
            self._report("GPUUnhealthy", text)
            for tenancy in tenancies:
                if any(share.uuid == uuid for share in tenancy.shares):
                    self._events.emit(pod_ref(tenancy), "GPUUnhealthy", text, action="Watch")
        for uuid in self._out - out:
            if uuid in cards:
                self._report("GPUHealthy", f"card {cards[uuid].index} ({uuid}) is back", type="Normal")
        self._out = out

    def report_findings(self, findings: Iterable[Finding], pods: Pods) -> None:
        """What should not be on the cards: on the Pod it belongs to, else on the Node."""
        by_place: dict[ObjectRef, list[str]] = {}
        for finding in findings:
            pod = pods.by_uid(finding.owner) if finding.owner else None
            about = self._reference() if pod is None else pod_ref(pod.metadata)
            who = "" if finding.pid is None else f"process {finding.pid} "
            by_place.setdefault(about, []).append(f"card {finding.uuid}: {who}{finding.text}")
        for about, texts in by_place.items():
            self._events.emit(about, "GPUFinding", "; ".join(sorted(texts)), action="Watch")

    def report_limits(
        self, standings: Iterable[Standing], tenancies: Mapping[str, PodTenancy], cards: Iterable[Card]
    ) -> None:
        """Pods that were refused memory past their limit: the first time, and whenever that has doubled. Programs that
        try for more and then do with less, as caching allocators do, are no reason for an event every few seconds."""
        hit = {
            (standing.tenant, standing.uuid): standing
            for standing in standings
            if standing.refused and standing.tenant in tenancies
        }
        grown = {key[0] for key, each in hit.items() if each.refused >= 2 * self._limited.get(key, 0)}
        self._limited = {key: each.refused if key[0] in grown else self._limited[key] for key, each in hit.items()}
        numbers = {card.uuid: card.index for card in cards}
        for uid in grown:
            texts = (_limit_told(each, numbers) for key, each in sorted(hit.items()) if key[0] == uid)
            self._events.emit(pod_ref(tenancies[uid]), "GPUMemoryLimit", "; ".join(texts), action="Watch")

    def report_lingering(self, tenancies: Iterable[PodTenancy]) -> None:
        """Pods that ended a while ago and still have processes on a card."""
        for tenancy in tenancies:
            self._report(
                "GPUStillInUse",
                f"Pod {tenancy.key} ({tenancy.uid}) has ended, but its processes are still on its cards",
            )

    def report_refused(self, problem: Invalid) -> None:
        """Something that the node's owner asks for and cannot have. Told once."""
        if problem != self._refused:
            self._refused = problem
            self._report("CannotAdvertise", problem.sentence())

    def _report(self, reason: str, text: str, *, type: str = "Warning") -> None:
        log.warning("told of the node", extra={"data": {"reason": reason, "text": text}})
        self._events.emit(self._reference(), reason, text, type=type, action="Watch")

    def _reference(self) -> ObjectRef:
        return ObjectRef("Node", self._name, uid=self._seen.metadata.uid if self._seen else "")


def _limit_told(standing: Standing, numbers: Mapping[str, int]) -> str:
    limit = "" if standing.memory_limit is None else f" of {standing.memory_limit / (1 << 30):.1f} GiB"
    card = f"card {numbers.get(standing.uuid, '?')} ({standing.uuid})"
    return f"allocations were refused past its limit{limit} on {card}: {standing.refused} so far"
