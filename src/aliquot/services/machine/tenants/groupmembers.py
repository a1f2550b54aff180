"""Who is in which group of runs on this machine, running or queued. runtime/together/groups.py starts the groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aliquot.model.claim import AppClass
from aliquot.model.refusal import Invalid
from aliquot.model.tenancy import Tenancy
from aliquot.services.daemon.control import invalid
from aliquot.services.machine.queue import Queue, QueuedRequest
from aliquot.services.runtime.together.groups import Groups


class GroupMembers:
    """`tenancies` and `queue` are the machine's; `groups`: None where no run shares a card in space."""

    def __init__(self, groups: Groups | None, tenancies: Mapping[str, Tenancy], queue: Queue) -> None:
        self._groups, self._tenancies, self._queue = groups, tenancies, queue

    def may_join(self, group: str, app_class: AppClass, user: int) -> None:
        """Raises RefusedError where a run of that class and user cannot be a member of the group."""
        runs = [tenancy.app_class for tenancy in self._running(group, user)]
        waits = [entry.claim.app_class for entry in self._queue if (entry.claim.group, entry.uid) == (group, user)]
        broken = self.refusal(group, app_class, runs + waits)
        if broken is not None:
            raise invalid(broken)

    def refusal(self, group: str, app_class: AppClass, others: Sequence[AppClass] = ()) -> Invalid | None:
        """Why nothing of that class can be in the group, whose members have the others."""
        if self._groups is None:
            return Invalid("together", group, "this daemon starts no MPS server")
        return self._groups.refusal(group, app_class, others)

    def of(self, group_id: str) -> list[Tenancy]:
        """The group's members that run."""
        return [tenancy for tenancy in self._tenancies.values() if tenancy.group and tenancy.group_id == group_id]

    def by_group(self) -> dict[str, list[Tenancy]]:
        """The members that run of every group, by its id."""
        ids = {tenancy.group_id for tenancy in self._tenancies.values() if tenancy.group}
        return {group_id: self.of(group_id) for group_id in ids}

    def cards(self, entry: QueuedRequest) -> tuple[str, ...]:
        """Where other members of its group are; none, if the claim names cards itself."""
        if not entry.claim.group or (entry.claim.cards is not None and entry.claim.cards.uuids):
            return ()
        others = self._running(entry.claim.group, entry.uid)
        return tuple(dict.fromkeys(share.uuid for tenancy in others for share in tenancy.shares))

    def _running(self, group: str, user: int) -> list[Tenancy]:
        return [tenancy for tenancy in self._tenancies.values() if (tenancy.group, tenancy.user) == (group, user)]
