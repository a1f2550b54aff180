"""Pods that have cards on this node, as the arbiter's tenants: taken in, taken up again after a restart, let go.

A Pod is one tenant, with all its containers: what it may use of a card is the most that it was granted there at once.
The order of writes is the guarantee. Taken in: database, then folder, then (by the allocator) the CDI spec that leads a
container there. Let go: spec, folder, database. Killed in between, the next agent finds the rest and finishes.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from aliquot.adapters.gpu.page import PageError
from aliquot.adapters.storage.cdifolder import CdiError
from aliquot.adapters.storage.podstore import PodStore, StoreError
from aliquot.model.podtenancy import PodTenancy
from aliquot.model.tenancy import allotments_of
from aliquot.model.tenant import Tenant

log = logging.getLogger(__name__)

_LINGERS = 60.0  # seconds after its end that a Pod's processes may still be on a card before it is told


class Tenants(Protocol):
    """What is used of the arbiter (services/runtime/arbiterd.py)."""

    def add(self, tenant: Tenant, directory: Path) -> None: ...
    def remove(self, tenant_id: str) -> None: ...
    def alive(self, tenant_id: str) -> bool: ...


class AdmissionError(Exception):
    """The Pod's folder cannot be made; the message says why."""


@dataclass(slots=True)
class _Leaving:
    """A Pod that has ended, and since when we wait for its last process."""

    since: float
    told: bool = False
    why: str = ""  # it could not be let go


class PodTenants:
    """See the head of the file. One thread; `clock` is monotonic."""

    def __init__(
        self,
        *,
        store: PodStore,
        arbiter: Tenants,
        folder: Path,
        clock: Callable[[], float],
        remove_injections: Callable[[str], None],
    ) -> None:
        self.tenancies: dict[str, PodTenancy] = {}
        self._store, self._arbiter, self._folder, self._clock = store, arbiter, folder, clock
        self._remove_injections = remove_injections  # takes away what leads containers of that Pod to its folder
        self._leaving: dict[str, _Leaving] = {}

    def folder_of(self, uid: str) -> Path:
        """Where the Pod's page and socket are, on the host."""
        return self._folder / uid

    def restore(self) -> int:
        """Everyone the database knows, before anybody else is asked: whoever runs must not wait for the API server."""
        for tenancy in self._store.tenancies():
            self.tenancies[tenancy.uid] = tenancy
            try:
                self._arbiter.add(_tenant(tenancy), self.folder_of(tenancy.uid))
            except (PageError, OSError) as error:
                log.warning(
                    "a Pod's folder cannot be used: it is beyond control until it is started again",
                    extra={"data": {"pod": tenancy.key, "why": str(error)}},
                )
        return len(self.tenancies)

    def unknown_folders(self) -> set[str]:
        """UIDs that have a folder here and are not known: the database was lost, or we were killed in between."""
        return {path.name for path in self._folder.iterdir() if path.is_dir()} - self.tenancies.keys()

    def admit(self, tenancy: PodTenancy) -> None:
        """Take the Pod in. Saying it twice changes nothing. Raises StoreError, AdmissionError."""
        known = self.tenancies.get(tenancy.uid)
        if known is None or known.shares != tenancy.shares or known.app_class != tenancy.app_class:
            other = known is not None and _tenant(known) != _tenant(tenancy)  # else the cards' numbers changed, no more
            if other and self._arbiter.alive(tenancy.uid):
                raise AdmissionError("its grant was changed while it runs: delete the Pod and make it anew")
            self._store.add(tenancy)
            self.tenancies[tenancy.uid] = tenancy
            if other:
                self._arbiter.remove(tenancy.uid)
        self._leaving.pop(tenancy.uid, None)
        try:
            self._arbiter.add(_tenant(tenancy), self.folder_of(tenancy.uid))
        except (PageError, OSError) as error:
            raise AdmissionError(f"{self.folder_of(tenancy.uid)}: {error}") from error

    def mark_ended(self, uid: str) -> None:
        """The Pod has ended: it is let go with the next sweep that finds none of its processes.

        One that we do not know may have left a folder all the same: its grant could not be read when we started.
        """
        if uid in self.tenancies or self.folder_of(uid).exists():
            self._leaving.setdefault(uid, _Leaving(self._clock()))

    @property
    def ended(self) -> frozenset[str]:
        """UIDs of those that have ended and still have a process."""
        return frozenset(self._leaving.keys() & self.tenancies.keys())

    def mark_running(self, uid: str) -> None:
        """It has not ended after all."""
        self._leaving.pop(uid, None)

    def sweep(self) -> list[PodTenancy]:
        """Let go of those that have ended. Answers those whose processes still run long after, each once."""
        lingering = []
        for uid, leaving in list(self._leaving.items()):
            if not self._arbiter.alive(uid):
                self._try_to_let_go(uid, leaving)
            elif not leaving.told and self._clock() - leaving.since > _LINGERS:
                leaving.told = True
                lingering.append(self.tenancies[uid])
        return lingering

    def discard(self, uid: str) -> None:
        """A folder that belongs to no Pod any more."""
        if uid in ("", ".", "..") or "/" in uid:  # no UID of the API server's: all the others' folders would go with it
            return
        self._remove_injections(uid)
        shutil.rmtree(self.folder_of(uid), ignore_errors=True)

    def _try_to_let_go(self, uid: str, leaving: _Leaving) -> None:
        """Where a disk is full, say, the next sweep tries again; the others do not wait for this one."""
        try:
            self._let_go(uid)
        except (StoreError, CdiError, OSError) as error:
            if str(error) != leaving.why:
                leaving.why = str(error)
                log.warning("a Pod cannot be let go", extra={"data": {"uid": uid, "why": leaving.why}})

    def _let_go(self, uid: str) -> None:
        if uid not in self.tenancies:
            self.discard(uid)
            del self._leaving[uid]
            return
        self._remove_injections(uid)
        self._arbiter.remove(uid)
        self._store.remove(uid)
        tenancy = self.tenancies.pop(uid)
        del self._leaving[uid]
        log.info("a Pod is gone from the cards", extra={"data": {"pod": tenancy.key, "uid": uid}})


def _tenant(tenancy: PodTenancy) -> Tenant:
    return Tenant(tenancy.uid, tenancy.key, tenancy.app_class, allotments_of(tenancy.shares), uid=None)
