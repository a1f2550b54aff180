"""Makes the Pods of one user request their cards in creation order, although their supervisors start in parallel.

Supervisors are processes and race: without this, `web-3` could run while `web-0` waits. A supervisor that stays silent
for too long blocks no other. Nor does another user's, who could stop it at will.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping

from aliquot.adapters.host.users import account_of
from aliquot.model.containers.localpod import LocalPod

_PATIENCE = 10.0  # seconds after which a silent supervisor blocks no other
_RECONNECT = 2.0  # seconds for one that survived a restart of the daemon: it reconnects twice a second
_STEP = 0.01  # seconds between checks


class StartOrder:
    """`pods` are all Pods of the machine in creation order."""

    def __init__(self, pods: Mapping[str, LocalPod], clock: Callable[[], float] = time.monotonic) -> None:
        self._pods, self._clock = pods, clock
        self._deadlines: dict[str, float] = {}

    def begin(self, uid: str, *, again: bool = False) -> None:
        """The Pod's supervisor was started. `again`: it survived a restart of the daemon and will reconnect."""
        self._deadlines[uid] = self._clock() + (_RECONNECT if again else _PATIENCE)

    def end(self, uid: str) -> None:
        """The supervisor has requested its cards, or has ended."""
        self._deadlines.pop(uid, None)

    def by_user(self) -> Counter[int]:
        """The number of starting supervisors per user."""
        clock = self._clock()
        users = (self._pods[uid].applier.user for uid, deadline in self._deadlines.items() if deadline > clock)
        return Counter(map(account_of, users))

    async def wait_for_turn(self, uid: str) -> None:
        """Returns when all older Pods of the same user have requested their cards."""
        while self._before(uid):
            await asyncio.sleep(_STEP)

    def _before(self, uid: str) -> bool:
        pod, clock = self._pods.get(uid), self._clock()
        if pod is None or not any(
            deadline > clock for other_uid, deadline in self._deadlines.items() if other_uid != uid
        ):
            return False
        for other_uid, other_pod in self._pods.items():
            if other_uid == uid:
                return False
            if other_pod.applier.user == pod.applier.user and self._deadlines.get(other_uid, 0.0) > clock:
                return True
        return False
