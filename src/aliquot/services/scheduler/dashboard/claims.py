"""The ResourceClaims of a cluster, for its dashboard: what they hold of the cards, and which Pods use them. Pure.

kube-scheduler allocates claims, on nodes where the scheduler itself places nothing (docs/dra.md): so they are not on
the board. What they hold is added to it where it is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from aliquot.dialects.dra import DIALECT
from aliquot.dialects.dra.claims import AllocatedClaim, ClaimObject, parse_claim
from aliquot.dialects.dra.pods import claim_names, waits_for_card
from aliquot.dialects.wire.objects import PodObject, pod_names
from aliquot.model.claim import AppClass, Claim
from aliquot.model.grant import Grant
from aliquot.model.node import Node, Offer
from aliquot.model.status.dashboard import Message
from aliquot.services.dashboard import messages
from aliquot.services.scheduler.cluster import Cluster


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """A claim with its cards."""

    claim: Claim
    grant: Grant
    users: tuple[str, ...]  # keys of the Pods that it is reserved for, sorted


@dataclass(frozen=True, slots=True)
class ClaimsOnNode:
    """The claims that hold cards of a node; `unreadable`: what is wrong with those that are not counted."""

    held: tuple[HeldClaim, ...] = ()
    unreadable: tuple[Message, ...] = ()


class Claims:
    """See the head of the file."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._by_key: dict[str, ClaimObject] = {}
        self._by_node: dict[str, dict[str, ClaimObject]] = {}
        self._by_pod: dict[str, dict[str, ClaimObject]] = {}  # by the UID of a Pod that uses them
        self._read: dict[str, tuple[Node | None, ClaimsOnNode]] = {}
        self._changed: set[str] = set()
        self.clock = 0  # of changes

    # --- what the API server sends ---------------------------------------------------------------------------------

    def put(self, item: ClaimObject) -> None:
        """A claim is there, or has changed."""
        self.drop(item.key)
        self._by_key[item.key] = item
        self.clock += 1
        if item.allocated:
            self._by_node.setdefault(item.node, {})[item.key] = item
            self._touch(item.node)
            for uid in item.pods:
                self._by_pod.setdefault(uid, {})[item.key] = item

    def drop(self, key: str) -> None:
        """A claim is gone."""
        item = self._by_key.pop(key, None)
        if item is None:
            return
        self.clock += 1
        if item.allocated:
            _remove(self._by_node, item.node, key)
            self._touch(item.node)
            for uid in item.pods:
                _remove(self._by_pod, uid, key)

    def _touch(self, node: str) -> None:
        self.clock += 1
        self._changed.add(node)
        self._read.pop(node, None)

    # --- nodes -----------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Mapping[str, object]:
        """The names of nodes with claims."""
        return self._by_node

    def take_changed(self) -> set[str]:
        """The nodes whose claims changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def on(self, name: str) -> ClaimsOnNode:
        """What holds cards of the node. Cards are known by their UUID, so it is read again when the node changed."""
        node = self._cluster.board.node(name)
        known = self._read.get(name)
        if known is None or known[0] is not node:
            known = self._read[name] = (node, self._claims_on(name, node))
            if name not in self._by_node:
                del self._read[name]
        return known[1]

    def _claims_on(self, name: str, node: Node | None) -> ClaimsOnNode:
        held, unreadable = [], []
        for key, item in sorted(self._by_node.get(name, {}).items()) if node else ():
            read = parse_claim(item, name, node.cards if node else ())
            if isinstance(read, AllocatedClaim):
                asked = Claim(read.uid, read.namespace, read.name, DIALECT, Offer.ANY, (), app_class=read.app_class)
                users = sorted(f"{read.namespace}/{pod}" for pod in item.pods.values())
                held.append(HeldClaim(asked, read.grant, tuple(users)))
            else:
                unreadable.append(messages.claim_unreadable(key, read[0]))
        return ClaimsOnNode(tuple(held), tuple(unreadable))

    def standing(self, item: ClaimObject) -> HeldClaim | Message:
        """Of a claim that has cards: which, or why that is not known."""
        on_node = self.on(item.node)
        held = (standing for standing in on_node.held if standing.claim.key == item.key)
        wrong = (message for message in on_node.unreadable if message.name == item.key)
        return next(held, None) or next(wrong, None) or messages.node_gone(item.node)

    def users(self) -> Counter[AppClass]:
        """How many Pods use claims that hold cards, by class. A Pod with two claims counts once for each."""
        found: Counter[AppClass] = Counter()
        for name in self._by_node:
            for held in self.on(name).held:
                found[held.claim.app_class] += len(held.users)
        return found

    def troubled(self) -> Iterator[str]:
        """The nodes with claims that cannot be read."""
        return (name for name in self._by_node if self.on(name).unreadable)

    # --- Pods ------------------------------------------------------------------------------------------------------

    def used_by(self, uid: str) -> list[ClaimObject]:
        """The claims with cards that are reserved for the Pod."""
        return [*self._by_pod.get(uid, {}).values()]

    def named_by(self, pod: PodObject) -> list[tuple[str, ClaimObject | None]]:
        """The claims that a Pod names, with their names; of one that is not made yet, its name in the Pod. One
        that names no DeviceClass of ours may still ask for our cards, if nodes hand out cards by claims."""
        made, namespace = claim_names(pod), pod_names(pod).namespace
        names = [(made.get(claim.name), claim.name) for claim in pod.spec.resource_claims or ()]
        found = ((name or inside, self._by_key.get(f"{namespace}/{name}")) for name, inside in names)
        return [
            (name, claim)
            for name, claim in found
            if (self._cluster.by_claims and (claim is None or not claim.allocated_elsewhere))
            or (claim is not None and (claim.allocated or claim.wants_ours))
        ]

    def waiting(self) -> dict[str, PodObject]:
        """Pods of which a claim for our cards has none, by UID."""
        known = self._by_key
        return {uid: pod for uid, pod in self._cluster.claimants.items() if waits_for_card(pod, known)}


def _remove(index: dict[str, dict[str, ClaimObject]], name: str, key: str) -> None:
    index[name].pop(key, None)
    if not index[name]:
        del index[name]
