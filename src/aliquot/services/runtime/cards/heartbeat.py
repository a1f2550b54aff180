"""The heartbeat on the pages of a card's tenants: it promises that pauses will be ended. Without it shims end them."""

from __future__ import annotations

import time

from aliquot.arbiter.card import CardArbiter
from aliquot.services.runtime.cards.occupants import Occupants

BEAT = 0.1  # seconds between heartbeats: a shim undoes a pause by itself after ALQ_STALE_NS without one
CALM = 0.3  # ... while nothing is to be decided: no tenant is active, so none is paused
STALLED = 0.5  # if our own last heartbeat is older, shims may have undone pauses
_EMPTY = 2.0  # seconds between heartbeats while no tenant is on the card


class Heartbeat:
    """Part of a card's loop, and used by its thread alone."""

    def __init__(self, occupants: Occupants, arbiter: CardArbiter) -> None:
        self._occupants, self._arbiter = occupants, arbiter
        self._last = 0.0

    def due(self) -> float:
        """When the next one is."""
        if not self._occupants.totals:
            return self._last + _EMPTY
        return self._last + (CALM if self._arbiter.deadline >= self._last + CALM else BEAT)

    def send(self, now: float) -> None:
        """On all pages. After a stall, have the arbiter order again what shims may have undone."""
        if self._last and now - self._last > STALLED:
            for name, context in self._occupants.contexts.items():  # it may have resumed, and with another slice
                context.stopped.clear()
                self._arbiter.forget(name)
        self._last = now
        stamp = time.monotonic_ns()
        for tenant in self._occupants.totals.values():
            tenant.page.beat(tenant.card, stamp)

    def keep_up(self, now: float) -> None:
        """Between slow steps of one round."""
        if now - self._last >= BEAT:
            self.send(now)
