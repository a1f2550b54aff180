"""The cluster as `kubectl aliquot` shows it: what nodes offer and hold, which Pods are on which card, and which wait
and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from aliquot.dialects import Rules
from aliquot.dialects.dra import DIALECT
from aliquot.dialects.dra.claims import AllocatedClaim, ClaimObject, parse_claim
from aliquot.dialects.wire.otherplugins import hand_out
from aliquot.model.claim import AppClass, Claim, Usage
from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.device import LEAST_FACTOR, Card
from aliquot.model.grant import Grant
from aliquot.model.node import Closed, Node, Offer
from aliquot.services.explain.claims import why_without_card
from aliquot.services.explain.snapshot import ClusterPod, Snapshot, take_snapshot
from aliquot.services.explain.verdicts import Note, Verdict
from aliquot.services.scheduler.cluster import booked_on
from aliquot.wording.groups import waiting
from aliquot.wording.nodes import closed, note
from aliquot.wording.refusals import held_back, one_sentence


@dataclass(frozen=True, slots=True)
class CardStanding:
    """One card and what is taken of it."""

    card: Card
    used: Usage


@dataclass(frozen=True, slots=True)
class PodStanding:
    """A Pod of ours that is on a node; `guessed`: no annotation names its cards."""

    key: str
    node: str
    claim: Claim
    grant: Grant
    guessed: bool


@dataclass(frozen=True, slots=True)
class ClaimStanding(PodStanding):
    """A ResourceClaim that holds cards; `users`: the Pods that it is reserved for, in its namespace."""

    users: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeStanding:
    """A node with cards, or one that would have some if it broke no rule."""

    name: str
    node: Node | None
    cards: tuple[CardStanding, ...]
    pods: tuple[PodStanding, ...]
    trouble: tuple[str, ...]  # what keeps Pods away: broken rules, not ready, cordoned
    by_claims: bool = False  # its cards go to ResourceClaims
    claims: tuple[ClaimStanding, ...] = ()  # those that hold them
    unreadable: tuple[str, ...] = ()  # what is wrong with claims that hold them and are not counted
    agent_away: bool = False  # no agent answers the kubelet there for the moment

    @property
    def offers(self) -> tuple[str, ...]:
        """The ways of use it offers, in a fixed order."""
        return () if self.node is None else (*self.node.offer_names, *((DIALECT,) * self.by_claims))

    @property
    def notes(self) -> list[str]:
        """What had to be assumed about it, in sentences."""
        return [] if self.node is None else [note(about) for about in self.node.notes]

    @property
    def factor(self) -> float:
        """Times their memory that may be booked on its cards."""
        return max((standing.card.oversubscribe for standing in self.cards), default=LEAST_FACTOR)

    @property
    def pool_mib(self) -> int:
        """Host memory for what does not fit on its cards."""
        return 0 if self.node is None else self.node.pool_mib

    @property
    def beyond_mib(self) -> int:
        """What is booked beyond its cards' memory."""
        return sum(max(0, standing.used.memory_mib - standing.card.memory_mib) for standing in self.cards)

    def count(self, app_class: AppClass) -> int:
        """How many of its Pods are of that class."""
        return sum(pod.claim.app_class is app_class for pod in self.pods)


@dataclass(frozen=True, slots=True)
class Overview:
    """The whole cluster at one moment."""

    nodes: tuple[NodeStanding, ...]
    waiting: tuple[ClusterPod, ...]  # Pods of ours without a node, oldest first; `why_waits` says why
    notes: tuple[Note, ...]
    snapshot: Snapshot

    def verdict(self, pod: ClusterPod) -> Verdict:
        """Where a waiting Pod would go, or every reason why not."""
        return self.snapshot.place(pod.manifest, why_not_elsewhere=False, book=False)

    def why_waits(self, pod: ClusterPod) -> str:
        """One sentence, computed when asked for: on a large cluster each takes its time."""
        return self.sentence(pod, self.verdict(pod))

    def sentence(self, pod: ClusterPod, verdict: Verdict) -> str:
        """Why the Pod, with that verdict, waits."""
        if verdict.gates:
            return held_back(verdict.gates)
        if verdict.broken:
            return f"breaks a rule: {verdict.broken[0].sentence()}"
        if verdict.group is not None:
            return waiting(verdict.group)
        if verdict.grant is not None:
            refusal = pod.read.last_refusal
            if refusal:
                return f"its GPU would fit on {verdict.grant.node}, but kube-scheduler last said: {refusal}"
            return f"fits on {verdict.grant.node}: kube-scheduler has not tried it since, or does not ask Aliquot"
        if verdict.claims:
            return why_without_card(verdict.claims, pod.read.last_refusal)
        if verdict.claim is None:
            return "requests no shared GPU"
        nodes = len(self.snapshot.nodes) + len(self.snapshot.cluster.reported.unusable)
        return one_sentence(verdict.refusals, verdict.claim, nodes)


