"""How a tenant stands on one card."""

from __future__ import annotations

from aliquot.arbiter.account import Shares
from aliquot.arbiter.card import CardArbiter
from aliquot.model.tenant import Standing, State
from aliquot.services.runtime.cards.occupants import Occupants
from aliquot.services.runtime.processes.contexts import most_active, weakest
from aliquot.services.runtime.together import members


def standings(
    uuid: str, occupants: Occupants, arbiter: CardArbiter, shares: Shares, now: float
) -> tuple[Standing, ...]:
    """The standings of all tenants but groups: the members of a group have their own."""
    return tuple(
        _standing(uuid, tenant, occupants, arbiter, shares, now)
        for tenant, totals in occupants.totals.items()
        if totals.group != tenant
    )


def _standing(
    uuid: str, tenant: str, occupants: Occupants, arbiter: CardArbiter, shares: Shares, now: float
) -> Standing:
    totals = occupants.totals[tenant]
    parts = [part for part in occupants.parts.values() if part.member == tenant]
    contexts = [context for context in occupants.contexts.values() if context.owner == tenant] + parts
    used, refused = totals.measure(contexts, now)
    servers = occupants.servers(totals.group) if parts else []
    held = [context for context in contexts if not context.is_part] + servers
    state = most_active({arbiter.state(context.name) for context in held})
    if state is State.RUNNING and parts == contexts and not any(members.has_work(part) for part in parts):
        state = State.IDLE  # others of its group work
    timed = occupants.totals.get(totals.group, totals)
    requests, takings = arbiter.taken_by(timed.member.tenant)
    return Standing(
        tenant=tenant,
        uuid=uuid,
        state=state,
        level=weakest({context.level for context in held}),
        share=sum(shares.of(context.name) for context in contexts),
        memory_used=used,
        memory_limit=totals.limit,
        processes=tuple(sorted(context.pid for context in contexts)),
        preemptions=arbiter.preemptions[timed.member.tenant],
        paused_seconds=timed.paused_seconds,
        refused=refused,
        paused_by=arbiter.held_by if state is State.PAUSED else None,
        latency_missed=arbiter.missed_of(timed.member.tenant),
        requests=requests,
        takings=takings,
        takes_turns=arbiter.takes_turns(timed.member.tenant),
    )
