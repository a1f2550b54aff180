"""The reports on a cluster that people and peers' tools ask the scheduler for: gpushare's inspect, and status.

No IO.
"""

from __future__ import annotations

from typing import Any

from aliquot.dialects import gpushare
from aliquot.model.claim import Claim
from aliquot.model.node import Node
from aliquot.services.scheduler.cluster import Cluster, Placed


def inspect_answer(cluster: Cluster, name: str | None = None) -> dict[str, Any]:
    """gpushare's inspect: memory by card in the cluster's unit, and who holds it."""
    unit = cluster.rules.gpushare_unit.mib
    holders = _holders(cluster)
    return gpushare.render_inspected(
        _inspect_node(node, holders.get(node.name, {}), unit)
        for node in cluster.nodes()
        if node.cards and name in (None, node.name)
    )


def _inspect_node(node: Node, holders: dict[int, list[tuple[Claim, int]]], unit: int) -> dict[str, Any]:
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
    for placed in (*cluster.placed.values(), *cluster.assumed.values()):
        cards = found.setdefault(placed.grant.node, {})
        for card, use in placed.grant.usage().items():
            cards.setdefault(card, []).append((placed.claim, use.memory_mib))
    return found


def status_answer(cluster: Cluster) -> dict[str, Any]:
    """Everything, for people and for tools of our own: each node with its cards, each Pod with its shares."""
    pods: dict[str, list[dict[str, Any]]] = {}
    for placed in (*cluster.placed.values(), *cluster.assumed.values()):
        pods.setdefault(placed.grant.node, []).append(_status_pod(placed, cluster.doubt(placed)))
    return {
        "policy": cluster.policy,
        "nodes": [_status_node(cluster, node, pods.get(node.name, [])) for node in cluster.nodes()],
        "pending": [
            {"pod": pod.key, "uid": pod.uid, "refused": pod.refused, "scheduler": pod.scheduler}
            for pod in cluster.pending.values()
        ],
        "unusable": {name: [invalid.sentence() for invalid in broken] for name, broken in cluster.unusable.items()},
    }


def _status_pod(placed: Placed, doubt: str | None) -> dict[str, Any]:
    return {
        "pod": placed.claim.key,
        "uid": placed.claim.uid,
        "dialect": placed.claim.dialect,
        "class": str(placed.claim.app_class),
        "doubt": doubt,
        "cards": [
            {
                "index": card,
                "memory_mib": use.memory_mib,
                "core": use.core_milli / 10,
                "exclusive": bool(use.exclusive),
            }
            for card, use in placed.grant.usage().items()
        ],
    }


def _status_node(cluster: Cluster, node: Node, pods: list[dict[str, Any]]) -> dict[str, Any]:
    used = {card.index: cluster.board.usage(node.name, card.index) for card in node.cards}
    return {
        "name": node.name,
        "offers": sorted(map(str, node.offers)),
        "isolation": str(node.isolation),
        "cards": [
            {
                "index": card.index,
                "uuid": card.uuid,
                "model": card.model,
                "healthy": card.healthy,
                "memory_mib": card.memory_mib,
                "used_memory_mib": used[card.index].memory_mib,
                "used_core": used[card.index].core_milli / 10,
            }
            for card in node.cards
        ],
        "pods": pods,
    }
