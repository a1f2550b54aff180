"""Frees the slots of dead processes on all tenants' pages, each second.

How long a look at a page takes is up to its tenant, who may take any number of locks there (page.py). So the pages of
one owner have one budget for all of them, and a thread that needs the arbiter's lock waits for one page at most.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping

from aliquot.adapters.gpu.page import LOOK, SLOTS
from aliquot.services.daemon.pace import Turns
from aliquot.services.runtime.processes.registration import Tenancy, log_fault, owner_of

_WHOLE, _BEYOND = 8, 4  # every so many sweeps all slots; else this far beyond the last that a process had


class PageSweep:
    """`tenancies` are the arbiter's, by id; `lock` guards them."""

    def __init__(self, lock: threading.RLock, tenancies: Mapping[str, Tenancy]) -> None:
        self._lock, self._tenancies = lock, tenancies
        self._turns = Turns(LOOK)

    def run(self) -> list[int]:
        """Sweep all pages once, as far as the time of their owners goes. Returns files, to be closed, of those that
        their owners made longer. Call it without the lock."""
        too_long = []
        with self._lock:
            owners = {tenant_id: owner_of(tenancy) for tenant_id, tenancy in self._tenancies.items()}
        for tenant_id, seconds in self._turns.look(owners):
            with self._lock:
                tenancy = self._tenancies.get(tenant_id)
                if tenancy is None:  # it ended meanwhile
                    continue
                if seconds:
                    _sweep(tenancy, seconds)
                if tenancy.page.is_longer():
                    log_fault(tenancy, "page_truncated", why="the tenant made it longer, which fills the host's memory")
                    with contextlib.suppress(OSError):  # no number is free: the next sweep finds it again
                        too_long.append(os.dup(tenancy.page.fileno()))
        return too_long


def _sweep(tenancy: Tenancy, seconds: float) -> None:
    """It is cheap: a shim takes the first free slot, so what lies past those that we know of is swept only now and
    then."""
    slots = [process.slot for process in tenancy.processes if process.slot is not None]
    tenancy.reach = max([tenancy.reach, *(slot + 1 for slot in slots)])
    tenancy.sweeps += 1
    whole = tenancy.sweeps % _WHOLE == 0
    tenancy.page.sweep(slots=SLOTS if whole else min(SLOTS, tenancy.reach + _BEYOND), seconds=seconds)
