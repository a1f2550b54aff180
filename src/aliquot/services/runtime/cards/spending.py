"""What tenants had of a card, and what online work took from offline tenants. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from aliquot.arbiter.bill import divide_spending
from aliquot.model.usage import Spent
from aliquot.services.runtime.processes.contexts import Context, TenantTotals


def spending(
    everybody: Iterable[Context],
    tenants: Mapping[str, TenantTotals],
    busy: Mapping[str, float],
    parts: Mapping[str, float],
    lost: Mapping[str, float],
) -> dict[str, Spent]:
    """What each tenant spent, for the bill. `busy`, `parts`: of each process; `lost`: of each tenant."""
    owners = {context.name: context.owner for context in everybody if context.name in parts}
    groups = {tenant: totals.group for tenant, totals in tenants.items() if totals.group}
    lost = {**lost, **{tenant: lost.get(group, 0.0) for tenant, group in groups.items()}}
    spent = divide_spending(owners, busy, parts, lost)
    for tenant, totals in tenants.items():
        if totals.group == tenant:  # its members pay
            spent.pop(tenant, None)
            continue
        one = spent.setdefault(tenant, Spent())
        one.booked, one.used = float(totals.booked), float(totals.used)
    return spent


def time_lost(
    offline: Iterable[Context], paused: Set[str], online: float, busy: Mapping[str, float]
) -> dict[str, float]:
    """The part of the time that online work took from offline tenants: all of it while they are paused for it,
    otherwise, with a release delay of 0, what online work had of the card while they had work too.

    `paused` names contexts, `online` is the part of the card that online work had. Of a tenant's processes, the one
    that lost most counts.
    """
    lost: dict[str, float] = {}
    for context in offline:
        part = 1.0 if context.name in paused else min(online, busy.get(context.name, 0.0))
        lost[context.tenant] = max(part, lost.get(context.tenant, 0.0))
    return lost
