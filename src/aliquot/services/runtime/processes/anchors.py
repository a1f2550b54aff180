"""Which processes show whose their descendants are: the roots of tenants, and processes that have registered.

Kept up to date as they come and go: to look through all of them for each connection took longer with each process that
any tenant has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aliquot.adapters.host.process import processes


@dataclass(frozen=True, slots=True)
class _Anchor:
    tenant: str
    order: int  # of the tenant: the newest is last
    started: int | None


class Anchors:
    """By pid. The arbiter's lock guards them."""

    def __init__(self) -> None:
        self._by_pid: dict[int, dict[object, _Anchor]] = {}
        self._orders: dict[str, int] = {}
        self._next = 0

    def admit(self, tenant: str) -> None:
        """It is the newest of the tenants."""
        self._orders[tenant] = self._next
        self._next += 1

    def put(self, key: object, tenant: str, pid: int, started: int | None) -> None:
        """Descendants of that very process are the tenant's. `key` names the entry, until it is dropped."""
        self._by_pid.setdefault(pid, {})[key] = _Anchor(tenant, self._orders[tenant], started)

    def drop(self, key: object, pid: int) -> None:
        """The process has ended, or is the tenant's no more."""
        there = self._by_pid.get(pid, {})
        there.pop(key, None)
        if not there:
            self._by_pid.pop(pid, None)

    def forget(self, tenant: str) -> None:
        """The tenant is gone, and so are its entries."""
        self._orders.pop(tenant, None)

    def tenants(self, ancestors: Iterable[int]) -> list[str]:
        """Whose descendant a process with these ancestors is, by the nearest that shows it; the newest tenant last."""
        for ancestor in ancestors:
            there = self._by_pid.get(ancestor)
            started = processes.start_time(ancestor) if there else None
            if there is None or started is None:
                continue
            found = {(anchor.order, anchor.tenant) for anchor in there.values() if anchor.started == started}
            if found:
                return [tenant for _, tenant in sorted(found)]
        return []
