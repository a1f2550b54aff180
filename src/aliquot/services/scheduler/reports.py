"""The reports on a cluster that people and peers' tools ask the scheduler for: gpushare's inspect, and status.

No IO.
"""

from __future__ import annotations

from aliquot.dialects import gpushare
from aliquot.model.claim import Claim
from aliquot.model.node import OF_DEVICES, Node
from aliquot.model.status.scheduler import (
    ClusterCardStatus,
    ClusterNodeStatus,
    HeldClaimStatus,
    PendingStatus,
    PlacedStatus,
    SchedulerStatus,
    UseStatus,
)
from aliquot.services.daemon.calls import Calls
from aliquot.services.scheduler.cluster import Cluster, Placed, booked_on
from aliquot.services.scheduler.dashboard.claims import Claims, HeldClaim


def inspect_answer(cluster: Cluster, name: str | None = None) -> gpushare.InspectedNodes:
    """gpushare's inspect: memory by card in the cluster's unit, and who holds it."""
    unit = cluster.rules.gpushare_unit.mib
    holders = _holders(cluster)
    return gpushare.render_inspected(
        _inspect_node(node, holders.get(node.name, {}), unit)
        for node in cluster.nodes()
        if node.cards and name in (None, node.name)
    )


def _inspect_node(node: Node, holders: dict[int, list[tuple[Claim, int]]], unit: int) -> gpushare.InspectedNode:
    totals = [card.memory_mib // unit for card in node.cards]
    held = [holders.get(card.index, []) for card in node.cards]
    used = [sum(memory for _, memory in holding) // unit for holding in held]
    return gpushare.render_inspected_node(
        node.name,
        total=sum(totals),
        used=sum(used),
        cards=[
            gpushare.render_inspected_card(
                card.index,
                total=totals[at],
                used=used[at],
                pods=[(claim.namespace, claim.name, memory // unit) for claim, memory in held[at]],
            )
            for at, card in enumerate(node.cards)
        ],
    )


def _holders(cluster: Cluster) -> dict[str, dict[int, list[tuple[Claim, int]]]]:
    found: dict[str, dict[int, list[tuple[Claim, int]]]] = {}
    for placed in cluster.placements():
        cards = found.setdefault(placed.grant.node, {})
        for card, use in placed.grant.usage().items():
            cards.setdefault(card, []).append((placed.claim, use.memory_mib))
    return found


def status_answer(cluster: Cluster, *, leading: bool, calls: Calls, claims: Claims | None = None) -> SchedulerStatus:
    """Everything, for people and for tools: each node with its cards, each Pod and ResourceClaim with its shares."""
    pods: dict[str, list[PlacedStatus]] = {}
    for placed in cluster.placements():
        pods.setdefault(placed.grant.node, []).append(_placed_status(placed, cluster.doubt(placed)))
    return SchedulerStatus(
        policy=cluster.policy,
        nodes=[
            _node_status(cluster, node, pods.get(node.name, []), _held(claims, node.name)) for node in cluster.nodes()
        ],
        pending=[PendingStatus(pod.key, pod.uid, pod.refused, pod.scheduler) for pod in cluster.pending.values()],
        unusable={name: [rule.sentence() for rule in broken] for name, broken in cluster.reported.unusable.items()},
        leading=leading,
        calls=calls.status(),
    )


def _placed_status(placed: Placed, doubt: str | None) -> PlacedStatus:
    return PlacedStatus(
        pod=placed.claim.key,
        uid=placed.claim.uid,
        dialect=placed.claim.dialect,
        app_class=placed.claim.app_class,
        doubt=doubt,
        cards=[
            UseStatus(card, use.memory_mib, use.booked_milli / 10, bool(use.exclusive))
            for card, use in placed.grant.usage().items()
        ],
    )


def _held(claims: Claims | None, node: str) -> list[HeldClaim]:
    return claims.on(node).held if claims is not None and node in claims.nodes else []


def _claim_status(held: HeldClaim) -> HeldClaimStatus:
    cards = [
        UseStatus(card, use.memory_mib, use.booked_milli / 10, bool(use.exclusive)) for card, use in held.usage.items()
    ]
    return HeldClaimStatus(held.claim.key, held.claim.app_class, cards, list(held.users))


def _node_status(cluster: Cluster, node: Node, pods: list[PlacedStatus], claims: list[HeldClaim]) -> ClusterNodeStatus:
    used, by_claims = booked_on(cluster.board, node), [_claim_status(held) for held in claims]
    memory = {card.index: used[card.index].memory_mib for card in node.cards}
    core = {card.index: used[card.index].booked_milli / 10 for card in node.cards}
    for use in (use for claim in by_claims for use in claim.cards):
        memory[use.index] += use.memory_mib
        core[use.index] += use.core
    return ClusterNodeStatus(
        name=node.name,
        offers=sorted(map(str, node.offers - OF_DEVICES)),
        isolation=node.isolation,
        cards=[
            ClusterCardStatus(
                index=card.index,
                uuid=card.uuid,
                model=card.model,
                healthy=card.healthy,
                memory_mib=card.memory_mib,
                used_memory_mib=memory[card.index],
                used_core=core[card.index],
            )
            for card in node.cards
        ],
        pods=pods,
        claims=by_claims,
    )
