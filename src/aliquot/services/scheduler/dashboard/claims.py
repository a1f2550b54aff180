"""The ResourceClaims of a cluster, for its dashboard: what they hold of the cards, and which Pods use them. Pure.

kube-scheduler allocates claims, on nodes where the scheduler itself places nothing (docs/dra.md): so they are not on
the board. What they hold is added to it where it is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from aliquot.dialects.dra import DIALECT
from aliquot.dialects.dra.claims import AllocatedClaim, ClaimObject, parse_claim
from aliquot.dialects.dra.pods import claim_names, waits_for_card
from aliquot.dialects.wire.objects import PodObject
from aliquot.dialects.wire.views import pod_names
from aliquot.model.claim import AppClass, Claim, Usage
from aliquot.model.grant import Grant
from aliquot.model.node import Node, Offer
from aliquot.model.status.messages import Message
from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.dashboard.layout import Used
from aliquot.wording import messages


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """A claim with its cards."""

    claim: Claim
    grant: Grant
    usage: Mapping[int, Usage]  # of the grant, by card
    users: tuple[str, ...]  # keys of the Pods that it is reserved for, sorted


@dataclass(frozen=True, slots=True)
class ClaimsOnNode:
    """The claims that have cards of a node, by their keys; a message: why a claim is not counted."""

    node: Node | None
    standings: Mapping[str, HeldClaim | Message]
    used: Used  # of the node's cards, in their order

    @property
    def held(self) -> list[HeldClaim]:
        return [standing for standing in self.standings.values() if isinstance(standing, HeldClaim)]

    @property
    def unreadable(self) -> list[Message]:
        wrong = [standing for standing in self.standings.values() if isinstance(standing, Message)]
        return wrong if self.node is not None else []


class Claims:
    """See the head of the file. A claim is read when it comes, so that a list of many takes no time later."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._by_key: dict[str, ClaimObject] = {}
        self._by_node: dict[str, dict[str, ClaimObject]] = {}
        self._by_pod: dict[str, dict[str, ClaimObject]] = {}  # by the UID of a Pod that uses them
        self._read: dict[str, tuple[Node | None, HeldClaim | Message]] = {}  # by key, with the node as it was then
        self._on: dict[str, ClaimsOnNode] = {}
        self._changed: set[str] = set()
        self.users: Counter[AppClass] = Counter()  # Pods of claims that hold cards; with two claims a Pod counts twice
        self.troubled: Counter[str] = Counter()  # nodes, by how many claims on them cannot be read
        self.clock = 0  # of changes

    # --- what the API server sends ---------------------------------------------------------------------------------

    def put(self, item: ClaimObject) -> None:
        """A claim is there, or has changed."""
        self.drop(item.key)
        self._by_key[item.key] = item
        self.clock += 1
        if item.allocated:
            self._by_node.setdefault(item.node, {})[item.key] = item
            for uid in item.pods:
                self._by_pod.setdefault(uid, {})[item.key] = item
            self._changed.add(item.node)
            self.standing(item)

    def drop(self, key: str) -> None:
        """A claim is gone."""
        item = self._by_key.pop(key, None)
        if item is None:
            return
        self.clock += 1
        if item.allocated:
            _remove(self._by_node, item.node, key)
            for uid in item.pods:
                _remove(self._by_pod, uid, key)
            self._changed.add(item.node)
            self._forget(item)

    # --- nodes -----------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Mapping[str, object]:
        """The nodes with claims, by name."""
        return self._by_node

    def take_changed(self) -> set[str]:
        """The nodes whose claims changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def on(self, name: str) -> ClaimsOnNode:
        """What holds cards of the node now."""
        known, node = self._on.get(name), self._cluster.board.node(name)
        if known is None or known.node is not node:
            known = self._claims_on(name, node)
            if name in self._by_node:
                self._on[name] = known
        return known

    def _claims_on(self, name: str, node: Node | None) -> ClaimsOnNode:
        standings = {key: self.standing(item) for key, item in sorted(self._by_node.get(name, {}).items())}
        cards = {card.index: [0, 0, 0, 0, 0, 0] for card in node.cards} if node else {}
        for standing in standings.values():
            if isinstance(standing, HeldClaim):
                of = standing.claim.app_class
                for slot, use in standing.usage.items():
                    memory, core, tenants, whole, online, offline = cards[slot]
                    cards[slot] = [
                        memory + use.memory_mib,
                        core + use.booked_milli,
                        tenants + 1,
                        whole + use.exclusive,
                        online + (of is AppClass.ONLINE),
                        offline + (of is AppClass.OFFLINE),
                    ]
        used = Used(np.array([*cards.values()], np.int64).reshape(-1, 6).T)
        return ClaimsOnNode(node, standings, used)

    def standing(self, item: ClaimObject) -> HeldClaim | Message:
        """Of a claim that has cards: which, or why that is not known. Read again when the node has changed: cards are
        known by their UUID."""
        node = self._cluster.board.node(item.node)
        known = self._read.get(item.key)
        if known is not None and known[0] is node:
            return known[1]
        self._forget(item)
        standing = _read(item, node)
        self._read[item.key] = node, standing
        if isinstance(standing, HeldClaim):
            self.users[standing.claim.app_class] += len(standing.users)
        elif node is not None:
            self.troubled[item.node] += 1
        return standing

    def _forget(self, item: ClaimObject) -> None:
        """What was read of the claim."""
        self._on.pop(item.node, None)
        node, standing = self._read.pop(item.key, (None, None))
        if isinstance(standing, HeldClaim):
            self.users[standing.claim.app_class] -= len(standing.users)
        elif node is not None:
            self.troubled -= Counter([item.node])

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
            if (self._cluster.reported.by_claims and (claim is None or not claim.allocated_elsewhere))
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


def _read(item: ClaimObject, node: Node | None) -> HeldClaim | Message:
    if node is None:
        return messages.node_gone(item.node)
    read = parse_claim(item, node.name, node.cards)
    if not isinstance(read, AllocatedClaim):
        return messages.claim_unreadable(item.key, read[0])
    claim = Claim(read.uid, read.namespace, read.name, DIALECT, Offer.ANY, (), app_class=read.app_class)
    users = sorted(f"{read.namespace}/{pod}" for pod in item.pods.values())
    return HeldClaim(claim, read.grant, read.grant.usage(), tuple(users))
