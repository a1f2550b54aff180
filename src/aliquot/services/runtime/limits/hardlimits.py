"""Memory limits that the driver itself enforces, r615 and newer: on the cgroup of each Pod, beside the shim's.

The driver counts the CUDA context too, so its limit is higher by one process's margin: within that, the shim answers.
The audit's thread calls `refresh`; `enforces` may be called by any.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from aliquot.adapters.gpu.nvml import NvmlError
from aliquot.arbiter.overuse import MARGIN
from aliquot.model.tenant import Tenant

_UNSEEN = "the cgroups of Pods cannot be seen from here"
_RETRY = 30.0  # seconds; a Pod's cgroup is there before its first container, but maybe not before its tenant
_RETRY_REFUSED = 600.0  # a driver that does not limit today will hardly do it in a minute

log = logging.getLogger(__name__)

# card, cgroup, bytes; returns why the driver does not limit it, None where it does
SetLimit = Callable[[str, str, int], str | None]


class HardLimits:
    """See the head of the file. `folders` returns the cgroups of Pods that can be seen, by UID."""

    def __init__(self, set_limit: SetLimit, folders: Callable[[], Mapping[str, Path]]) -> None:
        self._set, self._folders = set_limit, folders
        self._enforced: dict[tuple[str, str], int] = {}  # bytes, by tenant and card
        self._next: dict[str, float] = {}  # when a tenant is tried again
        self._why = ""

    def enforces(self, tenant: str, uuid: str) -> bool:
        """Whether the driver limits the tenant on that card."""
        return (tenant, uuid) in self._enforced

    def refresh(self, tenants: Iterable[Tenant], now: float) -> None:
        """Set the limits that are not set yet."""
        by_id = {tenant.id: tenant for tenant in tenants}
        self._enforced = {key: limit for key, limit in self._enforced.items() if key[0] in by_id}
        self._next = {tenant: at for tenant, at in self._next.items() if tenant in by_id}
        folders: Mapping[str, Path] | None = None
        for tenant in by_id.values():
            if now < self._next.get(tenant.id, 0.0):
                continue
            wanted = {
                (tenant.id, one.uuid): one.memory_bytes + MARGIN
                for one in tenant.allotments
                if one.memory_bytes is not None
            }
            if wanted.items() <= self._enforced.items():
                continue
            if folders is None:
                folders = self._folders()  # walks all cgroups, so once for all tenants
            folder = folders.get(tenant.id)
            wait = _RETRY if folder is None else _RETRY_REFUSED
            self._next[tenant.id] = (now // wait + 1) * wait  # the same for all tenants: they share the walk
            for key, limit in wanted.items():
                why = _UNSEEN if folder is None else self._try(key[1], folder, limit)
                if why is None:
                    self._enforced = {**self._enforced, key: limit}
                elif why != self._why:  # the same for every Pod: said once
                    self._why = why
                    data = {"tenant": tenant.name, "card": key[1], "why": why}
                    log.info("driver_limits_no_memory", extra={"data": data})

    def _try(self, uuid: str, folder: Path, limit: int) -> str | None:
        try:
            return self._set(uuid, str(folder), limit)
        except NvmlError as error:
            return str(error)
