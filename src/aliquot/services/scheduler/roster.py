"""Which PodGroups there are, and which Pods belong to them. No IO, no clock: what the API server said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from aliquot.dialects.podgroups import KUBERNETES, GroupObject, group_key, membership, parse_group
from aliquot.dialects.wire.objects import PodObject
from aliquot.dialects.wire.views import Names
from aliquot.model.group import Group, Membership, Shortfall
from aliquot.model.refusal import Invalid
from aliquot.placement.board import Ints
from aliquot.placement.groups.attempts import Attempts


class Standing(Enum):
    """Where a member is, by the API server."""

    PENDING = "pending"
    PLACED = "placed"  # has a node, or has ended well
    OUT = "out"  # ends, has failed, or is held back by gates: does not count


@dataclass(slots=True)
class Seen:
    """A Pod that names a group."""

    uid: str
    key: str
    membership: Membership
    standing: Standing
    created: str


@dataclass(slots=True)
class Roster:
    """See the head of the file."""

    groups: dict[str, Group | Invalid] = field(default_factory=dict)  # by key
    members: dict[str, Seen] = field(default_factory=dict)  # by uid
    version: int = 0  # grows with every change
    strays: dict[str, Seen] = field(default_factory=dict)  # new Pods that wait and name a group that is not there
    asked: dict[str, Ints] = field(default_factory=dict)  # by uid, the rows that kube-scheduler last asked about
    refused: dict[str, tuple[float, Shortfall]] = field(default_factory=dict)  # by group: when it was found short
    lacks: dict[str, Shortfall] = field(default_factory=dict)  # by group: what it lacked when last looked at, to show
    attempts: Attempts = field(default_factory=Attempts)
    _of_group: dict[str, dict[str, Seen]] = field(default_factory=dict)

    # --- what the API server said -----------------------------------------------------------------------------------

    def set_group(self, api: str, item: GroupObject) -> None:
        """A PodGroup is there, or has changed."""
        key, group = group_key(api, item), parse_group(api, item)
        if self.groups.get(key) == group:  # its status has changed, say
            return
        self.groups[key] = group
        self.attempts.excuse(key)
        self._changed(key)

    def drop_group(self, key: str) -> None:
        """A PodGroup is gone: its Pods are scheduled one by one."""
        if self.groups.pop(key, None) is not None:
            self.attempts.forget(key)
            self.lacks.pop(key, None)
            self._changed(key)

    def observe(self, pod: PodObject, names: Names) -> None:
        """A Pod is there, or has changed."""
        known, named = self.members.get(names.uid), membership(pod)
        if known is not None and known.membership != named:  # its labels were changed
            self.forget(names.uid)
            known = None
        if named is None:
            return
        standing = _standing(pod)
        if known is not None:
            if known.standing is not standing:
                known.standing = standing
                self._changed(*named.keys)
            return
        created = pod.metadata.creation_timestamp or ""
        seen = Seen(names.uid, f"{names.namespace}/{names.name}", named, standing, created)
        self.members[names.uid] = seen
        for key in named.keys:
            self._of_group.setdefault(key, {})[names.uid] = seen
            self.attempts.excuse(key)
        if standing is Standing.PENDING:
            self.strays[names.uid] = seen
        self._changed(*named.keys)

    def forget(self, uid: str) -> None:
        """A Pod is gone."""
        self.asked.pop(uid, None)
        self.strays.pop(uid, None)
        seen = self.members.pop(uid, None)
        if seen is None:
            return
        for key in seen.membership.keys:
            there = self._of_group[key]
            del there[uid]
            if not there:
                del self._of_group[key]
        self._changed(*seen.membership.keys)

    def _changed(self, *keys: str) -> None:
        self.version += 1
        for key in keys:
            self.refused.pop(key, None)

    # --- questions --------------------------------------------------------------------------------------------------

    def find(self, named: Membership | None) -> Group | Invalid | None:
        """The group that a Pod names, if it exists."""
        if named is None or not self.groups:
            return None
        return next((self.groups[key] for key in named.keys if key in self.groups), None)

    def group_of(self, uid: str) -> Group | None:
        """The group of a Pod that was observed; None: it goes by itself, or its group cannot be read."""
        seen = self.members.get(uid)
        group = None if seen is None else self.find(seen.membership)
        return group if isinstance(group, Group) else None

    def of_group(self, group: Group) -> Iterator[Seen]:
        """Its Pods, the oldest first."""
        there = [seen for seen in self._of_group.get(group.key, {}).values() if self.find(seen.membership) is group]
        return iter(sorted(there, key=lambda seen: (seen.created, seen.key)))

    def take_strays(self) -> list[Seen]:
        """Pods that came since the last call, wait, and name a group that does not exist. Kubernetes itself says so of
        its own groups."""
        found = [
            seen
            for seen in self.strays.values()
            if self.find(seen.membership) is None and not seen.membership.keys[0].startswith(KUBERNETES)
        ]
        self.strays.clear()
        return found

    def remember_rows(self, uid: str, rows: Ints) -> None:
        """Keep what kube-scheduler asked about: it knows reasons against nodes that we do not. Members mostly share
        one array."""
        if uid not in self.members:  # anybody can call filter
            return
        if uid not in self.asked:
            for key in self.members[uid].membership.keys:
                self.attempts.excuse(key)
        rows = np.sort(rows)
        for kept in self._rows_of_others(uid):
            if np.array_equal(kept, rows):
                rows = kept
                break
        self.asked[uid] = rows

    def _rows_of_others(self, uid: str) -> Iterator[Ints]:
        for key in self.members[uid].membership.keys:
            known = (self.asked.get(other) for other in self._of_group[key])
            yield from {id(rows): rows for rows in known if rows is not None}.values()


def _standing(pod: PodObject) -> Standing:
    if pod.finished:
        return Standing.PLACED if pod.status is not None and pod.status.phase == "Succeeded" else Standing.OUT
    if pod.metadata.deletion_timestamp is not None:
        return Standing.OUT
    if pod.spec.node_name:
        return Standing.PLACED
    return Standing.OUT if pod.spec.scheduling_gates else Standing.PENDING
