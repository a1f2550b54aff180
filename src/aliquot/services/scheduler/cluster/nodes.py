"""Nodes as the API server reports them: which cards of which nodes are ours to give, and why the others are not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from aliquot.dialects import NodeReader, dra, gpushare, hami, native
from aliquot.dialects.kube.conditions import closing_taints
from aliquot.dialects.wire.objects import NodeObject
from aliquot.dialects.wire.otherplugins import Drivers, opted_in, other_resources, others_of, served_by_other
from aliquot.model.claim import Usage
from aliquot.model.decoding.openjson import JsonView
from aliquot.model.node import Closed, Node, Offer
from aliquot.model.refusal import Invalid
from aliquot.placement.board import Board


def booked_on(board: Board, node: Node, claims: Iterable[Mapping[int, Usage]] = ()) -> dict[int, Usage]:
    """What is booked of each card of the node, by its number: by Pods, and by `claims`, which are not on the board."""
    booked = {card.index: board.usage(node.name, card.index) for card in node.cards}
    for usage in claims:
        for card in usage.keys() & booked.keys():
            booked[card] += usage[card]
    return booked


@dataclass(slots=True)
class ReportedNodes:
    """All are by the node's name. What changes a node returns it as the board should show it; None: not at all."""

    unusable: dict[str, tuple[Invalid, ...]] = field(default_factory=dict)  # those that break a rule
    closed: dict[str, tuple[Closed, ...]] = field(default_factory=dict)  # where Kubernetes sends no Pods, and why
    by_claims: set[str] = field(default_factory=set)  # those whose cards kube-scheduler gives to ResourceClaims
    counted: set[str] = field(default_factory=set)  # those whose agents count gpu-mem without devices
    placeless: set[str] = field(default_factory=set)  # those with gpu-mem of gpushare's own plugin: without places
    others: dict[str, tuple[str, ...]] = field(default_factory=dict)  # those whose cards other plugins hand out
    taints: dict[str, tuple[JsonView, ...]] = field(default_factory=dict)  # those that keep Pods away
    addresses: dict[str, str] = field(default_factory=dict)  # within the cluster
    sick: dict[str, frozenset[int]] = field(default_factory=dict)  # cards that a ConfigMap takes out
    drivers: Drivers = field(default_factory=Drivers)  # DRA drivers that publish cards
    _reported: dict[str, Node] = field(default_factory=dict)  # as they describe themselves
    _other_resources: dict[str, tuple[str, ...] | None] = field(default_factory=dict)  # None: its owner opted in

    def set(self, node: NodeObject, reader: NodeReader) -> Node | None:
        """A node is there, or has changed. None where it breaks a rule."""
        metadata = node.metadata
        name, labels, annotations = metadata.name, metadata.labels or {}, metadata.annotations or {}
        self.closed.pop(name, None)
        if closed := node.closed:
            self.closed[name] = closed
        self.taints.pop(name, None)
        if taints := closing_taints(node.spec):
            self.taints[name] = taints
        if (address := node.address) is not None:
            self.addresses[name] = address
        self.by_claims.discard(name)
        if labels.get(dra.LABEL) == "true":
            self.by_claims.add(name)
        self.counted.discard(name)
        if native.counts(annotations, gpushare.MEMORY):
            self.counted.add(name)
        self.placeless.discard(name)
        reported = reader.read(node)
        if not isinstance(reported, Node):
            self.unusable[name] = reported
            self._reported.pop(name, None)
            self.others.pop(name, None)
            return None
        self.unusable.pop(name, None)
        if Offer.GPUSHARE in reported.offers and native.INVENTORY not in annotations:
            self.placeless.add(name)
        # No agent would give a Pod its cards there now; what runs stays booked.
        if node.agent_away:
            reported = replace(reported, cards=tuple(replace(card, healthy=False) for card in reported.cards))
        if not hami.OFFERS.isdisjoint(reported.offers) and served_by_other(node, hami.TOKENS * len(reported.cards)):
            reported = replace(reported, offers=reported.offers - hami.OFFERS)  # the kubelet would ask that plugin
        resources = None if opted_in(labels) else other_resources(node)
        self._other_resources.pop(name, None)
        if resources != ():
            self._other_resources[name] = resources
        others = others_of(resources, self.drivers.on(name, labels))
        self._reported[name] = replace(reported, others=others) if others else reported
        return self._shown(name)

    def set_others(self, name: str) -> Node | None:
        """The DRA drivers that name this node have changed."""
        reported = self._reported.get(name)
        if reported is not None:
            others = others_of(self._other_resources.get(name, ()), self.drivers.on(name, None))
            self._reported[name] = replace(reported, others=others)
        return self._shown(name)

    def set_sick(self, name: str, cards: frozenset[int]) -> Node | None:
        """A ConfigMap takes these cards out, and no others."""
        self.sick[name] = cards
        if not cards:
            del self.sick[name]
        return self._shown(name)

    def drop(self, name: str) -> None:
        """A node is gone. What a ConfigMap or a DRA driver says of it stays: it may come back."""
        self.by_claims.discard(name)
        self.counted.discard(name)
        self.placeless.discard(name)
        for known in (self.unusable, self.closed, self.taints, self.addresses, self.others):
            known.pop(name, None)
        self._reported.pop(name, None)
        self._other_resources.pop(name, None)

    def _shown(self, name: str) -> Node | None:
        """The node, less the cards that a ConfigMap takes out; without offers where another plugin hands out cards."""
        node = self._reported.get(name)
        if node is None:
            return None
        sick = self.sick.get(name) if self.sick else None
        if sick:
            cards = (replace(card, healthy=card.healthy and card.index not in sick) for card in node.cards)
            node = replace(node, cards=tuple(cards))
        self.others.pop(name, None)
        if node.others:
            if node.cards or node.offers:  # else it is not meant for us
                self.others[name] = node.others
            node = replace(node, offers=frozenset())
        return node
