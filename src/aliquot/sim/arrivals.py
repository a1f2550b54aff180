"""The order in which Pods come."""

from __future__ import annotations

import random
from collections.abc import Sequence

from aliquot.sim.trace import PodSpec


def arrivals(pods: Sequence[PodSpec], wanted_milli: int, seed: int) -> list[PodSpec]:
    """The trace, with Pods drawn from it again until they ask for that much GPU, in random order.

    A trace that asks for more is cut there, after the shuffle. The seed is all the chance there is.
    """
    chance = random.Random(seed)
    coming = list(pods)
    asked = sum(pod.demand_milli for pod in coming)
    if asked == 0:
        chance.shuffle(coming)
        return coming
    while asked < wanted_milli:
        again = chance.choice(pods)
        coming.append(again)
        asked += again.demand_milli
    chance.shuffle(coming)
    asked = 0
    for count, pod in enumerate(coming, 1):
        asked += pod.demand_milli
        if asked >= wanted_milli:
            return coming[:count]
    return coming
