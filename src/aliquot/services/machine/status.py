"""The status of one machine: what `aliquot ps`, `aliquot top`, the metrics and the dashboard are made of."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import UNSET

from aliquot.model.cardstate.control import CardControl
from aliquot.model.device import Card
from aliquot.model.node import Node, Offer
from aliquot.model.status.machine import (
    CardStatus,
    DaemonStatus,
    NodeStatus,
    QueueEntry,
    Status,
    TenantStatus,
)
from aliquot.model.status.reading import NOT_READ, CardReading
from aliquot.model.tenancy import Tenancy
from aliquot.model.tenant import Standing
from aliquot.placement.rooms import booked_pool
from aliquot.services.machine.queue import QueuedRequest
from aliquot.services.machine.requests import RunRequest
from aliquot.services.machine.tenants.machine import LocalMachine
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


def status(
    node: LocalMachine,
    readings: Mapping[str, CardReading],
    now: float,
    daemon: DaemonStatus,
) -> Status:
    """`readings` are what NVML reported last of each card, by UUID."""
    found, findings = node.arbiter.standings(), node.arbiter.findings()
    standings, controls = by_tenant(found), node.arbiter.controls()
    board = node.ledger.board
    return Status(
        daemon=daemon,
        rules=rules_status(node.rules),
        pool=pool_status(node.pool_mib << 20, int(booked_pool(board, np.arange(board.rows)).sum()) << 20, found),
        nodes=[_node(node, member) for member in node.nodes],
        cards=[
            _card(node, row, card, readings.get(card.uuid), unregistered_memory(findings, card.uuid), controls)
            for row, member in enumerate(node.nodes)
            for card in member.cards
        ],
        tenants=[
            _tenant(tenancy, standings.get(tenancy.tenant.id, {}), node.node_of(tenancy), now)
            for tenancy in node.tenancies.values()
        ],
        queue=[_queue_entry(node, entry) for entry in node.queue],
        findings=[finding_status(finding) for finding in findings],
    )


def _node(local: LocalMachine, node: Node) -> NodeStatus:
    return NodeStatus(
        name=node.name,
        cards=[card.uuid for card in node.cards],
        offers=sorted(offer.value for offer in node.offers if offer is not Offer.ANY),
        policy=local.rules.isolation,
    )


def _card(
    node: LocalMachine,
    row: int,
    card: Card,
    reading: CardReading | None,
    unregistered: int,
    controls: Mapping[str, CardControl],
) -> CardStatus:
    board, reading = node.ledger.board, reading or NOT_READ
    return CardStatus(
        node=node.nodes[row].name,
        index=card.index,
        uuid=card.uuid,
        model=card.model,
        memory_bytes=card.memory_mib << 20,
        memory_used_bytes=reading.memory_used_bytes,
        memory_booked_bytes=int(board.used_memory[row, card.index]) << 20,
        core_booked=board.usage(node.nodes[row].name, card.index).booked_milli / 10,
        tenants=int(board.used_slices[row, card.index]),
        utilisation=reading.utilisation,
        why_out=withheld_words(card.withheld) if card.withheld else UNSET,
        withheld=card.withheld.code if card.withheld else UNSET,
        memory_unregistered_bytes=unregistered,
        oversubscribe=card.oversubscribe,
        hardware=reading.hardware or UNSET,
        control=control_status(controls, card.uuid),
    )


def _tenant(tenancy: Tenancy, standings: Mapping[str, Standing], node: str | None, now: float) -> TenantStatus:
    tenant = tenancy.tenant
    return TenantStatus(
        id=tenant.id,
        name=tenant.name,
        app_class=tenant.app_class,
        uid=tenant.uid,
        pid=tenant.root,
        command=list(tenancy.command),
        created=tenancy.created,
        age_seconds=max(0.0, now - tenancy.created),
        log=tenancy.log,
        cards=share_statuses(tenancy.shares, standings),
        node=node,
        parkable=tenant.parkable,
        park_after_seconds=tenancy.park_after,
        latency_seconds=tenancy.latency,
        together=tenancy.group or None,
    )


def _queue_entry(node: LocalMachine, entry: QueuedRequest) -> QueueEntry:
    ask, standing = entry.request, node.queue.last_position(entry)
    return QueueEntry(
        name=standing.name,
        position=standing.position,
        of=standing.of,
        kept_for=standing.kept_for,
        refusals=standing.refusals,
        app_class=ask.app_class,
        uid=entry.uid,
        pid=entry.pid,
        gpus=ask.gpus,
        core=ask.core,
        memory_bytes=_wanted_memory(node, ask),
        waited_seconds=max(0.0, node.clock() - entry.since),
        command=list(ask.command),
        log=entry.log,
    )


def _wanted_memory(node: LocalMachine, ask: RunRequest) -> int | None:
    """Bytes of each card; a percentage is that of the largest card."""
    if ask.memory_percent is not None:
        return int(ask.memory_percent * max(card.memory_mib for card in node.cards) / 100) << 20
    return None if ask.memory_mib is None else ask.memory_mib << 20
