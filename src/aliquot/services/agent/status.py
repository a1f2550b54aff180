"""How a node's agent stands, as one JSON object of the same shape as a daemon's (status.py), so that `aliquot top` and
`aliquot ps` work on a node as on any machine. A tenant is a Pod; nobody queues here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aliquot.dialects.wire.advertising import Token
from aliquot.model.claim import Usage
from aliquot.model.device import Card
from aliquot.model.podtenancy import PodTenancy
from aliquot.model.tenant import Finding, SharingRules, Standing
from aliquot.services.runtime.standings import by_tenant, finding_told, rules_told, shares_told


@dataclass(frozen=True, slots=True)
class Scene:
    """What there is to tell of the cards and those on them."""

    rules: SharingRules
    cards: Sequence[Card]
    why: Mapping[str, str]  # cards that are out, by UUID
    seen: Mapping[str, Mapping[str, Any]]  # what NVML told last of each card, by UUID
    tenancies: Iterable[PodTenancy]
    ended: frozenset[str]  # UIDs of Pods that are over, but not all their processes
    standings: Iterable[Standing]
    findings: Iterable[Finding]


def status(scene: Scene, now: float) -> dict[str, Any]:
    """All of it but what the agent says of itself."""
    standings, tenancies = by_tenant(scene.standings), list(scene.tenancies)
    return {
        "rules": rules_told(scene.rules),
        "cards": [_card(scene, card, tenancies) for card in scene.cards],
        "tenants": [
            _tenant(tenancy, tenancy.uid in scene.ended, standings.get(tenancy.uid, {}), now) for tenancy in tenancies
        ],
        "queue": [],
        "findings": [{**finding_told(finding), "kind": finding.kind.value} for finding in scene.findings],
    }


def resources_told(offered: Mapping[str, Sequence[Token]], registered: frozenset[str]) -> dict[str, Any]:
    """What the kubelet is offered of each resource, and whether it has accepted that."""
    return {
        resource: {
            "devices": len(tokens),
            "unhealthy": sum(not token.healthy for token in tokens),
            "registered": resource in registered,
        }
        for resource, tokens in offered.items()
    }


def _card(scene: Scene, card: Card, tenancies: Iterable[PodTenancy]) -> dict[str, Any]:
    seen = scene.seen.get(card.uuid, {})
    shares = [share for tenancy in tenancies for share in tenancy.shares if share.uuid == card.uuid]
    booked = sum((share.usage() for share in shares), start=Usage())
    return {
        "index": card.index,
        "uuid": card.uuid,
        "model": card.model,
        "memory_bytes": card.memory_mib << 20,
        "memory_used_bytes": seen.get("memory_used_bytes"),
        "memory_booked_bytes": booked.memory_mib << 20,
        "core_booked": booked.core_milli / 10,
        "tenants": len(shares),
        "utilisation": seen.get("utilisation"),
        "healthy": card.healthy,
        "why_out": scene.why.get(card.uuid),
    }


def _tenant(tenancy: PodTenancy, ended: bool, standings: Mapping[str, Standing], now: float) -> dict[str, Any]:
    return {
        "id": tenancy.uid,
        "name": tenancy.key,
        "namespace": tenancy.namespace,
        "pod": tenancy.name,
        "uid": tenancy.uid,
        "class": tenancy.app_class.value,
        "pid": None,
        "command": [],
        "created": tenancy.created,
        "age_seconds": max(0.0, now - tenancy.created),
        "log": None,
        "ended": ended,
        "cards": shares_told(tenancy.shares, standings),
    }
