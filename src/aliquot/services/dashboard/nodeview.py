"""The nodes and runs of a status as the dashboard shows them: of a machine, or of a node's agent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aliquot.model.status.dashboard import Card, Container, Node, Pod, PodCard, Tenant, Timeline, WaitingPod
from aliquot.model.status.machine import (
    CardStatus,
    NodeStatus,
    QueueEntry,
    ShareStatus,
    Status,
    TenantStatus,
)
from aliquot.model.status.messages import Message
from aliquot.wording import messages


def node_view(node: NodeStatus, status: Status, tenants: dict[str, list[Tenant]], timeline: Timeline | None) -> Node:
    """One node in full. `tenants` by card: tenants_by_card."""
    cards = status.cards_of(node.name)
    return Node(
        name=node.name,
        offers=node.offers,
        policy=node.policy,
        release_delay_seconds=status.rules.release_delay_seconds,
        trouble=trouble(status, cards),
        notes=notes(status, cards),
        cards=[_card(card, tenants.get(card.uuid, [])) for card in cards],
        timeline=timeline,
    )


def trouble(status: Status, cards: Iterable[CardStatus]) -> list[Message]:
    """What is wrong with these cards, in a word each."""
    out = sum(card.is_out for card in cards)
    return messages.cards_out(out) + [messages.FOUND_SOMETHING] * bool(notes(status, cards))


def notes(status: Status, cards: Iterable[CardStatus]) -> list[Message]:
    """What should not be on these cards, in sentences."""
    here = {card.uuid for card in cards}
    return [messages.finding(finding) for finding in status.findings if finding.uuid in here]


def tenants_by_card(status: Status) -> dict[str, list[Tenant]]:
    """By the card's UUID."""
    found: dict[str, list[Tenant]] = {}
    for tenant in status.tenants:
        for share in tenant.cards:
            found.setdefault(share.uuid, []).append(_tenant(tenant, share))
    return found


def _card(card: CardStatus, tenants: list[Tenant]) -> Card:
    return Card(
        index=card.index,
        uuid=card.uuid,
        model=card.model,
        healthy=not card.is_out,
        why_out=messages.why_out(card),
        memory_mib=card.memory_mib,
        memory_booked_mib=card.memory_booked_bytes >> 20,
        memory_used_mib=None if card.memory_used_bytes is None else card.memory_used_bytes >> 20,
        core_booked=card.core_booked,
        greedy_booked=sum(tenant.core or 0 for tenant in tenants if tenant.greedy),
        busy=card.utilisation,
        exclusive=any(tenant.exclusive for tenant in tenants),
        tenants=tenants,
        memory_unregistered_mib=card.memory_unregistered_bytes >> 20,
        control=messages.control(card),
    )


def _tenant(tenant: TenantStatus, share: ShareStatus) -> Tenant:
    residency = share.residency
    return Tenant(
        key=tenant.name,
        app_class=tenant.app_class,
        dialect="run",
        memory_mib=share.limit_mib,
        memory_used_mib=share.used_mib,
        core=share.core,
        greedy=share.greedy,
        exclusive=share.exclusive,
        share=None if share.share is None else round(share.share, 4),
        state=share.state,
        preemptions=share.preemptions,
        paused_seconds=round(share.paused_seconds, 3),
        paused_by=share.paused_by,
        where=None if residency is None else residency.where,
        parked_mib=0 if residency is None else residency.parked_bytes >> 20,
        moves=0 if residency is None else residency.moves,
        why_parked=None if residency is None else residency.why,
        latency_seconds=tenant.latency_seconds,
        latency_missed_seconds=share.latency_missed_seconds,
        together=tenant.together,
    )


# --- one run ---------------------------------------------------------------------------------------------------------


def pod_view(status: Status, key: str, now: float) -> Pod | None:
    """A run by its name."""
    entry = next((entry for entry in status.queue if entry.name == key), None)
    for tenant in status.tenants:
        if tenant.name == key:
            return _run(tenant, status.rules.policy)
    return None if entry is None else _queued(entry, now)


def _run(tenant: TenantStatus, policy: str) -> Pod:
    shares = tenant.cards
    why = _paused(shares)
    if shares:
        why.append(messages.promised(_pod_cards(shares), tenant.app_class, policy))
        why.append(messages.placed([share.index for share in shares], None))
    return Pod(
        key=tenant.name,
        kind="run",
        app_class=tenant.app_class,
        dialect="run",
        phase="Running",
        node=tenant.node or None,
        cards=_pod_cards(shares),
        containers=[Container("main", tenant.command)],
        since=tenant.created,
        why=why,
    )


def _paused(shares: Iterable[ShareStatus]) -> list[Message]:
    return [messages.paused(share.index, share.paused_by, share.paused_seconds) for share in shares if share.paused_by]


def _pod_cards(shares: Sequence[ShareStatus]) -> list[PodCard]:
    return [
        PodCard(share.index, share.uuid, share.limit_mib, share.core, share.greedy, share.exclusive) for share in shares
    ]


def _queued(entry: QueueEntry, now: float) -> Pod:
    return Pod(
        key=entry.name,
        kind="run",
        app_class=entry.app_class,
        dialect="run",
        phase="Pending",
        containers=[Container("main", entry.command)],
        since=now - entry.waited_seconds,
        why=[messages.requests(messages.wants_of_entry(entry), "run"), messages.queued(entry)],
        refusals=[messages.refused_by_card(refusal) for refusal in entry.refusals if refusal.card is not None],
    )


# --- those that wait -------------------------------------------------------------------------------------------------


def waiting_views(status: Status, now: float) -> list[WaitingPod]:
    """The queue."""
    return [
        WaitingPod(
            key=entry.name,
            app_class=entry.app_class,
            dialect="run",
            since=round(now - entry.waited_seconds, 1),
            reason=messages.short_of(entry),
            wants=messages.wants_of_entry(entry),
        )
        for entry in status.queue
    ]
