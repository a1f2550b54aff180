"""How the machine stands, as one JSON object: what `ps`, `top -o json` and the metrics are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aliquot.model.device import Card
from aliquot.model.node import Node, Offer
from aliquot.model.tenancy import Tenancy
from aliquot.model.tenant import Standing
from aliquot.services.machine.pods.manager import PodManager
from aliquot.services.machine.pods.status import pods_told
from aliquot.services.machine.queue import QueuedRequest
from aliquot.services.machine.tenants import LocalMachine
from aliquot.services.runtime.standings import by_tenant, finding_told, rules_told, shares_told


def status(
    node: LocalMachine, seen: Mapping[str, Mapping[str, Any]], now: float, pods: PodManager | None = None
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
            {**_tenant(tenancy, standings.get(tenancy.tenant.id, {}), now), "node": node.node_of(tenancy)}
            for tenancy in node.tenancies.values()
        ],
        "queue": [_waiting(node, entry, now) for entry in node.queue],
        "findings": [finding_told(finding) for finding in node.arbiter.findings()],
        **({"workloads": [], "pods": []} if pods is None else pods_told(pods, standings)),
    }


def _node(local: LocalMachine, node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "cards": [card.uuid for card in node.cards],
        "offers": sorted(offer.value for offer in node.offers if offer is not Offer.ANY),
        "policy": local.rules.isolation.value,
    }


def _card(node: LocalMachine, row: int, card: Card, seen: Mapping[str, Any]) -> dict[str, Any]:
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


def _waiting(node: LocalMachine, entry: QueuedRequest, now: float) -> dict[str, Any]:
    ask = entry.request
    return {
        **(entry.last_position or node.queue.position_of(entry)),
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
