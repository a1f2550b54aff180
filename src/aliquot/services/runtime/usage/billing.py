"""Keeps the bill of the cards: takes what their loops measured, and writes it down from time to time.

After a crash at most one interval is missing, and the bill says so (`unknown`). The disk is only touched by the thread
of the store's writer; a full disk delays the bill and loses nothing while the daemon runs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from aliquot.adapters.host.process.processes import boot_id
from aliquot.adapters.storage.database import StoreError
from aliquot.adapters.storage.usagestore import UsageStore
from aliquot.arbiter.bill import FORGET, HOUR, Bill, Checkpoint, Key
from aliquot.model.status.usage import UsageReport
from aliquot.model.tenant import Tenant
from aliquot.model.usage import Payer, Spent, Stretch, UsageRow

INTERVAL = 10.0  # seconds between two checkpoints
KEEP_DAYS = 30
_SOON = 1.0  # a checkpoint at least this long after the one before, when a tenant has ended
_COMPACT = 3600.0  # seconds between two compactions

log = logging.getLogger(__name__)


class Measuring(Protocol):
    """services/runtime/arbiterd.py."""

    def take_stretches(self) -> tuple[dict[str, Stretch], dict[str, Tenant]]: ...


class Answered(NamedTuple):
    """The last answer to `aliquot usage`: those who asked while it was made share it."""

    hour: float  # of `since`
    ended: float  # by the monotonic clock
    answer: UsageReport


class Billing:
    """See the head of the file. For the event loop's thread; `container` names the container of a Pod by tenant id."""

    def __init__(
        self,
        store: UsageStore,
        arbiter: Measuring,
        *,
        container: Callable[[str], str] = lambda tenant: "",
        interval: float = INTERVAL,
        clock: Callable[[], float] = time.time,
        boot: str | None = None,
    ) -> None:
        self._store, self._arbiter, self._clock = store, arbiter, clock
        self.container = container
        known = {key: found for key, found in store.counters().items() if key[1].kind or found[1] >= clock() - FORGET}
        self.bill = Bill(
            boot or boot_id(),
            interval,
            store.marks(),
            {key: spent for key, (spent, _) in known.items()},
            {key: seen for key, (_, seen) in known.items()},
        )
        self._payers: dict[str, Payer] = {}
        arbiter.take_stretches()  # from now on it measures
        self._compacted = float("-inf")
        self._trouble = ""
        self.asking = asyncio.Lock()  # held while an answer to `aliquot usage` is made
        self.answered: Answered | None = None

    def start(self) -> None:
        """From now on the disk is only touched by the writer's thread."""
        self._store.writer.start()

    async def run(self) -> None:
        """Until cancelled. The first checkpoint comes at once: a daemon that is killed then had begun to measure."""
        while True:
            await asyncio.sleep(_SOON)
            self.collect()
            self.write()
            waited = 0.0
            while waited < self.bill.interval - _SOON and not self.collect():
                await asyncio.sleep(_SOON)
                waited += _SOON

    async def stop(self) -> None:
        """Write the rest, as the end of what was measured: the cards' loops have ended."""
        self.collect()
        self.write(clean=True)
        await asyncio.to_thread(self._store.writer.stop)
        self._store.close()

    def collect(self) -> bool:
        """Take what the cards' loops measured. Whether a tenant has gone since the last call."""
        stretches, tenants = self._arbiter.take_stretches()
        payers = {
            key: self._payers.get(key) or payer_of(tenant, self.container(key)) for key, tenant in tenants.items()
        }
        gone = self._payers.keys() - payers.keys()
        self._payers = payers
        for uuid, stretch in stretches.items():
            self.bill.add(uuid, stretch, payers, self._clock())
        return bool(gone)

    def counters(self) -> Mapping[Key, Spent]:
        """What every payer had of every card, as of now: never less than before."""
        self.collect()
        return self.bill.counters

    def write(self, *, clean: bool = False) -> None:
        """Start to write what is not on the disk."""
        now = self._clock()
        checkpoint = self.bill.checkpoint(now, clean=clean)
        self._store.writer.put(
            lambda: self._store.write(checkpoint.rows, dict(checkpoint.marks), checkpoint.shown_since, now),
            lambda error: self._written(checkpoint, error),
        )
        if now - self._compacted >= _COMPACT:
            self._compacted = now
            self._store.writer.put(lambda: self._store.compact(now), self._log_trouble)

    def _written(self, checkpoint: Checkpoint, error: Exception | None) -> None:
        if error is not None:
            self.bill.failed(checkpoint)
        self._log_trouble(error)

    def _log_trouble(self, error: Exception | None) -> None:
        text = "" if error is None else str(error)
        if text and text != self._trouble:
            log.error("usage_not_written", extra={"data": {"why": text}})
        self._trouble = text

    async def rows(self, since: float) -> list[UsageRow]:
        """All hours that end after that time (seconds since 1970), with what is not on the disk yet."""
        self.collect()
        self.write()
        found: list[UsageRow] = []
        await self._store.writer.run(lambda: found.extend(self._store.hours(since)))
        return [*found, *(row for row in self.bill.pending() if row.hour > since - HOUR)]


def open_billing(path: str, arbiter: Measuring, *, keep_days: int) -> Billing | None:
    """None, and a line in the log, where the file cannot be used: tenants run all the same."""
    try:
        store = UsageStore(path, keep_days=keep_days)
    except StoreError as error:
        log.error("usage_not_kept", extra={"data": {"why": str(error)}})
        return None
    if store.note:
        log.warning("usage_store_repaired", extra={"data": {"note": store.note}})
    return Billing(store, arbiter)


def payer_of(tenant: Tenant, container: str) -> Payer:
    """On whose bill the tenant is. A Pod's name has its namespace."""
    namespace, _, name = tenant.name.rpartition("/")
    return Payer("", namespace, name, container, tenant.app_class.value, tenant.uid)
