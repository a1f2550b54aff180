"""A bind of a group's member waits until enough members have come to theirs: then all are written, or none.

The plan (admission.py) knows cards. kube-scheduler knows more: CPU, selectors, volumes. It may find no node for one
member and bind the others all the same, one after the other. Their binds arrive while it still schedules the next
member, so they can wait for each other here, with their cards booked. A bind that waited in vain is refused, its cards
are free again, and kube-scheduler tries the Pod later.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.groups.admission import count
from aliquot.wording.groups import not_gathered

LIMIT = 3.0  # seconds; kube-scheduler gives up a bind after 5


@dataclass(slots=True)
class _Meeting:
    """The binds of one group that wait."""

    enough: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0


class Gathering:
    """See the head of the file."""

    def __init__(self, cluster: Cluster, *, limit: float = LIMIT) -> None:
        self._cluster, self._limit = cluster, limit
        self._meetings: dict[str, _Meeting] = {}  # by group

    async def wait(self, uid: str) -> str | None:
        """None once enough members of the Pod's group have come, or are in their places; else why it was in vain.

        The Pod itself is assumed already.
        """
        group = self._cluster.groups.group_of(uid)
        if group is None:
            return None
        attempts, clock = self._cluster.groups.attempts, asyncio.get_running_loop().time
        meeting = self._meetings.setdefault(group.key, _Meeting())
        found = count(self._cluster, group)
        if found.met:
            attempts.forget(group.key)
            meeting.enough.set()
            self._leave(group.key, meeting)
            return None
        if attempts.pause(group.key, clock()) is not None:  # the others were refused already
            self._leave(group.key, meeting)
            return not_gathered(group, len(found.placed) + len(found.cardless), self._limit)
        meeting.waiting += 1
        try:
            async with asyncio.timeout(self._limit):
                await meeting.enough.wait()
        except TimeoutError:
            pass
        finally:
            meeting.waiting -= 1
            self._leave(group.key, meeting)
        found = count(self._cluster, group)
        if meeting.enough.is_set() or found.met:
            return None
        for claim, _ in found.waiting:  # other Pods need not wait for what kept the others away
            self._cluster.release_hold(claim.uid)
        came = len(found.placed) + len(found.cardless)
        attempts.fail(group.key, clock(), came)
        return not_gathered(group, came, self._limit)

    def _leave(self, key: str, meeting: _Meeting) -> None:
        if self._meetings.get(key) is meeting and (meeting.enough.is_set() or not meeting.waiting):
            del self._meetings[key]
