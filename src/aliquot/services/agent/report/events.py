"""Events on the Node and its Pods: cards that fail, findings, refused memory, memory that moves, Pods that linger."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from aliquot.dialects.wire.objects import PodObject
from aliquot.model.cardstate.health import describe_out
from aliquot.model.device import Card
from aliquot.model.refusal import Invalid
from aliquot.model.residency import Arrival, Where
from aliquot.model.tenancy import Tenancy
from aliquot.model.tenant import Finding, FindingKind, Standing
from aliquot.services.daemon.events import EventSink, ObjectRef, pod_ref
from aliquot.services.runtime.elastic.moves import MovePace
from aliquot.wording.amounts import memory
from aliquot.wording.parking import arrival_words

log = logging.getLogger(__name__)

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


class NodeEvents:
    """Emits what has changed since the last call. `node`: the Node, as events name it."""

    def __init__(self, events: EventSink, node: Callable[[], ObjectRef]) -> None:
        self._events, self._node = events, node
        self._unhealthy: frozenset[str] = frozenset()
        self._refused: Invalid | None = None
        self._limited: dict[tuple[str, str], int] = {}  # refused allocations as last reported, by tenant and card
        self._paces: dict[str, MovePace] = {}  # of tenants whose memory has moved

    def emit(self, reason: str, text: str, *, type: str = "Warning") -> None:
        """On the Node, and in the log."""
        log.warning("node_event", extra={"data": {"reason": reason, "text": text}})
        self._events.emit(self._node(), reason, text, type=type, action="Watch")

    def report_health(self, health: Health, tenancies: Iterable[Tenancy]) -> None:
        """Emit events for cards that became unhealthy or healthy, on the Node and on the Pods that use them."""
        why = health.why  # read once: another thread replaces it
        unhealthy = frozenset(why)
        cards = {card.uuid: card for card in health.cards}
        for uuid in unhealthy - self._unhealthy:
            text = describe_out(cards[uuid], why[uuid])
            self.emit("GPUUnhealthy", text)
            for tenancy in tenancies:
                if any(share.uuid == uuid for share in tenancy.shares):
                    self._events.emit(_pod_ref(tenancy), "GPUUnhealthy", text, action="Watch")
        for uuid in self._unhealthy - unhealthy:
            if uuid in cards:
                self.emit("GPUHealthy", f"card {cards[uuid].index} ({uuid}) is back", type="Normal")
        self._unhealthy = unhealthy

    def report_findings(self, findings: Iterable[Finding], pods: Pods) -> None:
        """Emit each finding on the Pod it belongs to, else on the Node."""
        by_topic: dict[tuple[ObjectRef, str], list[str]] = {}
        for finding in findings:
            pod = pods.by_uid(finding.owner) if finding.owner else None
            about = self._node() if pod is None else pod_ref(pod.metadata)
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
            self.emit(
                "GPUStillInUse",
                f"Pod {tenancy.key} ({tenancy.id}) has ended, but its processes are still on its cards",
            )

    def report_refused(self, problem: Invalid) -> None:
        """Emit an event, once, for what the Node's labels enable and we cannot advertise."""
        if problem != self._refused:
            self._refused = problem
            self.emit("CannotAdvertise", problem.sentence())


def _pod_ref(tenancy: Tenancy) -> ObjectRef:
    return ObjectRef("Pod", tenancy.name, tenancy.namespace, tenancy.id)


def _limit_text(standing: Standing, numbers: Mapping[str, int]) -> str:
    limit = "" if standing.memory_limit is None else f" of {memory(standing.memory_limit >> 20)}"
    card = _card_text(standing.uuid, numbers)
    return f"allocations were refused past its limit{limit} on {card}: {standing.refused} so far"


def _card_text(uuid: str, numbers: Mapping[str, int]) -> str:
    return f"card {numbers.get(uuid, '?')} ({uuid})"
