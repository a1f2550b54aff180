"""Groups that kube-scheduler has given up: what each lacks, and which have room now. No IO; the time is an argument.

A member that fits by itself says nothing about its group, so PendingPods leaves the members of waiting groups to this
module. Plans are made again only when cards or members have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from aliquot.model.claim import Claim
from aliquot.model.group import Shortfall
from aliquot.model.refusal import Refusal
from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.groups.admission import shortfall, waiting_groups
from aliquot.services.scheduler.roster import Seen
from aliquot.wording.groups import waiting_because

_BETWEEN = 1.0  # seconds between two plans for one group
_LIMIT = 0.02  # seconds in one pass after which no further plan is started
_FRESH = 10.0  # seconds for which a sentence holds for all members


class WaitingGroups:
    """See the head of the file."""

    def __init__(self, cluster: Cluster, *, known: Callable[[], bool], clock: Callable[[], float]) -> None:
        self._cluster, self._known, self._clock = cluster, known, clock
        self._waiting: dict[str, list[str]] = {}  # by group: its Pods that were given up
        self._group_of: dict[str, str] = {}  # by uid
        self._planned: dict[str, tuple[float, tuple[int, int]]] = {}  # by group: when, and the state of the cluster
        self._sentences: dict[str, tuple[float, str | None]] = {}
        self._moved = 0  # how far planning itself has moved the board's clock

    def __contains__(self, uid: str) -> bool:
        return uid in self._group_of

    def look(self, given_up: Iterable[str]) -> None:
        """Find the groups that wait, among these Pods."""
        self._waiting = waiting_groups(self._cluster, given_up) if self._cluster.groups.groups else {}
        self._group_of = {uid: key for key, uids in self._waiting.items() for uid in uids}
        self._planned = {key: plan for key, plan in self._planned.items() if key in self._waiting}
        self._sentences = {key: known for key, known in self._sentences.items() if key in self._waiting}

    def ready(self, now: float) -> list[str]:
        """Pods of groups that would find room now, as far as we know: kube-scheduler should try them again."""
        found: list[str] = []
        began = self._clock()
        for key, uids in self._waiting.items():
            if self._cluster.groups.attempts.pause(key, now) is not None:
                self._planned.pop(key, None)  # its next attempt needs no change of the cluster
                continue
            planned = self._planned.get(key)
            if planned is not None and (now - planned[0] < _BETWEEN or planned[1] == self._state()):
                continue
            if self._clock() - began > _LIMIT:
                break
            if self._shortfall(uids[0], now) is None:
                found += uids
                # kube-scheduler comes at once: what was found short a moment ago must not be its answer.
                self._cluster.groups.refused.pop(key, None)
            self._planned[key] = (now, self._state())
        return found

    def sentence(self, uid: str, now: float) -> tuple[str | None, bool]:
        """What the Pod's group lacks, None if it lacks nothing; and whether that had to be computed."""
        key = self._group_of[uid]
        known = self._sentences.get(key)
        if known is not None and now - known[0] < _FRESH:
            return known[1], False
        board = self._cluster.board
        found = self._shortfall(uid, now, self._cluster.chooser.refusals)
        nodes = int(board.present[: board.rows].sum())
        text = None if found is None else waiting_because(found[0], found[1], nodes)
        if found is not None:
            self._cluster.groups.lacks[key] = found[0]
        else:
            self._cluster.groups.lacks.pop(key, None)
        self._sentences[key] = (now, text)
        return text, True

    def take_strays(self) -> list[Seen]:
        """Pods that name a group that is not there, once all groups are known."""
        return self._cluster.groups.take_strays() if self._known() else []

    def _shortfall(
        self, uid: str, now: float, why: Callable[[Claim], Sequence[Refusal]] | None = None
    ) -> tuple[Shortfall, Sequence[Refusal]] | None:
        """What the Pod's group lacks. A plan that is given up leaves the board as it was, but for its clock: that must
        not make all other groups plan again."""
        cluster = self._cluster
        before, held = cluster.board.clock, len(cluster.held)
        found = shortfall(cluster, uid, why, now=now)
        if len(cluster.held) == held:  # otherwise holds of the group were given up, which others may need
            self._moved += cluster.board.clock - before
        return found

    def _state(self) -> tuple[int, int]:
        return self._cluster.board.clock - self._moved, self._cluster.groups.version
