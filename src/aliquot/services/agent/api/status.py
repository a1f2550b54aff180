"""The status of a node's agent: the same shape as a machine's, so that `aliquot top` and `aliquot ps` work on a node as
on any machine. A tenant is a Pod; there is no queue here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import UNSET

from aliquot.dialects.wire.advertising import Token
from aliquot.model.cardstate.control import CardControl
from aliquot.model.claim import Usage
from aliquot.model.device import Card
from aliquot.model.status.machine import AgentStatus, CardStatus, DaemonStatus, ResourceStatus, Status, TenantStatus
from aliquot.model.status.reading import NOT_READ, CardReading
from aliquot.model.tenancy import Tenancy
from aliquot.model.tenant import Finding, SharingRules, Standing
from aliquot.services.runtime.standings import (
    by_tenant,
    control_status,
    finding_status,
    pool_status,
    rules_status,
    share_statuses,
    unregistered_memory,
)
from aliquot.wording.withheld import withheld_words


@dataclass(frozen=True, slots=True)
class NodeState:
    """The cards of the node and the Pods on them."""

    rules: SharingRules
    cards: Sequence[Card]
    why: Mapping[str, str]  # why cards are out, by UUID
    seen: Mapping[str, CardReading]  # what NVML reported last of each card, by UUID
    tenancies: Iterable[Tenancy]
    ended: frozenset[str]  # UIDs of Pods that are over, but not all their processes
    standings: Iterable[Standing]
    findings: Iterable[Finding]
    controls: Mapping[str, CardControl] = field(default_factory=dict)  # by UUID
    xids: Mapping[str, int] = field(default_factory=dict)  # the errors that took cards out, by UUID


def status(node: NodeState, now: float, daemon: DaemonStatus, agent: AgentStatus) -> Status:
    """All of it; `daemon` and `agent` are what the agent knows about itself."""
    standings, tenancies, findings = by_tenant(node.standings), list(node.tenancies), list(node.findings)
    cards = [_card(node, card, tenancies, unregistered_memory(findings, card.uuid)) for card in node.cards]
    beyond = sum(max(0, card.memory_booked_bytes - card.memory_bytes) for card in cards)
    return Status(
        daemon=daemon,
        agent=agent,
        rules=rules_status(node.rules),
        pool=pool_status(node.rules.host_pool, beyond, node.standings),
        cards=cards,
        tenants=[
            _tenant(tenancy, tenancy.id in node.ended, standings.get(tenancy.id, {}), now) for tenancy in tenancies
        ],
        queue=[],
        findings=[finding_status(finding) for finding in findings],
    )


def resource_statuses(offered: Mapping[str, Sequence[Token]], registered: frozenset[str]) -> dict[str, ResourceStatus]:
    """What the kubelet is offered of each resource, and whether it has accepted that."""
    return {
        resource: ResourceStatus(
            devices=len(tokens),
            unhealthy=sum(not token.healthy for token in tokens),
            registered=resource in registered,
        )
        for resource, tokens in offered.items()
    }


def _card(node: NodeState, card: Card, tenancies: Iterable[Tenancy], unregistered: int) -> CardStatus:
    reading = node.seen.get(card.uuid, NOT_READ)
    shares = [share for tenancy in tenancies for share in tenancy.shares if share.uuid == card.uuid]
    withheld = card.withheld
    booked = sum((share.usage() for share in shares), start=Usage())
    return CardStatus(
        index=card.index,
        uuid=card.uuid,
        model=card.model,
        memory_bytes=card.memory_mib << 20,
        memory_used_bytes=reading.memory_used_bytes,
        memory_booked_bytes=booked.memory_mib << 20,
        core_booked=booked.booked_milli / 10,
        tenants=len(shares),
        utilisation=reading.utilisation,
        healthy=card.healthy,
        why_out=node.why.get(card.uuid, withheld_words(withheld) if withheld else None),
        xid=node.xids.get(card.uuid, UNSET),
        withheld=withheld.code if withheld else UNSET,
        held_by=(withheld.holder if withheld else None) or UNSET,
        memory_unregistered_bytes=unregistered,
        oversubscribe=node.rules.oversubscribe,
        hardware=reading.hardware or UNSET,
        control=control_status(node.controls, card.uuid),
    )


def _tenant(tenancy: Tenancy, ended: bool, standings: Mapping[str, Standing], now: float) -> TenantStatus:
    return TenantStatus(
        id=tenancy.id,
        name=tenancy.key,
        namespace=tenancy.namespace,
        pod=tenancy.name,
        uid=tenancy.id,
        app_class=tenancy.app_class,
        pid=None,
        command=[],
        created=tenancy.created,
        age_seconds=max(0.0, now - tenancy.created),
        log=None,
        ended=ended,
        cards=share_statuses(tenancy.shares, standings),
        parkable=tenancy.tenant.parkable,
        park_after_seconds=tenancy.park_after,
        latency_seconds=tenancy.latency,
        together=tenancy.group or None,
    )
