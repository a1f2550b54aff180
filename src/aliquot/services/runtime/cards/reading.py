"""Reads from the pages what the tenants of a card do: for the arbiter, the bill, the shares and the trace."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

from aliquot.adapters.gpu.page import GAPS
from aliquot.arbiter.account import Shares, divide
from aliquot.arbiter.bill import CardBill
from aliquot.arbiter.card import CardArbiter
from aliquot.arbiter.roster import Reading
from aliquot.model.claim import AppClass
from aliquot.model.tenant import Level, State
from aliquot.model.usage import Stretch
from aliquot.services.runtime.cards.occupants import Occupants
from aliquot.services.runtime.cards.spending import spending, time_lost
from aliquot.services.runtime.cards.trace import Trace
from aliquot.services.runtime.processes.contexts import Context, busy_ns
from aliquot.services.runtime.together import members

_PAUSE_AGAIN = 1.0  # seconds after which a context that resumed by itself is paused once more

log = logging.getLogger(__name__)


class CardReader:
    """Part of a card's loop, and used by its thread alone, but for `take_stretch`."""

    def __init__(self, uuid: str, occupants: Occupants, arbiter: CardArbiter, trace: Trace) -> None:
        self._uuid, self._occupants, self._arbiter, self._trace = uuid, occupants, arbiter, trace
        self._bill, self._bill_lock, self._bills = CardBill(), threading.Lock(), False
        self.shares = Shares()
        self.last = 0.0  # when it was read

    def take_stretch(self) -> Stretch | None:
        """Who had the card since the last call. For one other thread."""
        with self._bill_lock:
            self._bills = True
            return self._bill.take()

    def read(self, now: float) -> Mapping[str, Reading]:
        """What each context did since the last reading; the arbiter has it too."""
        contexts, arbiter = self._occupants.contexts, self._arbiter
        stamp = time.monotonic_ns()
        uses, busy = {}, {}
        elapsed = now - self.last
        before = stamp - int(elapsed * 1e9)
        for name, context in contexts.items():
            use, waits = members.read(context, now, stamp, before)
            uses[name] = (use, waits)
            if context.last is not None and elapsed > 0:
                busy[name] = max(0, busy_ns(use, stamp) - busy_ns(context.last, before)) / (elapsed * 1e9)
            context.last = use
            if context.level is Level.HARDWARE and not use.paused and not context.draining and arbiter.paused(name):
                self._resumed_itself(context, now)
        parts = divide(busy, *arbiter.weights())
        for part in self._occupants.parts.values():
            use = part.page.use(part.slot, part.card)
            busy[part.name], part.last = members.busy_part(part, use, stamp, before), use
        self._account(now, parts, busy)
        readings = {
            name: Reading(
                use.launches,
                waits,
                use.busy_since_ns != 0,
                parts.get(name, 0.0) * elapsed,
                busy.get(name, 0.0) * elapsed,
            )
            for name, (use, waits) in uses.items()
        }
        arbiter.read(readings, now, self._gaps())
        return readings

    def _gaps(self) -> dict[str, list[int]]:
        """The gaps that ended since the last reading, by tenant. Those of a group are its members'."""
        found: dict[str, list[int]] = {}
        for tenant, totals in self._occupants.totals.items():
            before, totals.gaps = totals.gaps, totals.page.gaps(totals.card)
            if before is not None and totals.gaps != before:
                counts = found.setdefault(totals.group or tenant, [0] * GAPS)
                for at, (count, last) in enumerate(zip(totals.gaps, before, strict=True)):
                    counts[at] += (count - last) % 65536
        return found

    def read_until(self, now: float) -> None:
        """Close the stretch before a tenant comes or goes. That must not fail with it."""
        if now > self.last:
            try:
                self.read(now)
            except Exception:
                log.exception("card_reading_failed", extra={"data": {"card": self._uuid}})

    def _account(self, now: float, parts: Mapping[str, float], busy: Mapping[str, float]) -> None:
        """Charge the time since the last reading. `parts`: of the card, by context; `busy`: of the time, by process."""
        occupants = self._occupants
        shown, shown_busy = members.spread(occupants.contexts.values(), parts, busy)
        if self.last:
            lost = self._count_paused(busy, parts, now - self.last)
            if self._bills:  # else nothing would ever be taken
                with self._bill_lock:
                    spent = spending(occupants.everybody(), occupants.totals, shown_busy, shown, lost)
                    self._bill.add(self.last, now, spent)
        self.shares.add(self.last, now, shown)
        self._trace.add((self.last, now, shown, self._arbiter.held))
        self.last = now

    def _count_paused(self, busy: Mapping[str, float], parts: Mapping[str, float], elapsed: float) -> dict[str, float]:
        occupants = self._occupants
        classes = {name: occupants.class_of(context) for name, context in occupants.contexts.items()}
        online = sum(parts.get(name, 0.0) for name, of in classes.items() if of is AppClass.ONLINE)
        offline = [occupants.contexts[name] for name, of in classes.items() if of is AppClass.OFFLINE]
        paused = {context.name for context in offline if self._arbiter.state(context.name) is State.PAUSED}
        lost = time_lost(offline, paused, online, busy)
        for tenant, part in lost.items():
            occupants.totals[tenant].paused_seconds += part * elapsed
        return lost

    def _resumed_itself(self, context: Context, now: float) -> None:
        """Its shim missed our heartbeat, or claims so. Pause it again, but seldom: that takes the card's lock."""
        if now - context.resumed_itself >= _PAUSE_AGAIN:
            context.resumed_itself = now
            context.stopped.clear()
            self._arbiter.forget(context.name)
