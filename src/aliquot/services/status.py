"""How the machine stands, as one JSON object: what `ps`, `top -o json` and the metrics are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from aliquot.model.device import Card
from aliquot.model.grant import Share
from aliquot.model.node import Node, Offer
from aliquot.model.tenancy import Tenancy
from aliquot.model.tenant import Finding, SharingRules, Standing, State

if TYPE_CHECKING:  # a node's agent uses the rest of this, and does without their numpy
    from .localpods import LocalPods
    from .node import LocalNode
    from .queue import Waiting


def status(
    node: LocalNode, seen: Mapping[str, Mapping[str, Any]], now: float, pods: LocalPods | None = None
) -> dict[str, Any]:
    """`seen` is what NVML told last of each card, by uuid."""
    standings = by_tenant(node.arbiter.standings())
    return {
        "rules": rules_told(node.rules),
        "nodes": [_node(node, each) for each in node.nodes],
        "cards": [
            _card(node, row, card, seen.get(card.uuid, {}))
            for row, each in enumerate(node.nodes)
            for card in each.cards
        ],
        "tenants": [
            {**_tenant(each, standings.get(each.tenant.id, {}), now), "node": node.node_of(each)}
            for each in node.tenancies.values()
        ],
        "queue": [_waiting(node, entry, now) for entry in node.queue],
        "findings": [finding_told(each) for each in node.arbiter.findings()],
        **({"workloads": [], "pods": []} if pods is None else _pods(pods, standings)),
    }


def _pods(pods: LocalPods, standings: Mapping[str, Mapping[str, Standing]]) -> dict[str, Any]:
    from .podstatus import pods_told  # it needs `shares_told`

    return pods_told(pods, standings)


def by_tenant(standings: Iterable[Standing]) -> dict[str, dict[str, Standing]]:
    """By the tenant's id, and then by card."""
    found: dict[str, dict[str, Standing]] = {}
    for each in standings:
        found.setdefault(each.tenant, {})[each.uuid] = each
    return found


def rules_told(rules: SharingRules) -> dict[str, Any]:
    """How tenants share."""
    return {"policy": rules.isolation.value, "release_delay_seconds": rules.release_delay}


def finding_told(finding: Finding) -> dict[str, Any]:
    """What should not be."""
    return {"uuid": finding.uuid, "pid": finding.pid, "text": finding.text}


def _node(local: LocalNode, node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "cards": [card.uuid for card in node.cards],
        "offers": sorted(offer.value for offer in node.offers if offer is not Offer.ANY),
        "policy": local.rules.isolation.value,
    }


def _card(node: LocalNode, row: int, card: Card, seen: Mapping[str, Any]) -> dict[str, Any]:
    board = node.ledger.board
    return {
        "node": node.nodes[row].name,
        "index": card.index,
        "uuid": card.uuid,
        "model": card.model,
        "memory_bytes": card.memory_mib << 20,
        "memory_used_bytes": seen.get("memory_used_bytes"),
        "memory_booked_bytes": int(board.used_memory[row, card.index]) << 20,
        "core_booked": int(board.used_core[row, card.index]) / 10,
        "tenants": int(board.used_slices[row, card.index]),
        "utilisation": seen.get("utilisation"),
    }


def _tenant(tenancy: Tenancy, standings: Mapping[str, Standing], now: float) -> dict[str, Any]:
    tenant = tenancy.tenant
    return {
        "id": tenant.id,
        "name": tenant.name,
        "class": tenant.app_class.value,
        "uid": tenant.uid,
        "pid": tenant.root,
        "command": list(tenancy.command),
        "created": tenancy.created,
        "age_seconds": max(0.0, now - tenancy.created),
        "log": tenancy.log,
        "cards": shares_told(tenancy.shares, standings),
    }


def shares_told(shares: Iterable[Share], standings: Mapping[str, Standing]) -> list[dict[str, Any]]:
    """What a tenant was promised of each of its cards, and how it stands there."""
    return [
        {
            "index": share.card,
            "uuid": share.uuid,
            "exclusive": share.exclusive,
            "greedy": share.greedy_milli is not None,
            "core": _percent(share.core_milli if share.greedy_milli is None else share.greedy_milli),
            "memory_limit_bytes": share.memory_mib << 20,
            **_standing(standings.get(share.uuid)),
        }
        for share in shares
    ]


def _standing(found: Standing | None) -> dict[str, Any]:
    return {
        "state": State.IDLE.value if found is None else found.state.value,
        "level": "none" if found is None else found.level.value,
        "share": None if found is None else found.share,
        "memory_used_bytes": 0 if found is None else found.memory_used,
        "pids": [] if found is None else list(found.processes),
        "preemptions": 0 if found is None else found.preemptions,
        "paused_seconds": 0.0 if found is None else found.paused_seconds,
        "refused_allocations": 0 if found is None else found.refused,
    }


def _waiting(node: LocalNode, entry: Waiting, now: float) -> dict[str, Any]:
    ask = entry.ask
    return {
        **(entry.told or node.queue.standing(entry)),
        "class": ask.app_class.value,
        "uid": entry.uid,
        "pid": entry.pid,
        "gpus": ask.gpus,
        "core": ask.core,
        "memory_bytes": None if ask.memory_mib is None else ask.memory_mib << 20,
        "waited_seconds": max(0.0, now - entry.since),
        "command": list(ask.command),
        "log": entry.log,
    }


def _percent(milli: int | None) -> float | None:
    return None if milli is None else milli / 10
