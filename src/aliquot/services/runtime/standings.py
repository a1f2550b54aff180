"""How tenants stand on the cards, as JSON: for the status of a machine and of an agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aliquot.model.grant import Share
from aliquot.model.tenant import Finding, SharingRules, Standing, State


def by_tenant(standings: Iterable[Standing]) -> dict[str, dict[str, Standing]]:
    """By the tenant's id, and then by card."""
    found: dict[str, dict[str, Standing]] = {}
    for standing in standings:
        found.setdefault(standing.tenant, {})[standing.uuid] = standing
    return found


def rules_told(rules: SharingRules) -> dict[str, Any]:
    """How tenants share."""
    return {"policy": rules.isolation.value, "release_delay_seconds": rules.release_delay}


def finding_told(finding: Finding) -> dict[str, Any]:
    """What should not be."""
    return {"uuid": finding.uuid, "pid": finding.pid, "text": finding.text}


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


def _percent(milli: int | None) -> float | None:
    return None if milli is None else milli / 10
