"""How long each context may run at a stretch while others have work. All in microseconds.

Measured on an H200: a switch costs 0.13 to 0.18 ms and is charged to the one switched in; two contending contexts with
slices below that make no progress at all; the stock 2 ms slices lose 9% among eight tenants, 12 ms slices 1.5%.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from aliquot.arbiter.roster import Context

LONG = 1_000_000  # the one context that has no contender of its rank
TINY = 1  # offline beside others: cut at once when another context has work. Never for two that are enabled.
BRIEF = 400  # offline beside others that launches nothing: loading a program, say. It must get on beside a tiny one.
FAIR = 12_000  # a context's stretch where all are equal
SWITCH = 180  # what a switch takes away from the one switched in
SHORTEST, LONGEST = 1_000, 250_000  # of those that divide a card by themselves: shim/abi.h has the same

_ONLINE_AMONG_ONLINE = 2_000  # several busy online contexts: short, so that none waits long
_ONLINE_FOR_NOW = 20_000  # the only busy one of several, beside offline work that each slice's end lets in for a moment
_LONGEST_FAIR = 48_000
_STRETCH = 8_000  # what the smallest quota should get at a stretch
_LONGEST_ROUND = 200_000


def lasting(microseconds: int | None) -> bool:
    """Whether it may stay when no daemon is there to change it: neither tiny, which stops other tiny ones, nor long."""
    return microseconds is not None and SHORTEST <= microseconds <= LONGEST


def equal(contexts: Iterable[Context]) -> dict[str, int]:
    """best-effort: the same for every tenant, split over its processes; longer where one has many to split it over."""
    every = list(contexts)
    processes = Counter(context.tenant for context in every)
    stretch = min(_LONGEST_FAIR, FAIR * max(processes.values(), default=1))
    return {context.name: max(SHORTEST, stretch // processes[context.tenant] + SWITCH) for context in every}


def proportional(contexts: Iterable[Context], quotas: Mapping[str, float]) -> dict[str, int]:
    """burst-share: by quota, in rounds long enough that the smallest slice is worth its switch.

    A quota of 0 gets the shortest slice, and does not lengthen the round. Where all are 0, all are equal.
    """
    every = list(contexts)
    processes = Counter(context.tenant for context in every)
    total = sum(quotas[tenant] for tenant in processes)
    if not total:
        return equal(every)
    smallest = min(quotas[tenant] / total / count for tenant, count in processes.items() if quotas[tenant])
    length = _STRETCH / max(smallest, _STRETCH / _LONGEST_ROUND)
    return {
        context.name: max(SHORTEST, round(quotas[context.tenant] / total * length / processes[context.tenant]) + SWITCH)
        for context in every
    }


def online(contexts: Iterable[Context], busy: Iterable[Context], *, cut: bool) -> dict[str, int]:
    """Online contexts compete freely. One alone is never cut; several take short turns.

    Two with long slices would starve each other for a second, so length is given only to a context without contenders,
    and only where it gains anything: `cut`, by offline work that is not held. Who is alone on the card loses nothing by
    short slices.
    """
    every, rivals = list(contexts), [context.name for context in busy]
    if len(every) == 1:
        return {every[0].name: LONG}
    alone = rivals[0] if cut and len(rivals) == 1 else None
    return {context.name: _ONLINE_FOR_NOW if context.name == alone else _ONLINE_AMONG_ONLINE for context in every}
