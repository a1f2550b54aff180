"""How the machine stands, as one JSON object: what `ps`, `top -o json` and the metrics are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from aliquot.model.device import Card
from aliquot.model.grant import Share
from aliquot.model.tenancy import Tenancy
from aliquot.model.tenant import Finding, SharingRules, Standing, State

if TYPE_CHECKING:  # a node's agent uses the rest of this, and does without their numpy
    from .node import LocalNode
    from .queue import Waiting


def status(node: LocalNode, seen: Mapping[str, Mapping[str, Any]], now: float) -> dict[str, Any]:
    """`seen` is what NVML told last of each card, by uuid."""
    standings = by_tenant(node.arbiter.standings())
    return {
        "rules": rules_told(node.rules),
        "cards": [_card(node, card, seen.get(card.uuid, {})) for card in node.cards],
        "tenants": [_tenant(each, standings.get(each.tenant.id, {}), now) for each in node.tenancies.values()],
        "queue": [_waiting(node, entry, now) for entry in node.queue],
        "findings": [finding_told(each) for each in node.arbiter.findings()],
    }


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


def _card(node: LocalNode, card: Card, seen: Mapping[str, Any]) -> dict[str, Any]:
    board = node.ledger.board
    return {
        "index": card.index,
        "uuid": card.uuid,
        "model": card.model,
        "memory_bytes": card.memory_mib << 20,
        "memory_used_bytes": seen.get("memory_used_bytes"),
        "memory_booked_bytes": int(board.used_memory[0, card.index]) << 20,
        "core_booked": int(board.used_core[0, card.index]) / 10,
        "tenants": int(board.used_slices[0, card.index]),
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
