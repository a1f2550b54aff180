"""Performs the arbiter's orders on the contexts of a card, by the driver or at the gate."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Sequence

from aliquot.adapters.gpu import rm
from aliquot.arbiter import slices
from aliquot.arbiter.card import CardArbiter
from aliquot.arbiter.orders import Arm, Hold, Open, Order, Pause, Resume, SetSlice
from aliquot.model.tenant import FindingKind, Level
from aliquot.services.runtime.cards.findings import CardFindings
from aliquot.services.runtime.cards.heartbeat import Heartbeat
from aliquot.services.runtime.cards.occupants import Occupants
from aliquot.services.runtime.cards.trace import STEPS
from aliquot.services.runtime.processes import contextcontrol
from aliquot.services.runtime.processes.contexts import Context

_STOCK = 2048  # microseconds: the driver's own slice
_LONGEST_DRAIN = 0.1  # seconds that kernels in flight are waited for after a gate closed ...
_DRAIN_CHECK = 0.0001  # ... and between two looks

log = logging.getLogger(__name__)


class Performer:
    """Part of a card's loop, and used by its thread alone. Beats between orders: many slow ones could last longer than
    shims wait for a heartbeat."""

    def __init__(
        self, occupants: Occupants, arbiter: CardArbiter, heartbeat: Heartbeat, findings: CardFindings
    ) -> None:
        self._occupants, self._arbiter, self._heartbeat, self._findings = occupants, arbiter, heartbeat, findings

    def perform(self, orders: Sequence[Order]) -> list[tuple[Order, float]]:
        """When each order took effect."""
        contexts = self._occupants.contexts
        turns = any(isinstance(order, Open) for order in orders)
        closed = [] if self._arbiter.held else [order for order in orders if self._closes_gate(order, turns=turns)]
        effects = self._perform_each(closed)
        if closed:
            self._drain([contexts[order.context] for order in closed])
            # One that leaves the card is not paused: when it last was is of no use.
            effects = [(order, max(at, contexts[order.context].drained)) for order, at in effects]
        return effects + self._perform_each(order for order in orders if order not in closed)

    def release(self, context: Context, *, for_now: bool = False) -> None:
        """Resume it for the last time, with the driver's own slice.

        Two contexts that are left with tiny slices would block each other for good. `for_now`: the next daemon takes it
        up again, and until then its share stays as it is.
        """
        if not (for_now and slices.lasting(self._arbiter.slice_of(context.name))):
            with contextlib.suppress(rm.RmError):
                contextcontrol.set_slice(context, _STOCK)
        with contextlib.suppress(rm.RmError):
            contextcontrol.resume(context)

    def all_to_gate(self, why: str) -> None:
        """Hold all contexts at the gate from now on."""
        for context in self._occupants.contexts.values():
            if context.level is Level.HARDWARE:
                self._findings.report(context, FindingKind.REFUSED, why)
                self._to_gate(context)

    def drain(self, name: str, draining: bool) -> None:
        """Whether the context has to finish what it submitted, because its memory leaves: then it is not paused."""
        context = self._occupants.contexts.get(name)
        if context is None or context.draining == draining:
            return
        context.draining = draining
        if draining:
            with contextlib.suppress(rm.RmError):
                contextcontrol.resume(context)
        else:  # it may have to be paused again
            context.stopped.clear()
            self._arbiter.forget(name)

    def _closes_gate(self, order: Order, *, turns: bool) -> bool:
        """Whether what it launched has to be done before the next orders. `turns`: another is let go after a hold."""
        context = self._occupants.contexts.get(order.context)
        if context is None:
            return False
        return (isinstance(order, Hold) and turns) or (isinstance(order, Pause) and context.level is Level.GATE)

    def _drain(self, contexts: Iterable[Context]) -> None:
        """Wait, but not long, until what they had launched before their gates closed is done: it runs on in the time of
        the next, and they are charged for it."""
        began = now = time.monotonic()
        left = list(contexts)
        while left and now < began + _LONGEST_DRAIN:
            left = [context for context in left if not contextcontrol.is_drained(context)]
            time.sleep(_DRAIN_CHECK if left else 0)
            now = time.monotonic()
            for context in left:
                context.drained = now
            self._heartbeat.keep_up(now)

    def _perform_each(self, orders: Iterable[Order]) -> list[tuple[Order, float]]:
        effects = []
        for order in orders:
            context = self._occupants.contexts.get(order.context)
            if context is None:
                continue
            began = time.monotonic()
            try:
                self._perform_one(order, context)
            except rm.RmError as error:
                if error.gone:  # the process registers its new groups, or ends
                    log.info("context_gone", extra={"data": {"context": context.name, "why": str(error)}})
                else:
                    self._degrade(context, error)
            now = time.monotonic()
            STEPS.add(type(order).__name__, began, now, context.name)
            effects.append((order, now))
            self._heartbeat.keep_up(now)
        return effects

    def _perform_one(self, order: Order, context: Context) -> None:
        match order:
            case SetSlice(_, microseconds):
                contextcontrol.set_slice(context, microseconds)
            case Pause():
                if not context.draining:
                    contextcontrol.pause(context)
            case Hold():
                if not context.draining:
                    contextcontrol.hold(context)
            case Open():
                contextcontrol.set_gate(context, closed=False)
            case Resume():
                contextcontrol.resume(context)
            case Arm():
                if not contextcontrol.arm(context):
                    self._arbiter.wake(context.name, time.monotonic())
                    self._arbiter.deadline = 0.0

    def _degrade(self, context: Context, error: rm.RmError) -> None:
        """The driver refuses what it allowed at registration: hold it at the gate from now on."""
        log.warning("context_degraded", extra={"data": {"context": context.name, "why": str(error), "held_at": "gate"}})
        text = f"the driver refuses control of it ({error}): held at the gate from now on"
        self._findings.report(context, FindingKind.REFUSED, text)
        self._to_gate(context)

    def _to_gate(self, context: Context) -> None:
        """Hold it at the gate from now on."""
        self.release(context)
        context.level = Level.GATE
        self._arbiter.join(context.name, context.tenant, preemptible=False)
        self._arbiter.deadline = 0.0
