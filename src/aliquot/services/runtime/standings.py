"""How tenants stand on the cards, for the status of a machine and of an agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import UNSET, UnsetType

from aliquot.model.cardstate.control import CardControl
from aliquot.model.grant import Share
from aliquot.model.residency import Residency
from aliquot.model.status.machine import (
    ControlStatus,
    FindingStatus,
    PoolStatus,
    ResidencyStatus,
    RulesStatus,
    ShareStatus,
)
from aliquot.model.tenant import Finding, FindingKind, Level, SharingRules, Standing, State

_NOT_LIMITED = (FindingKind.STRANGER, FindingKind.TRESPASSER, FindingKind.UNREGISTERED)


def by_tenant(standings: Iterable[Standing]) -> dict[str, dict[str, Standing]]:
    """The standings by the tenant's id, and then by card."""
    found: dict[str, dict[str, Standing]] = {}
    for standing in standings:
        found.setdefault(standing.tenant, {})[standing.uuid] = standing
    return found


def rules_status(rules: SharingRules) -> RulesStatus:
    """How tenants share."""
    return RulesStatus(
        policy=rules.isolation, release_delay_seconds=rules.release_delay, kill_after_seconds=rules.kill_after
    )


def finding_status(finding: Finding) -> FindingStatus:
    """What should not be."""
    return FindingStatus(
        uuid=finding.uuid,
        pid=finding.pid,
        text=finding.text,
        kind=finding.kind,
        memory_bytes=finding.memory or UNSET,
    )


def control_status(controls: Mapping[str, CardControl], uuid: str) -> ControlStatus | UnsetType:
    """The control of one card."""
    found = controls.get(uuid)
    return UNSET if found is None else ControlStatus(found.level, found.reason)


def unregistered_memory(findings: Iterable[Finding], uuid: str) -> int:
    """Bytes on the card of processes whose memory nothing limits."""
    return sum(finding.memory for finding in findings if finding.uuid == uuid and finding.kind in _NOT_LIMITED)


def share_statuses(shares: Iterable[Share], standings: Mapping[str, Standing]) -> list[ShareStatus]:
    """What a tenant was promised of each of its cards, and how it stands there."""
    return [_share(share, standings.get(share.uuid)) for share in shares]


def _share(share: Share, standing: Standing | None) -> ShareStatus:
    milli = share.core_milli if share.greedy_milli is None else share.greedy_milli
    return ShareStatus(
        index=share.card,
        uuid=share.uuid,
        exclusive=share.exclusive,
        greedy=share.greedy_milli is not None,
        core=None if milli is None else milli / 10,
        memory_limit_bytes=share.memory_mib << 20,
        state=State.IDLE if standing is None else standing.state,
        level=Level.NONE if standing is None else standing.level,
        share=None if standing is None else standing.share,
        memory_used_bytes=0 if standing is None else standing.memory_used,
        pids=[] if standing is None else list(standing.processes),
        preemptions=0 if standing is None else standing.preemptions,
        paused_seconds=0.0 if standing is None else standing.paused_seconds,
        refused_allocations=0 if standing is None else standing.refused,
        paused_by=None if standing is None else standing.paused_by,
        memory_over_bytes=0 if standing is None else standing.memory_over,
        hard_limit=standing is not None and standing.hard_limit,
        residency=None if standing is None else residency_status(standing.residency),
        latency_missed_seconds=0 if standing is None else standing.latency_missed,
        requests=0 if standing is None else standing.requests,
        takings=0 if standing is None else standing.takings,
        preemptions_per_request=_per_request(standing),
        takes_turns=standing is not None and standing.takes_turns,
    )


def _per_request(standing: Standing | None) -> float | None:
    """None: it had no request yet."""
    return round(standing.takings / standing.requests, 3) if standing is not None and standing.requests else None


def residency_status(residency: Residency | None) -> ResidencyStatus | None:
    """Where the memory is."""
    if residency is None:
        return None
    return ResidencyStatus(
        where=residency.where,
        resident_bytes=residency.resident,
        parked_bytes=residency.parked,
        moves=residency.moves,
        moved_bytes=residency.moved,
        last_out_seconds=residency.last_out,
        last_in_seconds=residency.last_in,
        why=residency.why,
    )


def pool_status(size: int, booked: int, standings: Iterable[Standing]) -> PoolStatus | UnsetType:
    """The host's pool of so many bytes, of which so many are booked. Without a pool there is nothing to say."""
    if not size:
        return UNSET
    known = (standing.residency for standing in standings if standing.residency is not None)
    used = sum(residency.parked for residency in known)
    return PoolStatus(bytes=size, booked_bytes=booked, used_bytes=used)
