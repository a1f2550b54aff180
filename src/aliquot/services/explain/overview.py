"""The cluster as people look at it: what each node offers and holds, who is on which card, and who waits and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from aliquot import dialects
from aliquot.dialects import Rules, kube
from aliquot.model.claim import AppClass, Claim, Usage
from aliquot.model.device import Card
from aliquot.model.grant import Grant
from aliquot.model.node import Node, Offer
from aliquot.services.explain.snapshot import Note, Snapshot, Verdict, pod_key, take_snapshot
from aliquot.wording.refusals import one_sentence

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CardStanding:
    """One card and what is taken of it."""

    card: Card
    used: Usage


@dataclass(frozen=True, slots=True)
class PodStanding:
    """A Pod of ours that is on a node; `guessed`: no annotation tells its cards."""

    key: str
    node: str
    claim: Claim
    grant: Grant
    guessed: bool


@dataclass(frozen=True, slots=True)
class NodeStanding:
    """A node with cards, or one that would have some if it broke no rule."""

    name: str
    node: Node | None
    cards: tuple[CardStanding, ...]
    pods: tuple[PodStanding, ...]
    trouble: tuple[str, ...]  # what keeps Pods away: broken rules, not ready, cordoned

    @property
    def offers(self) -> tuple[str, ...]:
        """The ways of use it offers, in a fixed order."""
        return tuple(offer.value for offer in Offer if self.node is not None and offer in self.node.offers)

    def count(self, app_class: AppClass) -> int:
        """How many of its Pods are of that class."""
        return sum(pod.claim.app_class is app_class for pod in self.pods)


@dataclass(frozen=True, slots=True)
class Overview:
    """The whole cluster at one moment."""

    nodes: tuple[NodeStanding, ...]
    waiting: tuple[Json, ...]  # Pods of ours without a node; why_waits tells why
    notes: tuple[Note, ...]
    snapshot: Snapshot

    def verdict(self, pod: Json) -> Verdict:
        """Where a waiting Pod would go, or every reason why not."""
        return self.snapshot.place(pod, why_not_elsewhere=False, book=False)

    def why_waits(self, pod: Json) -> str:
        """One sentence. Works out the answer when asked: on a large cluster each takes its time."""
        gates = _gates(pod)
        if gates:
            return f"is held back by its scheduling gates: {', '.join(gates)}"
        return self.sentence(pod, self.verdict(pod))

    def sentence(self, pod: Json, verdict: Verdict) -> str:
        """Why the Pod, with that verdict, waits."""
        if verdict.broken:
            return f"breaks a rule: {verdict.broken[0].sentence()}"
        if verdict.grant is not None:
            said = last_refusal(pod)
            if said:
                return f"its GPU would fit on {verdict.grant.node}, but kube-scheduler last said: {said}"
            return f"fits on {verdict.grant.node}: kube-scheduler has not tried it since, or does not ask us"
        if verdict.claim is None:
            return "asks for no GPU of ours"
        return one_sentence(verdict.refusals, verdict.claim, len(self.snapshot.nodes) + len(self.snapshot.unusable))


def look(objects: Iterable[Json], rules: Rules) -> Overview:
    """Nodes, Pods and the unhealthy-GPU ConfigMaps in; what there is to see out."""
    given = [each for each in objects if isinstance(each, dict)]
    snapshot = take_snapshot(given, policy="binpack", rules=rules)
    pods: dict[str, list[PodStanding]] = {}
    waiting = []
    for obj in given:
        if obj.get("kind") != "Pod" or kube.is_finished(obj):
            continue
        claim = dialects.parse_pod(obj, rules)
        if claim is None:
            continue
        if not _node_of(obj):
            waiting.append(obj)
        elif isinstance(claim, Claim) and claim.key in snapshot.running:
            grant = snapshot.running[claim.key]
            standing = PodStanding(claim.key, grant.node, claim, grant, claim.key in snapshot.guessed)
            pods.setdefault(grant.node, []).append(standing)
    return Overview(
        tuple(sorted(_nodes(snapshot, pods), key=lambda node: node.name)),
        tuple(sorted(waiting, key=_age_and_name)),
        tuple(snapshot.notes),
        snapshot,
    )


def _nodes(snapshot: Snapshot, pods: dict[str, list[PodStanding]]) -> Iterator[NodeStanding]:
    board = snapshot.board
    for name, obj in snapshot.nodes.items():
        node = board.node(name)
        if node is None or not (node.cards or node.offers or name in pods):
            continue  # a node without cards, which asks nothing of us
        row = board.row_of[name]
        cards = tuple(
            CardStanding(
                card,
                Usage(
                    int(board.used_memory[row, card.index]),
                    int(board.used_core[row, card.index]),
                    int(board.used_greedy[row, card.index]),
                    int(board.used_slices[row, card.index]),
                    int(board.exclusive[row, card.index]),
                ),
            )
            for card in node.cards
        )
        yield NodeStanding(name, node, cards, tuple(pods.get(name, ())), tuple(_closed(obj)))
    for name, broken in snapshot.unusable.items():
        yield NodeStanding(name, None, (), tuple(pods.get(name, ())), tuple(each.sentence() for each in broken))


def _closed(node: Json) -> Iterator[str]:
    spec, status = node.get("spec"), node.get("status")
    if isinstance(spec, dict) and spec.get("unschedulable") is True:
        yield "cordoned"
    conditions = status.get("conditions") if isinstance(status, dict) else None
    for condition in conditions if isinstance(conditions, list) else []:
        if isinstance(condition, dict) and condition.get("type") == "Ready" and condition.get("status") != "True":
            yield "not ready"


def _node_of(pod: Json) -> str:
    spec = pod.get("spec")
    name = spec.get("nodeName") if isinstance(spec, dict) else None
    return name if isinstance(name, str) else ""


def _gates(pod: Json) -> list[str]:
    spec = pod.get("spec")
    gates = spec.get("schedulingGates") if isinstance(spec, dict) else None
    return [str(gate.get("name")) for gate in gates if isinstance(gate, dict)] if isinstance(gates, list) else []


def last_refusal(pod: Json) -> str:
    """Why kube-scheduler could not place it when it last tried, less what it says of preemption; empty: it did not.

    It knows of taints, CPU and extended resources that a placement of cards does not look at.
    """
    status = pod.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    for condition in conditions if isinstance(conditions, list) else []:
        if (
            isinstance(condition, dict)
            and condition.get("type") == "PodScheduled"
            and condition.get("reason") == "Unschedulable"
        ):
            message = condition.get("message")
            said = message if isinstance(message, str) else ""
            for aside in (" no new claims to deallocate", " preemption:"):
                said = said.partition(aside)[0]
            return " ".join(said.split()).rstrip(".")
    return ""


def created(obj: Json) -> str:
    """When it was made, as the API server writes it; empty where it does not say."""
    metadata = obj.get("metadata")
    since = metadata.get("creationTimestamp") if isinstance(metadata, dict) else None
    return since if isinstance(since, str) else ""


def _age_and_name(pod: Json) -> tuple[str, str]:
    return created(pod), pod_key(pod)
