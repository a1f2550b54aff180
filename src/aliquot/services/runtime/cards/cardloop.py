"""One card's loop: it reads what the tenants do, asks the arbiter, and performs the arbiter's orders on the hardware.

A thread per card, since an RM call blocks for a third of a millisecond and sometimes for ten. It owns the RM files of
its contexts: no other thread closes them, so that no control ever goes to a file number that was reused.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from aliquot.adapters.gpu import rm
from aliquot.adapters.gpu.page import Page
from aliquot.adapters.host import processes
from aliquot.arbiter import slices
from aliquot.arbiter.account import Shares, divide
from aliquot.arbiter.bill import CardBill, divide_spending
from aliquot.arbiter.card import CardArbiter
from aliquot.arbiter.orders import Arm, Hold, Order, Pause, Resume, SetSlice
from aliquot.arbiter.roster import Member, Reading
from aliquot.arbiter.timeline import Came, Left, Record
from aliquot.model.claim import AppClass
from aliquot.model.control import CardControl
from aliquot.model.tenant import Finding, FindingKind, Level, SharingRules, Standing, State
from aliquot.model.usage import Spent, Stretch
from aliquot.services.runtime.cards.proving import Proving
from aliquot.services.runtime.cards.trace import STEPS, Trace
from aliquot.services.runtime.processes import contextcontrol
from aliquot.services.runtime.processes.contexts import Context, TenantTotals, busy_ns, most_active, weakest
from aliquot.services.runtime.together import members
from aliquot.wording.control import why_gated

BEAT = 0.1  # seconds between heartbeats: a shim undoes a pause by itself after ALQ_STALE_NS without one
CALM = 0.3  # ... while nothing is to be decided: nobody is active, so nobody is paused
STALLED = 0.5  # if our own last heartbeat is older, shims may have undone pauses
_FIRST_CHECKS = (0.1, 0.5)  # after these a new context's slice is read back: libcuda sets its own while it starts
_ROUND = 2.0  # a round at least this often
_CHECK_EVERY = 1.0  # after that, one context each second
_STOCK = 2048  # microseconds: the driver's own slice
_MOST_FAILURES = 10  # rounds in a row; after these the heartbeat stops
_LONGEST_DRAIN = 0.1  # seconds that kernels in flight are waited for after a gate closed ...
_DRAIN_CHECK = 0.0005  # ... and between two looks
_SERVER_COMES = 5.0  # seconds from a member's registration to that of its group's MPS server
_SETTLED = 1.0  # seconds; a slice that changes later was changed by somebody, not by start-up

log = logging.getLogger(__name__)


class CardLoop:
    """The thread and its inbox. Other threads only post to the inbox; everything else happens in the thread."""

    def __init__(
        self,
        uuid: str,
        rules: SharingRules,
        control: CardControl = CardControl(),  # noqa: B008
        memory: int = 0,
        *,
        tries: bool = False,
    ) -> None:
        self.uuid, self._memory = uuid, memory
        self.proving = Proving(uuid, control, tries=tries)
        self.arbiter = CardArbiter(rules)
        self.findings: dict[tuple[int, FindingKind], Finding] = {}  # by process and kind
        self._trace = Trace()  # for the dashboard's timelines
        self._inbox: queue.SimpleQueue[Callable[[float], None] | None] = queue.SimpleQueue()
        self._waking: set[str] = set()  # contexts whose wake is in the inbox
        self._contexts: dict[str, Context] = {}
        self._parts: dict[str, Context] = {}  # processes that work through an MPS server, which is one of the contexts
        self._orphans: dict[str, tuple[int, int]] = {}  # parts that wait since their server left: its pid, start time
        self._totals: dict[str, TenantTotals] = {}
        self._shares = Shares()
        self._bill, self._bill_lock, self._bills = CardBill(), threading.Lock(), False
        self._read_at = 0.0
        self._last_beat = 0.0
        self._last_check = 0.0
        self._standings: tuple[Standing, ...] = ()
        self._published = 0.0
        self._changed = False  # a message came since the last round
        self._thread = threading.Thread(target=self._run, name=f"card-{uuid[:12]}", daemon=True)

    # --- called from other threads -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Resume all contexts, then end. Nothing may be posted after this."""
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def configure(self, rules: SharingRules) -> None:
        """Apply other rules from now on."""
        self._inbox.put(lambda now: setattr(self.arbiter, "rules", rules))

    def admit(self, member: Member, page: Page, card: int, limit: int | None, group: str = "") -> None:
        """Add a tenant of this card. `group`: the tenant that has its time; itself, if it is a group."""
        self._inbox.put(lambda now: self._admit(member, page, card, limit, now, group))

    def change(self, member: Member) -> None:
        """A tenant of this card has another quota."""
        self._inbox.put(lambda now: self.arbiter.admit(member))

    def dismiss(self, tenant: str, then: Callable[[], None]) -> None:
        """Remove the tenant; `then` is called when the thread touches nothing of it any more."""
        self._inbox.put(lambda now: self._dismiss(tenant, then, now))

    def join(self, context: Context) -> None:
        """Add a process's context, or replace its groups; its files are this thread's from here on."""
        self._inbox.put(lambda now: self._join(context, now))

    def leave(self, name: str) -> None:
        """Remove the context."""
        self._inbox.put(lambda now: self._leave(name, now))

    def wake(self, name: str) -> None:
        """It was idle and launched work. A second wake before the first is handled is dropped: a process can send them
        without end, and this thread may hang in the driver."""
        if name not in self._waking:
            self._waking.add(name)
            heard = time.monotonic()
            self._inbox.put(lambda now: self._wake(name, now, heard))

    def drain(self, name: str, draining: bool) -> None:
        """Whether the context has to finish what it submitted, because its memory leaves: then it is not paused."""
        self._inbox.put(lambda now: self._drain_context(name, draining))

    def set_control(self, control: CardControl) -> None:
        """What is known of the card's control from now on."""
        self._inbox.put(lambda now: self._set_control(control))

    def keep_trace(self, wanted: bool) -> None:
        """Start or stop tracing. The trace begins with the contexts that are there."""
        self._inbox.put(lambda now: self._keep_trace(wanted))

    def records(self) -> list[Record]:
        """The trace since the last call."""
        if not self._trace.active:
            return []
        found = self._trace.take()
        while self.arbiter.takings:
            found.append(self.arbiter.takings.popleft())
        return found

    def standings(self) -> tuple[Standing, ...]:
        """As of the last round."""
        return self._standings

    def take_stretch(self) -> Stretch | None:
        """Who had the card since the last call."""
        with self._bill_lock:
            self._bills = True
            return self._bill.take()

    # --- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        going, failed = True, 0
        while going:
            timeout = min(self.arbiter.deadline, self._last_beat + self._pause()) - time.monotonic()
            try:
                going = self._drain_inbox(max(0.0, timeout))
                if going:
                    # No heartbeat is better than one that promises orders that do not come: shims resume by themselves.
                    self._step(time.monotonic(), beat=failed < _MOST_FAILURES)
                failed = 0
            except Exception:  # the next round must come
                failed += 1
                if failed in (1, _MOST_FAILURES) or failed % 1000 == 0:
                    log.exception("round_failed", extra={"data": {"card": self.uuid, "in_a_row": failed}})
                time.sleep(min(BEAT, 0.01 * failed))
        self._read_until(time.monotonic())
        self._release_all()

    def _drain_inbox(self, timeout: float) -> bool:
        """Handle what arrived; False: stop."""
        try:
            message = self._inbox.get(timeout=timeout) if timeout > 0 else self._inbox.get_nowait()
            while True:
                if message is None:
                    return False
                message(time.monotonic())
                self._changed = True
                message = self._inbox.get_nowait()
        except queue.Empty:
            return True

    def _step(self, now: float, *, beat: bool) -> None:
        """Send a heartbeat; run a round if a message came or one is due."""
        if beat:
            self._beat(now)
        if self._changed or now >= min(self.arbiter.deadline, self._read_at + _ROUND):
            self._round(now)
            self._changed = False

    def _round(self, now: float) -> None:
        readings = self._read(now)
        if self.proving.round(self.arbiter, self._contexts, readings, now):
            self._all_to_gate()
        orders = self.arbiter.tick(now)
        if orders:
            self.arbiter.performed(self._perform(orders))
        self.proving.close_gates(self.arbiter.trial, self._contexts)
        self._check_slices(now)
        self._check_servers(now)
        self._publish(now)
        STEPS.add("round", now, time.monotonic())

    def _pause(self) -> float:
        """Seconds until the next heartbeat."""
        if not self._totals:
            return _ROUND
        return CALM if self.arbiter.deadline >= self._last_beat + CALM else BEAT

    def _beat(self, now: float) -> None:
        if self._last_beat and now - self._last_beat > STALLED:
            for name, context in self._contexts.items():  # each may have resumed by itself, and with another slice
                context.stopped.clear()
                self.arbiter.forget(name)
        self._last_beat = now
        stamp = time.monotonic_ns()
        for tenant in self._totals.values():
            tenant.page.beat(tenant.card, stamp)

    def _read(self, now: float) -> Mapping[str, Reading]:
        stamp = time.monotonic_ns()
        uses, busy = {}, {}
        elapsed = now - self._read_at
        before = stamp - int(elapsed * 1e9)
        for name, context in self._contexts.items():
            use, waits = members.read(context, now, stamp, before)
            uses[name] = (use, waits)
            if context.last is not None and elapsed > 0:
                busy[name] = max(0, busy_ns(use, stamp) - busy_ns(context.last, before)) / (elapsed * 1e9)
            context.last = use
            if (
                context.level is Level.HARDWARE
                and not use.paused
                and not context.draining
                and self.arbiter.paused(name)
            ):
                self._resumed_itself(context, now)
        parts = divide(busy, *self.arbiter.weights())
        for part in self._parts.values():
            use = part.page.use(part.slot, part.card)
            busy[part.name], part.last = members.busy_part(part, use, stamp, before), use
        shown, shown_busy = members.spread(self._contexts.values(), parts, busy)
        if self._read_at:
            lost = self._count_paused(busy, parts, elapsed)
            if self._bills:  # else nothing would ever be taken
                with self._bill_lock:
                    self._bill.add(self._read_at, now, self._spending(shown_busy, shown, lost))
        self._shares.add(self._read_at, now, shown)
        self._trace.add((self._read_at, now, shown, self.arbiter.held))
        self._read_at = now
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
        self.arbiter.read(readings, now)
        return readings

    def _read_until(self, now: float) -> None:
        """Close the stretch before a tenant comes or goes. That must not fail with it."""
        if now > self._read_at:
            try:
                self._read(now)
            except Exception:
                log.exception("reading_failed", extra={"data": {"card": self.uuid}})

    def _spending(
        self, busy: Mapping[str, float], parts: Mapping[str, float], lost: Mapping[str, float]
    ) -> dict[str, Spent]:
        everybody = [*self._contexts.values(), *self._parts.values()]
        tenants = {context.name: context.owner for context in everybody if context.name in parts}
        groups = {tenant: totals.group for tenant, totals in self._totals.items() if totals.group}
        lost = {**lost, **{tenant: lost.get(group, 0.0) for tenant, group in groups.items()}}
        spent = divide_spending(tenants, busy, parts, lost)
        for tenant, totals in self._totals.items():
            if totals.group == tenant:  # its members pay
                spent.pop(tenant, None)
                continue
            one = spent.setdefault(tenant, Spent())
            one.booked, one.used = float(totals.booked), float(totals.used)
        return spent

    def _count_paused(self, busy: Mapping[str, float], parts: Mapping[str, float], elapsed: float) -> dict[str, float]:
        """The time that online work took from offline tenants: all of it while they are paused for it, otherwise, with
        a release delay of 0, what online work had of the card while they had work too."""
        classes = {name: self._class_of(context) for name, context in self._contexts.items()}
        taken = sum(parts.get(name, 0.0) for name, of in classes.items() if of is AppClass.ONLINE)
        lost: dict[str, float] = {}  # by tenant: of its processes, the one that lost most
        for name in (name for name, of in classes.items() if of is AppClass.OFFLINE):
            part = 1.0 if self.arbiter.state(name) is State.PAUSED else min(taken, busy.get(name, 0.0))
            tenant = self._contexts[name].tenant
            lost[tenant] = max(part, lost.get(tenant, 0.0))
        for tenant, part in lost.items():
            self._totals[tenant].paused_seconds += part * elapsed
        return lost

    def _class_of(self, context: Context) -> AppClass | None:
        totals = self._totals.get(context.tenant)
        return None if totals is None else totals.member.app_class

    def _resumed_itself(self, context: Context, now: float) -> None:
        """Its shim missed our heartbeat, or claims so. Pause it again, but seldom: that takes the card's lock."""
        if now - context.resumed_itself >= _CHECK_EVERY:
            context.resumed_itself = now
            context.stopped.clear()
            self.arbiter.forget(context.name)

    # --- events ------------------------------------------------------------------------------------------------

    def _admit(self, member: Member, page: Page, card: int, limit: int | None, now: float, group: str = "") -> None:
        self._read_until(now)  # what was before is not on its bill
        if group in ("", member.tenant):
            self.arbiter.admit(member)
        self._totals[member.tenant] = TenantTotals(
            member, page, card, limit, booked=self._memory if limit is None else limit, group=group
        )

    def _dismiss(self, tenant: str, then: Callable[[], None], now: float) -> None:
        self._read_until(now)  # what it had until now is on its bill
        everybody = [*self._contexts.values(), *self._parts.values()]
        for name in [context.name for context in everybody if tenant in (context.tenant, context.member)]:
            self._leave(name, now)
        self.arbiter.dismiss(tenant)
        self._totals.pop(tenant, None)
        then()

    def _wake(self, name: str, now: float, heard: float) -> None:
        self._waking.discard(name)  # first: a wake from here on is for new work
        STEPS.add("wake", heard, now, name)
        part = self._parts.get(name)
        for woken in [name] if part is None else [server.name for server in self._servers(part.tenant)]:
            self.arbiter.wake(woken, now)

    def _servers(self, group: str) -> list[Context]:
        """Those of an MPS server. Two, where the second was started because the first one's control is gone."""
        return [context for context in self._contexts.values() if context.tenant == group and not context.member]

    def _join_part(self, context: Context, now: float) -> None:
        """A process that works through its group's MPS server."""
        if context.name in self._contexts:  # it had channel groups of its own
            self._leave(context.name, now)
        self._orphans.pop(context.name, None)  # what it has now waits for the next server
        before, servers = self._parts.get(context.name), self._servers(context.tenant)
        if before is None or not before.same(context):
            if before is not None:
                self._leave(context.name, now)
            context.joined = now
            self._parts[context.name] = context
            self._trace.add(self._came(context))
            for server in servers:
                server.parts.append(context)
                self.arbiter.forget(server.name)  # what was ordered of the server holds for the newcomer too
        if not servers:
            contextcontrol.set_gate(context, closed=True)  # no slice and no pause would hold for it

    def _join(self, context: Context, now: float) -> None:
        if context.is_part:
            self._join_part(context, now)
            return
        if context.name in self._parts:
            self._leave(context.name, now)
        before = self._contexts.get(context.name)
        if self.proving.gate_only:
            context.level = Level.GATE
        if before is not None and before.same(context):
            context.close()  # its copy channels or other objects changed, or libcuda set its slice
            before.checks = [now, *(now + after for after in _FIRST_CHECKS)]
            self.arbiter.settle(context.name, now)
            return
        context.joined = now
        if before is not None:
            if context.level is not Level.HARDWARE:  # the last chance to resume it by the driver
                self._release(before)
            context.inherit(before)
            before.close()
        context.checks = [now + after for after in _FIRST_CHECKS]
        self._contexts[context.name] = context
        self._trace.add(self._came(context))
        use = context.page.use(context.slot, context.card)
        preemptible, paused = context.level is Level.HARDWARE, bool(use.paused or use.gate)
        if not context.member:
            context.parts = [part for part in self._parts.values() if part.tenant == context.tenant]
            for part in context.parts:
                contextcontrol.set_gate(part, closed=paused)  # it may have waited for the server
        self.arbiter.join(context.name, context.tenant, now=now, preemptible=preemptible, paused=paused)

    def _leave(self, name: str, now: float) -> None:
        if name in self._contexts or name in self._parts:
            self._read_until(now)
        self._orphans.pop(name, None)
        part = self._parts.pop(name, None)
        if part is not None:
            for server in self._servers(part.tenant):
                server.parts.remove(part)
            contextcontrol.set_gate(part, closed=False)
            self._clear_findings(part.pid)
            self._trace.add(Left(name))
        context = self._contexts.pop(name, None)
        if context is not None:
            self._release(context)  # it need not be dead: it may have reconnected, or was expelled
            context.close()
            started = processes.start_time(context.pid)
            if context.parts and not self._servers(context.tenant) and started is not None:
                for part in context.parts:
                    contextcontrol.set_gate(part, closed=True)
                    self._orphans[part.name] = context.pid, started
            self._clear_findings(context.pid)
            self._trace.add(Left(name))
        self.arbiter.leave(name, now)

    def _drain_context(self, name: str, draining: bool) -> None:
        context = self._contexts.get(name)
        if context is None or context.draining == draining:
            return
        context.draining = draining
        if draining:
            with contextlib.suppress(rm.RmError):
                contextcontrol.resume(context)
        else:  # it may have to be paused again
            context.stopped.clear()
            self.arbiter.forget(name)

    def _keep_trace(self, wanted: bool) -> None:
        if wanted == self._trace.active:
            return
        self.arbiter.takings.clear()
        if wanted:
            self._trace.start(self._came(context) for context in self._contexts.values())
        else:
            self._trace.stop()

    def _came(self, context: Context) -> Came:
        return Came(context.name, context.owner, self._class_of(context) is AppClass.OFFLINE)

    # --- orders ------------------------------------------------------------------------------------------------

    def _perform(self, orders: Sequence[Order]) -> list[tuple[Order, float]]:
        """When each order took effect. Beats in between: many slow ones could last longer than shims wait for one."""
        closed = [] if self.arbiter.held else [order for order in orders if self._closes_gate(order)]
        effects = self._perform_each(closed)
        if closed:
            self._drain([self._contexts[order.context] for order in closed])
            effects = [(order, self._contexts[order.context].drained) for order, _ in effects]
        return effects + self._perform_each(order for order in orders if order not in closed)

    def _closes_gate(self, order: Order) -> bool:
        context = self._contexts.get(order.context)
        return isinstance(order, Pause) and context is not None and context.level is Level.GATE

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
            if now - self._last_beat >= BEAT:
                self._beat(now)

    def _perform_each(self, orders: Iterable[Order]) -> list[tuple[Order, float]]:
        effects = []
        for order in orders:
            context = self._contexts.get(order.context)
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
            if now - self._last_beat >= BEAT:
                self._beat(now)
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
            case Resume():
                contextcontrol.resume(context)
            case Arm():
                if not contextcontrol.arm(context):
                    self.arbiter.wake(context.name, time.monotonic())
                    self.arbiter.deadline = 0.0

    def _release(self, context: Context, *, for_now: bool = False) -> None:
        """Resume it for the last time, with the driver's own slice.

        Two contexts that are left with tiny slices would block each other for good. `for_now`: the next daemon takes it
        up again, and until then its share stays as it is.
        """
        if not (for_now and slices.lasting(self.arbiter.slice_of(context.name))):
            with contextlib.suppress(rm.RmError):
                contextcontrol.set_slice(context, _STOCK)
        with contextlib.suppress(rm.RmError):
            contextcontrol.resume(context)

    def _degrade(self, context: Context, error: rm.RmError) -> None:
        """The driver refuses what it allowed at registration: hold it at the gate from now on."""
        log.warning("context_degraded", extra={"data": {"context": context.name, "why": str(error), "held_at": "gate"}})
        text = f"the driver refuses control of it ({error}): held at the gate from now on"
        self._report(context, FindingKind.REFUSED, text)
        self._to_gate(context)

    def _set_control(self, control: CardControl) -> None:
        self.proving.stop(self.arbiter)
        self.proving.control = control
        if self.proving.gate_only:
            self._all_to_gate()

    def _all_to_gate(self) -> None:
        for context in self._contexts.values():
            if context.level is Level.HARDWARE:
                self._report(context, FindingKind.REFUSED, why_gated(self.proving.control))
                self._to_gate(context)

    def _to_gate(self, context: Context) -> None:
        """Hold it at the gate from now on."""
        self._release(context)
        context.level = Level.GATE
        self.arbiter.join(context.name, context.tenant, preemptible=False)
        self.arbiter.deadline = 0.0

    def _release_all(self) -> None:
        self.proving.stop(self.arbiter)
        for context in self._contexts.values():
            try:
                self._release(context, for_now=True)
            except Exception:  # release the others all the same
                log.exception("release_failed", extra={"data": {"context": context.name}})
            context.close()
        self._contexts.clear()

    # --- findings and standings --------------------------------------------------------------------------------

    def _check_slices(self, now: float) -> None:
        """Check that slices are what was ordered: soon after a context came, then one context each second."""
        due = [context for context in self._contexts.values() if context.checks and context.checks[0] <= now]
        for context in due:
            context.checks.pop(0)
        if now - self._last_check >= _CHECK_EVERY:
            self._last_check = now
            due += [context for context in self._contexts.values() if not context.checks][:1]
            for context in due[-1:]:  # to the end of the line
                self._contexts[context.name] = self._contexts.pop(context.name)
        for context in due:
            wanted = self.arbiter.slice_of(context.name)
            if context.level is not Level.HARDWARE or wanted is None:
                continue
            began = time.monotonic()
            try:
                changed = contextcontrol.other_slices(context, wanted)
            except rm.RmError:
                continue
            STEPS.add("check", began, time.monotonic(), context.name)
            if changed:
                self.arbiter.forget(context.name)
                self.arbiter.deadline = 0.0
                if now - context.joined > _SETTLED:
                    text = f"its time slice was changed behind our back to {changed.pop()} us: set again"
                    self._report(context, FindingKind.SLICE, text)

    def _check_servers(self, now: float) -> None:
        """Report members whose launches wait because the MPS server of their group is not registered.

        Those whose server is dead have no context any more, and shall run into errors. It may have left before it was
        dead: the kernel closes the files of a process that ends before others see its end.
        """
        for name, server in list(self._orphans.items()):
            if self._servers(self._parts[name].tenant):
                del self._orphans[name]
            elif not processes.lives(*server):
                del self._orphans[name]
                contextcontrol.set_gate(self._parts[name], closed=False)
        for part in self._parts.values():
            if self._servers(part.tenant):
                self.findings.pop((part.pid, FindingKind.UNREGISTERED), None)
            elif now - part.joined > _SERVER_COMES:
                self._report(part, FindingKind.UNREGISTERED, members.NO_SERVER)

    def _report(self, context: Context, kind: FindingKind, text: str) -> None:
        """One finding of a kind per process: its owner can provoke as many as it likes."""
        self.findings[context.pid, kind] = Finding(self.uuid, context.pid, kind, text, context.tenant)

    def _clear_findings(self, pid: int) -> None:
        for key in [key for key in self.findings if key[0] == pid]:
            del self.findings[key]

    def _publish(self, now: float) -> None:
        if now - self._published < BEAT:
            return
        self._published = now
        self._standings = tuple(
            self._standing(tenant, totals, now) for tenant, totals in self._totals.items() if totals.group != tenant
        )

    def _standing(self, tenant: str, totals: TenantTotals, now: float) -> Standing:
        parts = [part for part in self._parts.values() if part.member == tenant]
        contexts = [context for context in self._contexts.values() if context.owner == tenant] + parts
        used, refused = totals.measure(contexts, now)
        held = [context for context in contexts if not context.is_part] + (self._servers(totals.group) if parts else [])
        state = most_active({self.arbiter.state(context.name) for context in held})
        if state is State.RUNNING and parts == contexts and not any(members.has_work(part) for part in parts):
            state = State.IDLE  # others of its group work
        timed = self._totals.get(totals.group, totals)
        return Standing(
            tenant=tenant,
            uuid=self.uuid,
            state=state,
            level=weakest({context.level for context in held}),
            share=sum(self._shares.of(context.name) for context in contexts),
            memory_used=used,
            memory_limit=totals.limit,
            processes=tuple(sorted(context.pid for context in contexts)),
            preemptions=self.arbiter.preemptions[timed.member.tenant],
            paused_seconds=timed.paused_seconds,
            refused=refused,
            paused_by=self.arbiter.held_by if state is State.PAUSED else None,
            latency_missed=self.arbiter.missed_of(timed.member.tenant),
        )