def look(objects: Iterable[JsonObject], rules: Rules) -> Overview:
    """Nodes, Pods, ResourceClaims and the unhealthy-GPU ConfigMaps in; what there is to see out."""
    snapshot = take_snapshot(objects, policy="binpack", rules=rules)
    pods: dict[str, list[PodStanding]] = {}
    waiting = []
    for pod in snapshot.pods:
        if pod.read.finished:
            continue
        if not pod.read.spec.node_name:
            if snapshot.cluster.read(pod.read) is not None or snapshot.claims.wait(pod.read):
                waiting.append(pod)
            continue
        placed = snapshot.running.get(pod.key)
        if placed is not None:
            grant = placed.grant
            standing = PodStanding(pod.key, grant.node, placed.claim, grant, placed.doubt is not None)
            pods.setdefault(grant.node, []).append(standing)
    return Overview(
        tuple(sorted(_nodes(snapshot, pods, snapshot.claims.objects), key=lambda node: node.name)),
        tuple(sorted(waiting, key=lambda pod: (pod.created, pod.key))),
        tuple(snapshot.notes),
        snapshot,
    )


def _nodes(
    snapshot: Snapshot, pods: dict[str, list[PodStanding]], claims: Sequence[ClaimObject]
) -> Iterator[NodeStanding]:
    cluster = snapshot.cluster
    for name in snapshot.nodes:
        node = cluster.board.node(name)
        if node is None or not (node.cards or node.offers or name in pods):
            continue  # a node without cards, which asks nothing of us
        holding, wrong = _claims_on(node, claims)
        booked = booked_on(cluster.board, node, [claim.grant.usage() for claim in holding])
        cards = tuple(CardStanding(card, booked[card.index]) for card in node.cards)
        trouble, by_claims = (*_trouble(snapshot, name), *wrong), name in cluster.reported.by_claims
        here, away = tuple(pods.get(name, ())), Closed.AGENT_AWAY in cluster.reported.closed.get(name, ())
        yield NodeStanding(name, node, cards, here, trouble, by_claims, holding, tuple(wrong), away)
    for name, broken in cluster.reported.unusable.items():
        sentences = tuple(invalid.sentence() for invalid in broken)
        yield NodeStanding(name, None, (), tuple(pods.get(name, ())), sentences)


def _claims_on(node: Node, claims: Iterable[ClaimObject]) -> tuple[tuple[ClaimStanding, ...], list[str]]:
    """The claims that hold the node's cards, and what is wrong with those that cannot be read."""
    holding, wrong = [], []
    for claim in claims:
        if not claim.holds(node.name):
            continue
        read = parse_claim(claim, node.name, node.cards)
        if isinstance(read, AllocatedClaim):
            asked = Claim(read.uid, read.namespace, read.name, DIALECT, Offer.ANY, (), app_class=read.app_class)
            users = tuple(sorted(claim.pods.values()))
            holding.append(ClaimStanding(claim.key, node.name, asked, read.grant, False, users))
        else:
            wrong.append(f"ResourceClaim {claim.key} cannot be read: {read[0].sentence()}")
    return tuple(holding), wrong


def _trouble(snapshot: Snapshot, name: str) -> tuple[str, ...]:
    reported = snapshot.cluster.reported
    others = reported.others.get(name, ())
    nothing = [f"offers nothing: {hand_out(others)}"] if others else []
    return (*map(closed, reported.closed.get(name, ())), *nothing)
