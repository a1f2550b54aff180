"""The tenants that run, with everything that each has: cards in the ledger, a row in the store, a folder, a place at
the arbiter, processes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from aliquot.adapters.gpu.page import PageError
from aliquot.adapters.host.home import Home
from aliquot.adapters.host.process import processes
from aliquot.adapters.host.process.procscan import Scan
from aliquot.adapters.storage.folders import remove_folder
from aliquot.adapters.storage.store import BOOT, Store
from aliquot.model.cardstate.control import CardControl
from aliquot.model.residency import Residency
from aliquot.model.tenancy import Tenancy
from aliquot.model.tenant import Finding, SharingRules, Standing, Tenant
from aliquot.placement.book import Ledger
from aliquot.services.machine.history import RunHistory
from aliquot.services.machine.queue import Queue
from aliquot.services.machine.tenants.groupmembers import GroupMembers
from aliquot.services.machine.tenants.members import Orphans
from aliquot.services.machine.tenants.runfiles import log_error
from aliquot.services.runtime.together.groups import Groups

_LOG = logging.getLogger("aliquot.tenants")


class Arbiter(Protocol):
    """Enforces the shares on the cards: services/runtime/arbiterd.py."""

    def add(self, tenant: Tenant, directory: Path) -> None: ...
    def change(self, tenant: Tenant) -> None: ...
    def remove(self, tenant_id: str) -> None: ...
    def configure(self, rules: SharingRules) -> None: ...
    def standings(self) -> list[Standing]: ...
    def findings(self) -> list[Finding]: ...
    def controls(self) -> Mapping[str, CardControl]: ...
    def connected(self, tenant_id: str) -> bool: ...
    def alive(self, tenant_id: str, seconds: float) -> bool: ...  # after so many seconds it is not known: True
    def request_move(self, tenant_id: str, *, leave: bool) -> str | None: ...  # why not, in a sentence
    def residencies(self, tenant_id: str) -> list[Residency]: ...


class Registry:
    """`groups`: None where no run shares a card in space."""

    def __init__(
        self, home: Home, store: Store, arbiter: Arbiter, ledger: Ledger, queue: Queue, groups: Groups | None
    ) -> None:
        self.home, self.store, self.arbiter, self.ledger, self.groups = home, store, arbiter, ledger, groups
        self.tenancies: dict[str, Tenancy] = {}
        self._unregistered: dict[str, Tenant] = {}  # we lacked files to open their folders
        self.orphans = Orphans(self.directory)
        self.group_members = GroupMembers(groups, self.tenancies, queue)
        self.history = RunHistory(store.history, store.writer, self.directory)

    def directory(self, tenant_id: str) -> Path:
        """The folder of the tenant."""
        return Path(self.home.tenants, tenant_id)

    def keep_boot(self) -> None:
        """The next daemon discards tenants of another boot: no tenant is stored before this is. Raises StoreError."""
        self.store.set(BOOT, processes.boot_id())

    def keep(self, tenancy: Tenancy) -> None:
        """For the next daemon. Raises StoreError."""
        self.keep_boot()
        self.store.add(tenancy)

    def register(self, tenant: Tenant) -> bool:
        """False if the arbiter cannot use the folder. The tenant owns it and may have broken it; others go on. Where we
        lack files to open it, `register_again` tries it again."""
        self._unregistered.pop(tenant.id, None)
        try:
            self.arbiter.add(tenant, self.directory(tenant.id))
        except (PageError, OSError) as error:
            _LOG.warning("tenant_folder_unusable", extra={"data": {"tenant": tenant.name, "error": str(error)}})
            if isinstance(error, OSError) and processes.is_shortage(error):
                self._unregistered[tenant.id] = tenant
            return False
        return True

    def is_unregistered(self, tenant_id: str) -> bool:
        """Whether we lacked files to open its folder: its page may be held, and nobody can tell."""
        return tenant_id in self._unregistered

    def register_again(self) -> None:
        """Those whose folders we lacked files for, up to the first for which we still do."""
        for tenant in list(self._unregistered.values()):
            if not self.register(tenant) and self.is_unregistered(tenant.id):
                return

    def discard(self, tenancy: Tenancy) -> None:
        """Forget the tenant and remove everything it had. Must not stop half way."""
        tenant_id = tenancy.tenant.id
        self.tenancies.pop(tenant_id, None)
        self._unregistered.pop(tenant_id, None)
        self.orphans.discard(tenant_id)
        self.ledger.forget(tenant_id)
        failed = log_error("tenant_cleanup_failed", tenancy.tenant.name)
        try:
            self.arbiter.remove(tenant_id)
        except OSError as error:
            failed(error)
        self.store.writer.put(lambda: self.store.remove(tenant_id), failed)
        remove_folder(self.directory(tenant_id))
        if tenancy.group and self.groups is not None:
            self.groups.left(tenancy.group_id, self.group_members.of(tenancy.group_id))

    def on_cards(self) -> dict[str, list[int]]:
        """The processes on cards, by tenant."""
        found: dict[str, list[int]] = {}
        for standing in self.arbiter.standings():
            if standing.processes:
                found.setdefault(standing.tenant, []).extend(standing.processes)
        return found

    def members(self, tenancy: Tenancy, found: Scan, on_cards: Mapping[str, Iterable[int]]) -> dict[int, int]:
        """Its live processes, with their start times (members.py). `on_cards`: as above, once for many tenants."""
        return self.orphans.members(tenancy, found, processes.identities(on_cards.get(tenancy.id, ())))
