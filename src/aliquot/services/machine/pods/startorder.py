"""Which supervisors were started and have not asked for room yet: Pods ask in the order in which they were created.

Supervisors are processes, and equal ones race: the first would get the better card, and `web-3` run where `web-0`
waits. A supervisor that is silent for too long holds up no other; nor does another user's, who could stop it at will.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping

from aliquot.model.localpod import LocalPod

_PATIENCE = 10.0  # seconds after which one that says nothing keeps no other waiting
_RETURN = 2.0  # seconds: of one that knew the daemon before, and looks for the next one twice a second
_STEP = 0.01  # seconds between looks


class StartOrder:
    """`pods` are all there are, in the order in which they were made."""

    def __init__(self, pods: Mapping[str, LocalPod], clock: Callable[[], float] = time.monotonic) -> None:
        self._pods, self._clock = pods, clock
        self._until: dict[str, float] = {}

    def begin(self, uid: str, *, again: bool = False) -> None:
        """Its keeper was started; `again`: it was there before this daemon, and will ask again."""
        self._until[uid] = self._clock() + (_RETURN if again else _PATIENCE)

    def end(self, uid: str) -> None:
        """It has asked, or is gone."""
        self._until.pop(uid, None)

    def by_user(self) -> Counter[int]:
        """How many of each user's are on their way."""
        clock = self._clock()
        return Counter(self._pods[uid].applier.user for uid, until in self._until.items() if until > clock)

    async def turn(self, uid: str) -> None:
        """Until all of the same user's that were made before it have asked."""
        while self._before(uid):
            await asyncio.sleep(_STEP)

    def _before(self, uid: str) -> bool:
        pod, clock = self._pods.get(uid), self._clock()
        if pod is None or not any(until > clock for other, until in self._until.items() if other != uid):
            return False
        for other, each in self._pods.items():
            if other == uid:
                return False
            if each.applier.user == pod.applier.user and self._until.get(other, 0.0) > clock:
                return True
        return False
