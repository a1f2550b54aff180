"""Pods that share a card in space (docs/together.md): their group's control starts before a member's container, is
found again after a restart of the agent, and ends with the last member.

A group is one namespace's, of one name, class, user and set of cards: that is its Tenancy.group_id.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aliquot.adapters.gpu.mps import PIPES_VARIABLE, MpsError
from aliquot.adapters.gpu.page import PageError
from aliquot.adapters.host.users import node_account
from aliquot.model.containers.edits import Mount
from aliquot.model.reason import Reason
from aliquot.model.tenancy import Tenancy
from aliquot.services.agent.devices.plugins import Refused
from aliquot.services.agent.tenants import PodTenants
from aliquot.services.runtime.together.groups import Groups
from aliquot.wording import reasons


class PodGroups:
    """See the head of the file. One thread; `serves`: whether Pods may join that are no members yet; `account_of`: the
    name of the node's account with that number."""

    def __init__(
        self,
        groups: Groups | None,
        tenants: PodTenants,
        *,
        serves: bool,
        has_cdi: Callable[[], bool] = lambda: True,
        account_of: Callable[[int], str | None] = node_account,
    ) -> None:
        self._groups, self._tenants, self.serves = groups, tenants, serves
        self._has_cdi, self.account_of = has_cdi, account_of
        self._joining: dict[str, Tenancy] = {}  # their containers are prepared at this moment
        self._settled: dict[str, frozenset[str]] = {}  # the members of each group, as the arbiter knows them

    def start(self) -> None:
        """Go on with the groups of the tenants that the database has. In the event loop."""
        if self._groups is not None:
            self._groups.workers.start()
            self._restore(end_others=False)

    def recovered(self) -> None:
        """All tenants are known, also where the database was lost: go on with their groups, and end all others."""
        self._restore(end_others=True)

    def _restore(self, *, end_others: bool) -> None:
        if self._groups is not None:
            self._groups.restore(self._members(), end_others=end_others)
            self._settled = self._identities()

    def close(self) -> None:
        """Finish what was begun. Controls go on."""
        if self._groups is not None:
            self._groups.workers.stop()

    @asynccontextmanager
    async def joining(self, tenancy: Tenancy) -> AsyncIterator[None]:
        """While a container of the Pod is prepared: with its group's control running. Raises Refused."""
        if not tenancy.group:
            yield
            return
        groups = self._check(tenancy)
        self._joining[tenancy.id] = tenancy
        try:
            try:
                await groups.start([*self._others(tenancy), tenancy])
            except (MpsError, PageError, OSError) as error:
                raise Refused(f"the aliquot agent of this node cannot start the Pod's group: {error}") from error
            finally:
                self._settled[tenancy.group_id] = frozenset()  # others may have come or gone meanwhile: look again
            yield
        finally:
            self._joining.pop(tenancy.id, None)  # two containers of the Pod can be prepared at once

    def _check(self, tenancy: Tenancy) -> Groups:
        """The groups, where it may join. Raises Refused."""
        old = self._tenants.tenancies.get(tenancy.id)
        is_member = old is not None and old.group_id == tenancy.group_id  # its container restarts
        if self._groups is None or not (self.serves or is_member):
            why = reasons.line(Reason.TOGETHER, reasons.Facts())
            raise Refused(reasons.with_code(f"this node's agent {why}", Reason.TOGETHER))
        if not self._has_cdi():  # Allocate would have to name the mounts, and does not know for which Pod it is called
            raise Refused(
                "this node runs containers without CDI, and a Pod of a group (aliquot.dev/together) needs it: enable "
                "CDI in the container runtime and in the agent (--cdi), or remove the annotation"
            )
        if any(_owner(other) != _owner(tenancy) for other in self._others(tenancy)):
            raise Refused(f"group {tenancy.group} has the id of another owner's group: give it another name")
        account = None if is_member or tenancy.user is None else self.account_of(tenancy.user)
        if account is not None:
            raise Refused(
                f"runAsUser {tenancy.user} is the account {account} of this node, and the group's MPS server would run "
                "as it: set the Pod's spec.securityContext.runAsUser to a number that no account of the node has, for "
                "example 70000"
            )
        return self._groups

    def environment(self, tenancy: Tenancy) -> dict[str, str]:
        """What a member's containers get in addition."""
        found = {} if self._groups is None else self._groups.environment(tenancy)
        return {name: value for name, value in found.items() if name == PIPES_VARIABLE}

    def mounts(self, tenancy: Tenancy) -> tuple[Mount, ...]:
        """The mounts that the group adds to a container."""
        return () if self._groups is None else self._groups.mounts(tenancy)

    def settle(self) -> None:
        """Adjust the quota of groups whose members have changed, and end those without any. Call it every second."""
        if self._groups is None:
            return
        members, identities = self._members(), self._identities()
        for group in self._settled.keys() | identities.keys():
            if self._settled.get(group) != identities.get(group):
                self._groups.left(group, members.get(group, ()))
        self._settled = identities

    def _others(self, tenancy: Tenancy) -> list[Tenancy]:
        return [one for one in self._members().get(tenancy.group_id, ()) if one.id != tenancy.id]

    def _members(self) -> dict[str, list[Tenancy]]:
        found: dict[str, list[Tenancy]] = {}
        for tenancy in {**self._joining, **self._tenants.tenancies}.values():
            if tenancy.group:
                found.setdefault(tenancy.group_id, []).append(tenancy)
        return found

    def _identities(self) -> dict[str, frozenset[str]]:
        return {group: frozenset(one.id for one in members) for group, members in self._members().items()}


def _owner(tenancy: Tenancy) -> tuple[str, str, int | None]:
    return tenancy.namespace, tenancy.group, tenancy.user
