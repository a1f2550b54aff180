"""One card's loop: it reads what the tenants do, asks the arbiter, and performs the arbiter's orders on the hardware.

A thread per card, since an RM call blocks for a third of a millisecond and sometimes for ten. It owns the RM files of
its contexts: no other thread closes them, so that no control ever goes to a file number that was reused.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from aliquot.adapters.gpu.page import MOST, Page
from aliquot.adapters.host.process import processes
from aliquot.arbiter.card import CardArbiter
from aliquot.arbiter.gaps import SHORTEST
from aliquot.arbiter.roster import Member
from aliquot.arbiter.timeline import Left, Record
from aliquot.model.cardstate.control import CardControl, ControlLevel
from aliquot.model.tenant import Level, SharingRules, Standing
from aliquot.model.usage import Stretch
from aliquot.services.runtime.cards import heartbeat
from aliquot.services.runtime.cards.findings import CardFindings
from aliquot.services.runtime.cards.occupants import Occupants
from aliquot.services.runtime.cards.performing import Performer
from aliquot.services.runtime.cards.reading import CardReader
from aliquot.services.runtime.cards.standing import standings
from aliquot.services.runtime.cards.trace import STEPS, Trace
from aliquot.services.runtime.processes import contextcontrol
from aliquot.services.runtime.processes.contexts import Context, TenantTotals
from aliquot.wording.control import why_gated

_FIRST_CHECKS = (0.1, 0.5)  # after these a new context's slice is read back: libcuda sets its own while it starts
_ROUND = 2.0  # a round at least this often
_MOST_FAILURES = 10  # rounds in a row; after these the heartbeat stops

_OVER = 4  # times its card that a tenant can have, with managed memory
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
        holding: set[str] | None = None,
    ) -> None:
        """`holding`: the cards of this process on which online work holds off offline work, for all loops."""
        self.uuid, self._memory = uuid, memory
        self._holding = set[str]() if holding is None else holding
        self.control = control  # any thread may read it
        self.arbiter = CardArbiter(rules)
        self._occupants = Occupants()
        self.findings = CardFindings(uuid, self._occupants, self.arbiter)
        self._trace = Trace()  # for the dashboard's timelines
        self._heartbeat = heartbeat.Heartbeat(self._occupants, self.arbiter)
        self._reader = CardReader(uuid, self._occupants, self.arbiter, self._trace)
        self._performer = Performer(self._occupants, self.arbiter, self._heartbeat, self.findings)
        self._inbox: queue.SimpleQueue[Callable[[float], None] | None] = queue.SimpleQueue()
        self._waking: set[str] = set()  # contexts whose wake is in the inbox
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
        self._inbox.put(lambda now: self._performer.drain(name, draining))

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
        """The standings as of the last round."""
        return self._standings

    def take_stretch(self) -> Stretch | None:
        """Who had the card since the last call."""
        return self._reader.take_stretch()

    # --- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        going, failed = True, 0
        while going:
            timeout = min(self.arbiter.deadline, self._heartbeat.due()) - time.monotonic()
            try:
                going = self._drain_inbox(max(0.0, timeout))
                if going:
                    # No heartbeat is better than one that promises orders that do not come: shims resume by themselves.
                    self._step(time.monotonic(), beat=failed < _MOST_FAILURES)
                failed = 0
            except Exception:  # the next round must come
                failed += 1
                if failed in (1, _MOST_FAILURES) or failed % 1000 == 0:
                    log.exception("card_round_failed", extra={"data": {"card": self.uuid, "in_a_row": failed}})
                time.sleep(min(heartbeat.BEAT, 0.01 * failed))
        self._reader.read_until(time.monotonic())
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
            self._heartbeat.send(now)
        if self._changed or now >= min(self.arbiter.deadline, self._reader.last + _ROUND):
            self._round(now)
            self._changed = False

    def _round(self, now: float) -> None:
        self._reader.read(now)
        # Each look takes some 0.1 ms of the one interpreter, and a wake of any card waits for it.
        self.arbiter.look = SHORTEST * len(self._holding - {self.uuid})
        orders = self.arbiter.tick(now)
        (self._holding.add if self.arbiter.held else self._holding.discard)(self.uuid)
        if orders:
            self.arbiter.performed(self._performer.perform(orders))
        self.findings.check_slices(now)
        self.findings.check_servers(now)
        self._publish(now)
        STEPS.add("round", now, time.monotonic())

    def _publish(self, now: float) -> None:
        if now - self._published >= heartbeat.BEAT:
            self._published = now
            self._standings = standings(self.uuid, self._occupants, self.arbiter, self._reader.shares, now)

    def _release_all(self) -> None:
        for context in self._occupants.contexts.values():
            try:
                self._performer.release(context, for_now=True)
            except Exception:  # release the others all the same
                log.exception("context_release_failed", extra={"data": {"context": context.name}})
            context.close()
        self._occupants.contexts.clear()

    # --- events ------------------------------------------------------------------------------------------------

    def _admit(self, member: Member, page: Page, card: int, limit: int | None, now: float, group: str = "") -> None:
        self._reader.read_until(now)  # what was before is not on its bill
        if group in ("", member.tenant):
            self.arbiter.admit(member)
        self._occupants.totals[member.tenant] = TenantTotals(
            member, page, card, limit, booked=self._memory if limit is None else limit, group=group,
            most=min(MOST, _OVER * self._memory or MOST),
        )  # fmt: skip

    def _dismiss(self, tenant: str, then: Callable[[], None], now: float) -> None:
        self._reader.read_until(now)  # what it had until now is on its bill
        everybody = self._occupants.everybody()
        for name in [context.name for context in everybody if tenant in (context.tenant, context.member)]:
            self._leave(name, now)
        self.arbiter.dismiss(tenant)
        self._occupants.totals.pop(tenant, None)
        then()

    def _wake(self, name: str, now: float, heard: float) -> None:
        self._waking.discard(name)  # first: a wake from here on is for new work
        STEPS.add("wake", heard, now, name)
        part = self._occupants.parts.get(name)
        for woken in [name] if part is None else [server.name for server in self._occupants.servers(part.tenant)]:
            self.arbiter.wake(woken, now)

    def _join_part(self, context: Context, now: float) -> None:
        """A process that works through its group's MPS server."""
        if context.name in self._occupants.contexts:  # it had channel groups of its own
            self._leave(context.name, now)
        self._occupants.orphans.pop(context.name, None)  # what it has now waits for the next server
        before, servers = self._occupants.parts.get(context.name), self._occupants.servers(context.tenant)
        if before is None or not before.same(context):
            if before is not None:
                self._leave(context.name, now)
            context.joined = now
            self._occupants.parts[context.name] = context
            self._trace.add(self._occupants.came(context))
            for server in servers:
                server.parts.append(context)
                self.arbiter.forget(server.name)  # what was ordered of the server holds for the newcomer too
        if not servers:
            contextcontrol.set_gate(context, closed=True)  # no slice and no pause would hold for it

    def _join(self, context: Context, now: float) -> None:
        if context.is_part:
            self._join_part(context, now)
            return
        if context.name in self._occupants.parts:
            self._leave(context.name, now)
        before = self._occupants.contexts.get(context.name)
        if self.control.level is ControlLevel.GATE:
            context.level = Level.GATE
        if before is not None and before.same(context):
            context.close()  # its copy channels or other objects changed, or libcuda set its slice
            before.checks = [now, *(now + after for after in _FIRST_CHECKS)]
            self.arbiter.settle(context.name, now)
            return
        context.joined = now
        if before is not None:
            if context.level is not Level.HARDWARE:  # the last chance to resume it by the driver
                self._performer.release(before)
            context.inherit(before)
            before.close()
        context.checks = [now + after for after in _FIRST_CHECKS]
        self._occupants.contexts[context.name] = context
        self._trace.add(self._occupants.came(context))
        use = context.page.use(context.slot, context.card)
        preemptible, paused = context.level is Level.HARDWARE, bool(use.paused or use.gate)
        if not context.member:
            context.parts = [part for part in self._occupants.parts.values() if part.tenant == context.tenant]
            for part in context.parts:
                contextcontrol.set_gate(part, closed=paused)  # it may have waited for the server
        self.arbiter.join(context.name, context.tenant, now=now, preemptible=preemptible, paused=paused)

    def _leave(self, name: str, now: float) -> None:
        if name in self._occupants.contexts or name in self._occupants.parts:
            self._reader.read_until(now)
        self._occupants.orphans.pop(name, None)
        part = self._occupants.parts.pop(name, None)
        if part is not None:
            for server in self._occupants.servers(part.tenant):
                server.parts.remove(part)
            contextcontrol.set_gate(part, closed=False)
            self.findings.clear(part.pid)
            self._trace.add(Left(name))
        context = self._occupants.contexts.pop(name, None)
        if context is not None:
            self._performer.release(context)  # it need not be dead: it may have reconnected, or was expelled
            context.close()
            started = processes.start_time(context.pid)
            if context.parts and not self._occupants.servers(context.tenant) and started is not None:
                for part in context.parts:
                    contextcontrol.set_gate(part, closed=True)
                    self._occupants.orphans[part.name] = context.pid, started
            self.findings.clear(context.pid)
            self._trace.add(Left(name))
        self.arbiter.leave(name, now)

    def _keep_trace(self, wanted: bool) -> None:
        if wanted == self._trace.active:
            return
        self.arbiter.takings.clear()
        if wanted:
            self._trace.start(self._occupants.came(context) for context in self._occupants.contexts.values())
        else:
            self._trace.stop()

    def _set_control(self, control: CardControl) -> None:
        self.control = control
        if self.control.level is ControlLevel.GATE:
            self._performer.all_to_gate(why_gated(control))
