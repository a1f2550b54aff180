"""A card's arbiter with tenants, and rounds in which some of them have work."""

from __future__ import annotations

from aliquot.arbiter.card import CardArbiter
from aliquot.arbiter.roster import Member, Reading
from aliquot.model.claim import AppClass
from aliquot.model.node import Isolation
from aliquot.model.tenant import SharingRules, State

ONLINE, OFFLINE, NORMAL = AppClass.ONLINE, AppClass.OFFLINE, AppClass.NORMAL
FIXED, BURST, BEST = Isolation.FIXED_SHARE, Isolation.BURST_SHARE, Isolation.BEST_EFFORT
WORKS, IDLE = Reading(1, True, True), Reading(1, False)


def card(
    isolation: Isolation = BEST, delay: float | None = 0.0, quota: int | None = 250, /, **classes: AppClass
) -> CardArbiter:
    """A card with these tenants, each with one process, `1`."""
    arbiter = CardArbiter(SharingRules(isolation, delay))
    for tenant, app_class in classes.items():
        arbiter.admit(Member(tenant, app_class, quota))
        arbiter.join(f"{tenant}/1", tenant)
    return arbiter


def look(arbiter: CardArbiter, now: float, busy: str) -> CardArbiter:
    """A round in which these tenants have work and all others none."""
    at_work = busy.split()
    contexts = arbiter.roster.contexts.items()
    arbiter.read({name: WORKS if context.tenant in at_work else IDLE for name, context in contexts}, now)
    arbiter.tick(now)
    return arbiter


def stopped(arbiter: CardArbiter) -> list[str]:
    """The contexts that may not run."""
    states = {name: arbiter.state(name) for name in sorted(arbiter.roster.contexts)}
    return [name for name, state in states.items() if state in (State.PAUSED, State.WAITING)]
