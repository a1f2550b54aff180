"""What tenants did on a card: whether it was idle while its control was tried (services/proof)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from aliquot.services.runtime.processes.registration import Tenancy


class CardWork(NamedTuple):
    """What tenants did on a card so far. Two that are equal: nothing happened in between."""

    pids: frozenset[int] = frozenset()
    busy: bool = False  # some process has work now
    launches: int = 0
    memory: int = 0  # bytes that they have allocated
    seen: int = 0  # channel groups that were registered


def card_work(tenancies: Iterable[Tenancy], uuid: str) -> CardWork:
    """Under the lock of the tenancies."""
    pids, busy, launches, memory, seen = set[int](), False, 0, 0, 0
    for tenancy in tenancies:
        at = tenancy.page.index.get(uuid)
        for process in tenancy.processes if at is not None else ():
            pids.add(process.pid)
            seen += process.seen
            if process.slot is not None and at is not None:
                use = tenancy.page.use(process.slot, at)
                busy |= bool(use.busy_since_ns or use.waiting)
                launches += use.launches
                memory += use.memory
    return CardWork(frozenset(pids), busy, launches, memory, seen)
