"""The Pods on this node's cards as tenants of the arbiter: admitted, restored after a restart, released.

A Pod with all its containers is one tenant: its share of a card is the most that its containers use there at once. The
order of writes makes it crash-safe. Admission: database, folder, then (in allocation.py) the CDI spec that injects the
folder. Release: spec, folder, database. If the agent is killed in between, the next one finds the rest and finishes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from aliquot.adapters.gpu.page import PageError
from aliquot.adapters.host.process.processes import is_shortage
from aliquot.adapters.storage.cdifolder import CdiError
from aliquot.adapters.storage.folders import remove_folder
from aliquot.adapters.storage.podstore import PodStore, StoreError
from aliquot.model.tenancy import Tenancy
from aliquot.model.tenant import Tenant

log = logging.getLogger(__name__)

_LINGERS = 60.0  # seconds after a Pod's end until processes that are still on a card are reported


class Tenants(Protocol):
    """What is used of the arbiter (services/runtime/arbiterd.py)."""

    def add(self, tenant: Tenant, directory: Path) -> None: ...
    def remove(self, tenant_id: str) -> None: ...
    def alive(self, tenant_id: str) -> bool: ...


class AdmissionError(Exception):
    """The Pod cannot become a tenant; the message says why."""


@dataclass(slots=True)
class _Ended:
    """A Pod that has ended, and since when we wait for its last process."""

    since: float
    reported: bool = False  # as lingering
    problem: str = ""  # why it could not be released, as logged


class PodTenants:
    """See the head of the file. One thread; `clock` is monotonic."""

    def __init__(
        self,
        store: PodStore,
        arbiter: Tenants,
        folder: Path,
        *,
        clock: Callable[[], float],
        remove_injections: Callable[[str], None],
    ) -> None:
        self.tenancies: dict[str, Tenancy] = {}
        self._store, self._arbiter, self._folder, self._clock = store, arbiter, folder, clock
        self._remove_injections = remove_injections  # removes what was injected into that Pod's containers
        self._ended: dict[str, _Ended] = {}
        self._unrestored: set[str] = set()  # we lacked files to open their folders: nobody can tell whether they live

    def folder_of(self, uid: str) -> Path:
        """The host folder with the Pod's page and socket."""
        return self._folder / uid

    def restore(self) -> int:
        """Restore all tenants from the database, at once: running Pods must not wait for the API server."""
        for tenancy in self._store.tenancies():
            self.tenancies[tenancy.id] = tenancy
            self._restore(tenancy)
        return len(self.tenancies)

    def _restore(self, tenancy: Tenancy) -> None:
        self._unrestored.discard(tenancy.id)
        try:
            self._arbiter.add(_tenant(tenancy), self.folder_of(tenancy.id))
        except (PageError, OSError) as error:
            if isinstance(error, OSError) and is_shortage(error):
                self._unrestored.add(tenancy.id)
            # Otherwise nothing enforces its share until the Pod is created again.
            log.warning("tenant_not_restored", extra={"data": {"pod": tenancy.key, "why": str(error)}})

    def _restore_again(self) -> None:
        """Those whose folders we lacked files for, up to the first for which we still do."""
        for uid in sorted(self._unrestored):
            if (tenancy := self.tenancies.get(uid)) is not None:
                self._restore(tenancy)
                if uid in self._unrestored:
                    return
            self._unrestored.discard(uid)

    def unknown_folders(self) -> set[str]:
        """UIDs that have a folder but are no tenants: the database was lost, or the agent was killed in between."""
        return {path.name for path in self._folder.iterdir() if path.is_dir()} - self.tenancies.keys()

    def admit(self, tenancy: Tenancy) -> None:
        """Make the Pod a tenant; idempotent. Raises StoreError, AdmissionError."""
        known = self.tenancies.get(tenancy.id)
        if known is None or _booked(known) != _booked(tenancy):
            changed = known is not None and known.tenant != tenancy.tenant  # else only the cards' numbers changed
            if changed and self._arbiter.alive(tenancy.id):
                raise AdmissionError("the grant changed while the Pod runs: delete the Pod and create it again")
            self._store.add(tenancy)
            self.tenancies[tenancy.id] = tenancy
            if changed:
                self._arbiter.remove(tenancy.id)
        self._ended.pop(tenancy.id, None)
        try:
            self._arbiter.add(_tenant(tenancy), self.folder_of(tenancy.id))
        except (PageError, OSError) as error:
            raise AdmissionError(f"{self.folder_of(tenancy.id)}: {error}") from error

    def mark_ended(self, uid: str) -> None:
        """The Pod has ended: the next sweep that finds none of its processes releases it.

        An unknown Pod may still have a folder: its grant could not be read when the agent started.
        """
        if uid in self.tenancies or self.folder_of(uid).exists():
            self._ended.setdefault(uid, _Ended(self._clock()))

    @property
    def ended(self) -> frozenset[str]:
        """UIDs of Pods that have ended and still have a process."""
        return frozenset(self._ended.keys() & self.tenancies.keys())

    def mark_running(self, uid: str) -> None:
        """The Pod has not ended after all."""
        self._ended.pop(uid, None)

    def sweep(self) -> list[Tenancy]:
        """Release the Pods that have ended. Returns, once each, those whose processes still run long after."""
        self._restore_again()
        lingering = []
        for uid, ended in list(self._ended.items()):
            if uid not in self._unrestored and not self._arbiter.alive(uid):
                self._try_release(uid, ended)
            elif not ended.reported and self._clock() - ended.since > _LINGERS:
                ended.reported = True
                lingering.append(self.tenancies[uid])
        return lingering

    def discard(self, uid: str) -> None:
        """Remove a folder that belongs to no Pod any more."""
        if uid in ("", ".", "..") or "/" in uid:  # not a UID: this would remove the folders of all tenants
            return
        self._remove_injections(uid)
        remove_folder(self.folder_of(uid))

    def _try_release(self, uid: str, ended: _Ended) -> None:
        """On an error, such as a full disk, the next sweep tries again. Other Pods do not wait for this one."""
        try:
            self._release(uid)
        except (StoreError, CdiError, OSError) as error:
            if str(error) != ended.problem:
                ended.problem = str(error)
                log.warning("tenant_release_failed", extra={"data": {"uid": uid, "why": ended.problem}})

    def _release(self, uid: str) -> None:
        if uid not in self.tenancies:
            self.discard(uid)
            del self._ended[uid]
            return
        self._remove_injections(uid)
        self._arbiter.remove(uid)
        self._store.remove(uid)
        tenancy = self.tenancies.pop(uid)
        del self._ended[uid]
        log.info("tenant_released", extra={"data": {"pod": tenancy.key, "uid": uid}})


def _tenant(tenancy: Tenancy) -> Tenant:
    """Without a user: containers run as any. That of a group's member is the user of its MPS server."""
    return replace(tenancy.tenant, uid=None)


def _booked(tenancy: Tenancy) -> tuple[object, ...]:
    """What is not to change while the Pod runs."""
    return tenancy.shares, tenancy.app_class, tenancy.group_id
