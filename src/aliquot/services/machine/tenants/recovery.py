"""After a restart of the daemon: adopts the tenants that are alive, and discards the others.

How long a look at a page takes is up to its tenant (page.py), and nothing is served before the last one. So the looks
have a second in all: then the other tenants are adopted, and the sweeper finds out later which of them have ended.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from msgspec import structs

from aliquot.adapters.gpu.page import LOOK
from aliquot.adapters.host.home import TENANT_VARIABLE
from aliquot.adapters.host.process import processes
from aliquot.adapters.host.process.procscan import Scan, scan
from aliquot.adapters.storage.store import BOOT, Store
from aliquot.model.tenancy import Tenancy
from aliquot.placement.board import Occupant
from aliquot.services.machine.tenants.members import user_of
from aliquot.services.machine.tenants.registry import Registry
from aliquot.services.machine.tenants.runfiles import log_error, remove_strays

Places = Mapping[str, tuple[str, int]]  # node and index of each card, by UUID

_LOOKS = 1.0  # seconds of the processor for looks at pages

_LOG = logging.getLogger("aliquot.tenants")


def stored_users(store: Store) -> set[int]:
    """The users of the tenants that a daemon before this one had."""
    return {user_of(tenancy) for tenancy in store.tenancies()}


class Recovery:
    """`places`: of the cards that are there; `first`: the node of a tenant that has none of them; `watch`: arranges
    that the end of a tenant's root process is noticed."""

    def __init__(self, registry: Registry, places: Places, first: str, watch: Callable[[Tenancy], None]) -> None:
        self._registry, self._places, self._first, self._watch = registry, places, first, watch
        self._left = _LOOKS

    def restore(self, found: Scan | None) -> bool:
        """Whether the machine was booted since the previous daemon. `found`: a scan of the users of `stored_users`."""
        registry, store = self._registry, self._registry.store
        same_boot = store.setting(BOOT) in (None, processes.boot_id())
        stored = sorted(store.tenancies(), key=lambda tenancy: tenancy.created)
        if found is None:
            found = scan((TENANT_VARIABLE,), stored_users(store))
        newest = {(tenancy.root, tenancy.started): tenancy.id for tenancy in stored}
        dead = []
        for tenancy in stored:
            if newest[tenancy.root, tenancy.started] != tenancy.id:
                registry.orphans.mark_left(tenancy.id)
            if same_boot and self._is_alive(tenancy, found):
                self._adopt(tenancy)
            else:
                dead.append(tenancy)
        if registry.groups is not None:
            registry.groups.restore(registry.group_members.by_group())
        for tenancy in dead:  # only now it is known which groups have living members
            registry.history.add(tenancy, None)
            registry.discard(tenancy)
        store.writer.put(registry.keep_boot, log_error("boot_not_stored", "-"))
        remove_strays(registry.home.tenants, registry.tenancies)
        return not same_boot

    def _is_alive(self, tenancy: Tenancy, found: Scan) -> bool:
        registry, tenant = self._registry, tenancy.tenant
        if registry.orphans.has_root(tenancy):
            return True
        registry.orphans.add(tenant.id)
        if registry.members(tenancy, found, {}) or user_of(tenancy) in found.unfinished:
            return True
        if self._left <= 0:
            return True
        # The arbiter sees which processes have a slot on the tenant's page.
        began = time.thread_time()
        is_alive = registry.register(tenant) and registry.arbiter.alive(tenant.id, LOOK)
        self._left -= time.thread_time() - began
        return is_alive or registry.is_unregistered(tenant.id)

    def _adopt(self, tenancy: Tenancy) -> None:
        tenant = tenancy.tenant  # with its missing cards: they are on its page
        missing = [share.uuid for share in tenancy.shares if share.uuid not in self._places]
        if missing:
            _LOG.warning("tenant_cards_missing", extra={"data": {"tenant": tenant.name, "cards": missing}})
        node, tenancy = placed(tenancy, self._places)
        self._registry.ledger.confirm(tenant.id, node or self._first, occupant(tenancy))
        self._registry.register(tenant)
        self._registry.tenancies[tenant.id] = tenancy
        self._watch(tenancy)
        _LOG.info("tenant_adopted", extra={"data": {"tenant": tenant.name, "pid": tenant.root}})


def placed(tenancy: Tenancy, places: Places) -> tuple[str | None, Tenancy]:
    """The node of its cards that are there (None: none is), and the tenancy with these cards as they are numbered."""
    here = [(share, *places[share.uuid]) for share in tenancy.shares if share.uuid in places]
    shares = tuple(structs.replace(share, card=index) for share, _, index in here)
    return here[0][1] if here else None, replace(tenancy, shares=shares)


def occupant(tenancy: Tenancy) -> Occupant:
    """What it holds, for the ledger."""
    usage = {share.card: share.usage() for share in tenancy.shares}
    return Occupant(usage, tenancy.app_class, parkable=tenancy.parkable)
