"""How long each context may run at a stretch while others have work. All in microseconds.

Measured on an H200: a switch costs about 0.13 ms and is charged to the one switched in; two contending contexts with
slices below that make no progress at all; the stock 2 ms slices lose 7% among eight, 8 ms slices 1%.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from .roster import Context

LONG = 1_000_000  # the one context that nobody of its rank contends with
TINY = 1  # offline beside others: cut at once when anybody else has work. Never for two that are enabled.
FAIR = 8_000  # a tenant's stretch where all are equal
SWITCH = 130  # what a switch takes away from the one switched in

_ONLINE_AMONG_ONLINE = 2_000  # several busy online contexts: short, so that none waits long
_ONLINE_FOR_NOW = 20_000  # the only busy one of several: long enough to be undisturbed, short enough to be caught
_SHORTEST = 1_000
_STRETCH = 5_000  # what the smallest quota should get at a stretch
_LONGEST_ROUND = 200_000


def equal(contexts: Iterable[Context]) -> dict[str, int]:
    """best-effort: the same for every tenant, split over its processes."""
    every = list(contexts)
    processes = Counter(each.tenant for each in every)
    return {each.name: max(_SHORTEST, FAIR // processes[each.tenant] + SWITCH) for each in every}


def proportional(contexts: Iterable[Context], quotas: Mapping[str, float]) -> dict[str, int]:
    """burst-share: by quota, in rounds long enough that the smallest slice is worth its switch."""
    every = list(contexts)
    processes = Counter(each.tenant for each in every)
    total = sum(quotas[tenant] for tenant in processes) or 1.0
    smallest = min((quotas[tenant] / total / count for tenant, count in processes.items()), default=1.0)
    length = min(_LONGEST_ROUND, _STRETCH / smallest)
    return {
        each.name: max(_SHORTEST, round(quotas[each.tenant] / total * length / processes[each.tenant]) + SWITCH)
        for each in every
    }


def online(contexts: Iterable[Context], busy: Iterable[Context]) -> dict[str, int]:
    """Online contexts compete freely. One alone is never cut; several that are busy take short turns.

    Two with long slices would starve each other for a second, so length is given only to whom nobody contends with.
    """
    every, rivals = list(contexts), [each.name for each in busy]
    if len(every) == 1:
        return {every[0].name: LONG}
    alone = rivals[0] if len(rivals) == 1 else None
    return {each.name: _ONLINE_FOR_NOW if each.name == alone else _ONLINE_AMONG_ONLINE for each in every}
