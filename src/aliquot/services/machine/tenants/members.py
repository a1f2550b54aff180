"""Which processes belong to a tenant of one machine, and which tenants have no root: they end with the last process."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from aliquot.adapters.host.home import TENANT_VARIABLE
from aliquot.adapters.host.process import processes
from aliquot.adapters.host.process.procscan import Scan
from aliquot.model.tenancy import Tenancy

_MOST_ENDED = 500  # processes of a user that one look for suspects finds ended: the next one goes on


def user_of(tenancy: Tenancy) -> int:
    """The user of its processes."""
    return os.geteuid() if tenancy.user is None else tenancy.user


def members(
    tenancy: Tenancy,
    found: Scan,
    folder: str,
    *,
    on_cards: Mapping[int, int],
    seen: Mapping[int, int] | None,
    root_left: bool,
) -> dict[int, int]:
    """Its live processes, with their start times: its root, those on cards, those with its environment variable, those
    seen before (None: this is the first look), and all their children.

    `root_left`: its root asked again, and belongs to another tenant unless it is on a card. The children that it had
    at the first look stay; those that come later are the other tenant's.

    The daemon itself never belongs to a tenant, even where a process of the tenant started it.
    """
    user, mark, daemon = user_of(tenancy), (TENANT_VARIABLE, folder), os.getpid()
    root: dict[int, int] = {}
    if tenancy.root is not None and tenancy.started is not None and processes.lives(tenancy.root, tenancy.started):
        root[tenancy.root] = tenancy.started
    own = found.marked(*mark, user) | {
        pid: at for pid, at in (seen or {}).items() if found.has(pid, at) or processes.lives(pid, at)
    }
    if not root_left:
        own |= {**on_cards, **root}
        own.pop(daemon, None)
        return own | found.below(own, mark, user, without=daemon)
    own = {pid: at for pid, at in own.items() if pid not in root and pid != daemon}
    below = found.below({**own, **on_cards, **(root if seen is None else {})}, mark, user, without=daemon)
    return {pid: at for pid, at in (own | below).items() if pid not in root} | dict(on_cards)


class Orphans:
    """Tenants without a root process: it has ended, or it has asked again and is another tenant's now."""

    def __init__(self, directory: Callable[[str], Path]) -> None:
        self._directory = directory  # by the tenant's id
        self._seen: dict[str, dict[int, int] | None] = {}  # processes seen last; None: no look yet
        self._ran: set[str] = set()  # tenants of which a look has found processes
        self._left: set[str] = set()  # tenants whose root process lives and has asked again

    def __contains__(self, tenant_id: str) -> bool:
        return tenant_id in self._seen

    def add(self, tenant_id: str) -> None:
        """It has no root process any more."""
        self._seen.setdefault(tenant_id, None)

    def discard(self, tenant_id: str) -> None:
        """The tenant has ended."""
        self._seen.pop(tenant_id, None)
        self._ran.discard(tenant_id)
        self._left.discard(tenant_id)

    def mark_left(self, tenant_id: str) -> None:
        """Its root process has asked again."""
        self._left.add(tenant_id)

    def move_on(self, pid: int, started: int | None, tenancies: Iterable[Tenancy]) -> bool:
        """The process leaves the tenants whose root it is. False if there are none."""
        earlier = [
            tenancy.id
            for tenancy in tenancies
            if started is not None and (tenancy.root, tenancy.started) == (pid, started)
        ]
        for tenant_id in earlier:
            if tenant_id not in self._left:
                self._left.add(tenant_id)
                self._seen[tenant_id] = None
                self._ran.discard(tenant_id)
        return bool(earlier)

    def root_ended(self, tenancy: Tenancy) -> None:
        """Its root process has ended."""
        if not processes.lives(tenancy.root, tenancy.started):  # else it asked again, and is another tenant's now
            self._left.discard(tenancy.id)
        self.add(tenancy.id)

    def has_root(self, tenancy: Tenancy) -> bool:
        """Whether its root process lives, and is still its own."""
        return tenancy.id not in self._left and processes.lives(tenancy.root, tenancy.started)

    def suspects(self, tenancies: Mapping[str, Tenancy]) -> dict[str, int]:
        """Tenants that may have no process left, and their users. Nearly free while known processes are alive: those
        that have ended are looked at once, so many of a user at a time."""
        found: dict[str, int] = {}
        left = Counter[int]()  # by user: processes that have ended and may still be looked at
        for tenant_id, seen in self._seen.items():
            if tenant_id in tenancies:
                user = user_of(tenancies[tenant_id])
                left.setdefault(user, _MOST_ENDED)
                living, dropped = _drop_ended(seen or {}, left[user])
                left[user] -= dropped
                if not living:
                    found[tenant_id] = user
        return found

    def set_seen(self, tenant_id: str, found: dict[int, int]) -> None:
        """These processes of it are alive."""
        self._seen[tenant_id] = found
        if found:
            self._ran.add(tenant_id)

    def ever_ran(self, tenant_id: str) -> bool:
        """Whether anything ran in it before its root process asked again."""
        return tenant_id not in self._left or tenant_id in self._ran

    def members(self, tenancy: Tenancy, found: Scan, on_cards: Mapping[int, int]) -> dict[int, int]:
        """Its live processes, with their start times."""
        folder = str(self._directory(tenancy.id))
        seen, left = self._seen.get(tenancy.id, {}), tenancy.id in self._left
        return members(tenancy, found, folder, on_cards=on_cards, seen=seen, root_left=left)


def _drop_ended(seen: dict[int, int], most: int) -> tuple[bool, int]:
    """Drop those that have ended, up to the first that lives and at most so many. Whether any may live, and how many
    were dropped."""
    dropped = 0
    while seen:
        pid, started = next(iter(seen.items()))
        if dropped >= most or processes.lives(pid, started):
            return True, dropped
        del seen[pid]
        dropped += 1
    return False, dropped
