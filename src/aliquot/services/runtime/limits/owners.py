"""Which tenant a process belongs to: by its Pod's cgroup, else by its ancestors; never by what it says of itself."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence

from aliquot.adapters.gpu.page import SLOTS
from aliquot.adapters.host.process import processes
from aliquot.model.tenant import Finding, FindingKind, Tenant
from aliquot.services.runtime.limits.memoryquota import Owner
from aliquot.services.runtime.processes.anchors import Anchors
from aliquot.services.runtime.processes.registration import Tenancy
from aliquot.services.runtime.together import members

_NO_FILES = "no file is left to find out to whom it belongs"
_UNSEEN = "its process ID is not visible here: an agent in a container needs the host's PID namespace (hostPID: true)"


class ProcessOwners:
    """`tenancies` are the arbiter's, by id; `lock` guards them. `whose` and `claims_of`: see Arbiterd."""

    def __init__(
        self,
        lock: threading.RLock,
        tenancies: Mapping[str, Tenancy],
        whose: Callable[[int], str | None] | None,
        claims_of: Callable[[str], Sequence[str]],
        anchors: Anchors,
    ) -> None:
        self._anchors = anchors
        self._lock, self._tenancies, self._whose, self._claims_of = lock, tenancies, whose, claims_of
        self._impostors: dict[str, Finding] = {}  # by group: the last process that claimed to be its MPS server

    def refusal(self, tenancy: Tenancy, pid: int, uid: int) -> str | None:
        """Why this process may not register with this tenant. Call it without the lock: its user decides how many
        ancestors there are to read."""
        if tenancy.tenant.id not in self._tenancies:
            return "the tenant is gone"
        if pid <= 0:  # in a pid namespace that is not below ours
            return _UNSEEN
        if tenancy.tenant.uid is not None and uid not in (0, tenancy.tenant.uid, os.geteuid()):
            return f"it runs as user {uid}, the tenant belongs to user {tenancy.tenant.uid}"
        if len(tenancy.processes) >= SLOTS:
            return f"the tenant has {SLOTS} processes already"
        try:
            if tenancy.tenant.is_group:
                return self._not_the_server(tenancy.tenant, pid)
            owners = self._ids(pid)
        except OSError:
            if tenancy.tenant.is_group or self._whose is not None:
                return _NO_FILES
            owners = []
        if not owners and self._whose is not None:
            return "it is in no Pod's cgroup"
        if owners and tenancy.tenant.id not in owners:
            other = self._tenancies.get(owners[-1])
            return f"it belongs to Pod {owners[-1]}" if other is None else f"it belongs to tenant {other.tenant.name}"
        return None

    def may_be(self, tenant_id: str, pid: int) -> bool:
        """Whether the process may be the tenant's; not known where tenants are no Pods, or no file is left."""
        try:
            return self._whose is None or tenant_id in self._ids(pid)
        except OSError:
            return True

    def owner_of(self, pid: int) -> Owner | None:
        """The tenant that a process on a card belongs to. Call it without the lock, as `refusal`. Raises
        OSError where no file is left to find it out."""
        owners = self._ids(pid)
        return self._owner(owners[-1]) if owners else None

    def candidates(self, pid: int) -> list[Owner]:
        """The tenants that it may belong to, for the thread that ends processes. Raises OSError as `owner_of`."""
        return [self._owner(name) for name in self._ids(pid)]

    def impostors(self) -> list[Finding]:
        """Live processes that claimed to be the MPS server of a group, and are not."""
        return [one for one in list(self._impostors.values()) if processes.start_time(one.pid or 0) is not None]

    def forget(self, tenant_id: str) -> None:
        """The tenant is gone."""
        self._impostors.pop(tenant_id, None)

    def _owner(self, name: str) -> Owner:
        tenancy = self._tenancies.get(name)
        return Owner(name) if tenancy is None else as_owner(tenancy.tenant)

    def _not_the_server(self, group: Tenant, pid: int) -> str | None:
        """Why it is not the MPS server of that group. Its shares would be those of the group, and no member pays."""
        why = members.not_the_server(group, pid)
        if why is not None:
            text = f"has tried to register as the MPS server of {group.name}, and was refused: {why}"
            found = Finding(group.allotments[0].uuid, pid, FindingKind.UNREGISTERED, text, group.id)
            with self._lock:
                if group.id in self._tenancies:  # else it has ended meanwhile, and nobody would forget this
                    self._impostors[group.id] = found
        return why

    def _ids(self, pid: int) -> list[str]:
        """As `whose` says; without it, the tenants whose descendant it is, the newest last: a process that asked again
        is the root of two. Empty: unknown (it left its parents, say)."""
        if self._whose is not None:
            pod = self._whose(pid)
            if pod is None:
                return []
            claims = [] if pod in self._tenancies else list(self._claims_of(pod))
            return claims or [pod]
        ancestors = processes.ancestors(pid)
        with self._lock:
            return self._anchors.tenants(ancestors)


def as_owner(tenant: Tenant) -> Owner:
    """The tenant as an owner of processes."""
    limits = {allotment.uuid: allotment.memory_bytes for allotment in tenant.allotments}
    return Owner(tenant.id, tenant.name, limits, tenant.uid)
