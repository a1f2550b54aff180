"""One card's loop: what its tenants do goes to the arbiter, what the arbiter orders goes to the hardware.

A thread per card, since an RM call blocks for a third of a millisecond and sometimes for ten. It owns the RM files of
its contexts: nobody else closes them, so that no control ever goes to a file number that means something else by now.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from aliquot.adapters.gpu import page as pages
from aliquot.adapters.gpu import rm
from aliquot.adapters.gpu.page import Page
from aliquot.arbiter import slices
from aliquot.arbiter.account import Shares, divide
from aliquot.arbiter.card import CardArbiter
from aliquot.arbiter.orders import Arm, Order, Pause, Resume, SetSlice
from aliquot.arbiter.roster import Member, Reading
from aliquot.arbiter.timeline import MOST_RECORDS, Came, Left, Record
from aliquot.model.claim import AppClass
from aliquot.model.tenant import Finding, FindingKind, Level, SharingRules, Standing
from aliquot.services.runtime.contexts import Seat, Tally, busy_ns, most_telling, on_all, stop, waits, weakest

BEAT = 0.1  # a heartbeat at least this often: tenants undo a pause themselves after ALQ_STALE_NS without one
CALM = 0.3  # ... and this often while nothing is to be decided: nobody is active, so nobody is paused
STALLED = 0.5  # when our own last beat is older, tenants may have done so
_CHECKS = (0.1, 0.5)  # when a new context's slice is looked at again: libcuda sets its own while it makes the context
_ROUND = 2.0  # a round at least this often
_AUDIT = 1.0  # and then one context each second, and whether a process went on by itself
_STOCK = 2048  # microseconds: the driver's own slice
_MOST_FAILURES = 10  # rounds in a row, before the card counts as given up
_SETTLED = 1.0  # a changed slice after this is no accident of start-up

log = logging.getLogger(__name__)


class CardLoop:
    """The thread and its inbox. What is said to it goes through the inbox; everything else happens in the thread."""

    def __init__(self, uuid: str, rules: SharingRules) -> None:
        self.uuid = uuid
        self.arbiter = CardArbiter(rules)
        self.findings: dict[tuple[int, FindingKind], Finding] = {}  # by process and kind
        self._trace: deque[Record] | None = None  # for whoever draws who held the card
        self._inbox: queue.SimpleQueue[Callable[[float], None] | None] = queue.SimpleQueue()
        self._rung: set[str] = set()  # whose wake is in the inbox
        self._seats: dict[str, Seat] = {}
        self._tallies: dict[str, Tally] = {}
        self._shares = Shares()
        self._read_at = 0.0
        self._beaten = 0.0
        self._audited = 0.0
        self._standings: tuple[Standing, ...] = ()
        self._told = 0.0
        self._stirred = False  # something came since the last round
        self._thread = threading.Thread(target=self._run, name=f"card-{uuid[:12]}", daemon=True)

    # --- called from other threads -----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Resume everybody, then end. Nothing may be posted after this."""
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def configure(self, rules: SharingRules) -> None:
        """Other rules from now on."""
        self._inbox.put(lambda now: setattr(self.arbiter, "rules", rules))

    def admit(self, member: Member, page: Page, card: int, limit: int | None) -> None:
        """A tenant of this card."""
        self._inbox.put(lambda now: self._admit(member, page, card, limit))

    def dismiss(self, tenant: str, then: Callable[[], None]) -> None:
        """The tenant is gone; `then` is called when nothing of it is touched any more."""
        self._inbox.put(lambda now: self._dismiss(tenant, then))

    def join(self, seat: Seat) -> None:
        """A process has these groups on the card now; its files are ours from here on."""
        self._inbox.put(lambda now: self._join(seat, now))

    def leave(self, name: str) -> None:
        """The process is gone from the card."""
        self._inbox.put(lambda now: self._leave(name))

    def wake(self, name: str) -> None:
        """It was idle and handed over work. Said twice before it was heard is said once: a process may ring without
        end, and this thread may hang in the driver."""
        if name not in self._rung:
            self._rung.add(name)
            self._inbox.put(lambda now: self._wake(name, now))

    def keep_trace(self, wanted: bool) -> None:
        """From now on, or no longer. Who is there already is told first."""
        self._inbox.put(lambda now: self._keep_trace(wanted))

    def records(self) -> list[Record]:
        """What was traced since the last time."""
        trace = self._trace
        if trace is None:
            return []
        found: list[Record] = []
        while trace:  # only we take from it
            found.append(trace.popleft())
        while self.arbiter.takings:
            found.append(self.arbiter.takings.popleft())
        return found

    def standings(self) -> tuple[Standing, ...]:
        """As of the last round."""
        return self._standings

    # --- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        going, failed = True, 0
        while going:
            timeout = min(self.arbiter.deadline, self._beaten + self._pause()) - time.monotonic()
            try:
                going = self._take(max(0.0, timeout))
                if going:
                    # No heartbeat is better than one that promises orders that do not come: tenants let themselves go.
                    self._go_on(time.monotonic(), beat=failed < _MOST_FAILURES)
                failed = 0
            except Exception:  # whatever it is, the next round must come
                failed += 1
                if failed in (1, _MOST_FAILURES) or failed % 1000 == 0:
                    log.exception("card %s: a round failed, %d in a row", self.uuid, failed)
                time.sleep(min(BEAT, 0.01 * failed))
        self._let_everybody_go()

    def _take(self, timeout: float) -> bool:
        """Take in what arrived; False: stop."""
        try:
            message = self._inbox.get(timeout=timeout) if timeout > 0 else self._inbox.get_nowait()
            while True:
                if message is None:
                    return False
                message(time.monotonic())
                self._stirred = True
                message = self._inbox.get_nowait()
        except queue.Empty:
            return True

    def _go_on(self, now: float, *, beat: bool) -> None:
        """A heartbeat; and a round, where something came or is due."""
        if beat:
            self._beat(now)
        if self._stirred or now >= min(self.arbiter.deadline, self._read_at + _ROUND):
            self._round(now)
            self._stirred = False

    def _round(self, now: float) -> None:
        self._read(now)
        orders = self.arbiter.tick(now)
        if orders:
            self.arbiter.performed(self._perform(orders))
        self._audit(now)
        self._tell(now)

    def _pause(self) -> float:
        """Seconds until the next heartbeat."""
        if not self._tallies:
            return _ROUND
        return CALM if self.arbiter.deadline >= self._beaten + CALM else BEAT

    def _beat(self, now: float) -> None:
        if self._beaten and now - self._beaten > STALLED:
            for name, seat in self._seats.items():  # each may have gone on by itself, and with another slice
                seat.stopped.clear()
                self.arbiter.forget(name)
        self._beaten = now
        stamp = time.monotonic_ns()
        for tally in self._tallies.values():
            tally.page.beat(tally.card, stamp)

    def _read(self, now: float) -> None:
        stamp = time.monotonic_ns()
        readings, busy = {}, {}
        elapsed = now - self._read_at
        for name, seat in self._seats.items():
            use = seat.page.use(seat.slot, seat.card)
            readings[name] = Reading(use.launches, waits(seat, use, now), use.busy_since_ns != 0)
            if seat.last is not None and elapsed > 0:
                before = busy_ns(seat.last, stamp - int(elapsed * 1e9))
                busy[name] = max(0, busy_ns(use, stamp) - before) / (elapsed * 1e9)
            seat.last = use
            if seat.level is Level.HARDWARE and not use.paused and self.arbiter.paused(name):
                self._went_on(seat, now)
        parts = divide(busy, *self.arbiter.weights())
        self._shares.add(self._read_at, now, parts)
        if self._trace is not None:
            self._trace.append((self._read_at, now, parts, self.arbiter.held))
        self._read_at = now
        self.arbiter.read(readings, now)

    def _went_on(self, seat: Seat, now: float) -> None:
        """It thought that we were gone, or says so: seldom enough that it cannot keep the card's lock busy."""
        if now - seat.rescued >= _AUDIT:
            seat.rescued = now
            seat.stopped.clear()
            self.arbiter.forget(seat.name)

    # --- events ------------------------------------------------------------------------------------------------

    def _admit(self, member: Member, page: Page, card: int, limit: int | None) -> None:
        self.arbiter.admit(member)
        self._tallies[member.tenant] = Tally(member, page, card, limit)

    def _dismiss(self, tenant: str, then: Callable[[], None]) -> None:
        for name in [name for name, seat in self._seats.items() if seat.tenant == tenant]:
            self._leave(name)
        self.arbiter.dismiss(tenant)
        self._tallies.pop(tenant, None)
        then()

    def _wake(self, name: str, now: float) -> None:
        self._rung.discard(name)  # first: who rings from here on rings for something new
        self.arbiter.wake(name, now)

    def _join(self, seat: Seat, now: float) -> None:
        before = self._seats.get(seat.name)
        if before is not None and before.same(seat):  # its copies or other objects changed, or libcuda set its slice
            seat.close()
            before.checks = [now, *(now + after for after in _CHECKS)]
            self.arbiter.settle(seat.name, now)
            return
        if before is not None:
            seat.stopped = before.stopped & {
                (group.client, channel) for group in seat.groups for channel in group.channels
            }
            if seat.level is not Level.HARDWARE:  # it could be paused, now it can not: this is the last chance
                self._let_go(before)
            before.close()
            seat.paused_since, seat.joined, seat.last = before.paused_since, before.joined, before.last
        else:
            seat.joined = now
        seat.checks = [now + after for after in _CHECKS]
        self._seats[seat.name] = seat
        self._trace_coming(seat)
        use = seat.page.use(seat.slot, seat.card)
        paused = bool(use.paused or use.gate)
        self.arbiter.join(seat.name, seat.tenant, now=now, preemptible=seat.level is Level.HARDWARE, paused=paused)

    def _leave(self, name: str) -> None:
        seat = self._seats.pop(name, None)
        if seat is not None:
            self._let_go(seat)  # it need not be dead: it may have come anew, or was thrown out
            self._count_pause(seat, time.monotonic())
            seat.close()
            self._findings_end(seat.pid)
            if self._trace is not None:
                self._trace.append(Left(name))
        self.arbiter.leave(name)

    def _keep_trace(self, wanted: bool) -> None:
        if wanted == (self._trace is not None):
            return
        self._trace = deque(maxlen=MOST_RECORDS) if wanted else None
        self.arbiter.takings.clear()
        for seat in self._seats.values():
            self._trace_coming(seat)

    def _trace_coming(self, seat: Seat) -> None:
        if self._trace is not None:
            tally = self._tallies.get(seat.tenant)
            offline = tally is not None and tally.member.app_class is AppClass.OFFLINE
            self._trace.append(Came(seat.name, seat.tenant, offline))

    # --- orders ------------------------------------------------------------------------------------------------

    def _perform(self, orders: Iterable[Order]) -> list[tuple[Order, float]]:
        """When each took effect. Many slow ones together could last longer than tenants wait for a heartbeat."""
        effects = []
        for order in orders:
            seat = self._seats.get(order.context)
            if seat is None:
                continue
            try:
                self._perform_one(order, seat)
            except rm.RmError as error:
                if error.gone:
                    log.info("%s: %s; it will register again or is gone", seat.name, error)
                else:
                    self._degrade(seat, error)
            now = time.monotonic()
            effects.append((order, now))
            if now - self._beaten >= BEAT:
                self._beat(now)
        return effects

    def _perform_one(self, order: Order, seat: Seat) -> None:
        match order:
            case SetSlice(_, microseconds):
                if seat.level is Level.HARDWARE:
                    on_all(seat.groups, lambda group: rm.set_slice(group, microseconds))
            case Pause():
                seat.paused_since = time.monotonic()
                if seat.level is Level.HARDWARE:
                    seat.page.beat(seat.card, time.monotonic_ns())
                    seat.page.set_word(seat.slot, seat.card, pages.PAUSED, 1)
                    on_all(seat.groups, lambda group: stop(seat, group))
                else:
                    seat.page.set_gate(seat.slot, seat.card, closed=True)
            case Resume():
                self._resume(seat)
            case Arm():
                seat.page.set_word(seat.slot, seat.card, pages.WAKE, 1)
                use = seat.page.use(seat.slot, seat.card)
                if seat.last is not None and use.launches != seat.last.launches:  # since we looked: it will not ring
                    self.arbiter.wake(seat.name, time.monotonic())
                    self.arbiter.deadline = 0.0

    def _resume(self, seat: Seat) -> None:
        self._count_pause(seat, time.monotonic())
        seat.page.set_gate(seat.slot, seat.card, closed=False)
        try:
            if seat.level is Level.HARDWARE:
                on_all(seat.groups, lambda group: rm.set_paused(group, False))
        finally:
            seat.stopped.clear()  # also where it failed on one: the others must be stopped anew the next time
            seat.page.set_word(seat.slot, seat.card, pages.PAUSED, 0)

    def _let_go(self, seat: Seat, *, for_now: bool = False) -> None:
        """Resume what can be resumed, for the last time, with the slice it would have without us.

        Two that are left with tiny slices would stop each other for good. `for_now`: the next of us takes it up again,
        and until then its share stays as it is.
        """
        stays = for_now and slices.lasting(self.arbiter.slice_of(seat.name))
        if seat.level is Level.HARDWARE and not stays:
            with contextlib.suppress(rm.RmError):
                on_all(seat.groups, lambda group: rm.set_slice(group, _STOCK))
        with contextlib.suppress(rm.RmError):
            self._resume(seat)

    def _degrade(self, seat: Seat, error: rm.RmError) -> None:
        """The driver refuses what it allowed at registration: hold it at the gate from now on."""
        log.warning("%s: %s; held at the gate from now on", seat.name, error)
        text = f"the driver refuses control of it ({error}): held at the gate from now on"
        self._find(seat, FindingKind.REFUSED, text)
        self._let_go(seat)
        seat.level = Level.GATE
        self.arbiter.join(seat.name, seat.tenant, preemptible=False)
        self.arbiter.deadline = 0.0

    def _let_everybody_go(self) -> None:
        for seat in self._seats.values():
            try:
                self._let_go(seat, for_now=True)
            except Exception:  # the next one is to be let go all the same
                log.exception("%s may still be paused", seat.name)
            seat.close()
        self._seats.clear()

    def _count_pause(self, seat: Seat, now: float) -> None:
        tally = self._tallies.get(seat.tenant)
        if seat.paused_since is not None and tally is not None:
            tally.paused_seconds += now - seat.paused_since
        seat.paused_since = None

    # --- what is seen ------------------------------------------------------------------------------------------

    def _audit(self, now: float) -> None:
        """Look whether slices are what was ordered: soon after a context came, then one context each second."""
        due = [seat for seat in self._seats.values() if seat.checks and seat.checks[0] <= now]
        for seat in due:
            seat.checks.pop(0)
        if now - self._audited >= _AUDIT:
            self._audited = now
            due += [seat for seat in self._seats.values() if not seat.checks][:1]
            for seat in due[-1:]:  # to the end of the line
                self._seats[seat.name] = self._seats.pop(seat.name)
        for seat in due:
            wanted = self.arbiter.slice_of(seat.name)
            if seat.level is not Level.HARDWARE or wanted is None:
                continue
            try:
                changed = {found for group in seat.groups if (found := rm.get_slice(group)) != wanted}
            except rm.RmError:
                continue
            if changed:
                self.arbiter.forget(seat.name)
                self.arbiter.deadline = 0.0
                if now - seat.joined > _SETTLED:
                    text = f"its time slice was changed behind our back to {changed.pop()} us: set again"
                    self._find(seat, FindingKind.SLICE, text)

    def _find(self, seat: Seat, kind: FindingKind, text: str) -> None:
        """One of a kind of each process: its owner may provoke as many as it likes."""
        self.findings[seat.pid, kind] = Finding(self.uuid, seat.pid, kind, text, seat.tenant)

    def _findings_end(self, pid: int) -> None:
        for key in [key for key in self.findings if key[0] == pid]:
            del self.findings[key]

    def _tell(self, now: float) -> None:
        if now - self._told < BEAT:
            return
        self._told = now
        self._standings = tuple(self._standing(tenant, tally, now) for tenant, tally in self._tallies.items())

    def _standing(self, tenant: str, tally: Tally, now: float) -> Standing:
        seats = [seat for seat in self._seats.values() if seat.tenant == tenant]
        used, refused = tally.totals(seats, now)
        return Standing(
            tenant=tenant,
            uuid=self.uuid,
            state=most_telling({self.arbiter.state(seat.name) for seat in seats}),
            level=weakest({seat.level for seat in seats}),
            share=sum(self._shares.of(seat.name) for seat in seats),
            memory_used=used,
            memory_limit=tally.limit,
            processes=tuple(sorted(seat.pid for seat in seats)),
            preemptions=self.arbiter.preemptions[tenant],
            paused_seconds=tally.paused_until(now, seats),
            refused=refused,
        )
