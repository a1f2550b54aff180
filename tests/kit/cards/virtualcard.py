"""A card in virtual time, and the arbiter at work on it. Whole nanoseconds: the same run gives the same figures.

What the card does was measured on an H200 (see arbiter/slices.py): contexts with work take turns by their slices; a
switch takes 0.13 ms out of the slice of the one switched in, so that shorter slices get nothing done; where only one
has work its slice begins anew each time it ends, so that who comes next waits for the end of a slice, not of a kernel;
a pause stops a context in mid-kernel. An order takes a third of a millisecond, sometimes much longer, and orders are
performed one after the other, as the node's daemon does.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from math import inf

from aliquot.arbiter.account import divide
from aliquot.arbiter.card import CardArbiter
from aliquot.arbiter.gaps import EDGES, LENGTHS
from aliquot.arbiter.orders import Arm, Hold, Open, Order, Pause, Resume, SetSlice
from aliquot.arbiter.roster import Member, Reading
from aliquot.model.claim import AppClass
from aliquot.model.tenant import SharingRules

_STOCK = 2_048_000  # the slice of a context that nobody ordered anything of; nanoseconds, as all times in this file
_RING = 200_000  # from a launch to the daemon's hearing of it
_GATE = 100_000  # from the daemon's word on a page to the launch that waited for it
_BEAT = 100_000_000  # the daemon looks at least this often
_LONGEST_DRAIN, _DRAIN_CHECK = 100_000_000, 160_000  # as in runtime/cards/performing.py
_MOST_ROUNDS = 50  # without time passing: more is a decision that never settles

Event = Callable[[CardArbiter, float], None]


class SpinError(AssertionError):
    """The arbiter asks to be called again and again at the same time."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a process does, in seconds: a job of `work` every `period` from `start` on, kernel after kernel. A request
    is several such jobs, `pieces`, each handed over `gap` after the end of the one before: tokens, say.

    As it stands it has work all the time. `waits`: it waits for the job in a blocking call; otherwise only its
    launches show that it has work, and `sees` whether it ever asks if its work is done.
    """

    work: float = inf
    period: float = inf
    start: float = 0.0
    kernel: float = 0.001
    waits: bool = True
    sees: bool = True
    pieces: int = 1
    gap: float = 0.00005


@dataclass(slots=True)
class _Context:
    name: str
    tenant: str
    load: Load
    preemptible: bool
    slice: int = _STOCK
    paused: bool = False
    held: bool = False
    armed: bool = False
    busy: int = 0  # time in which it had work, since the daemon last looked
    jobs: deque[int] = field(default_factory=deque)  # when each that is not done yet came
    done: int = 0  # of the first of them
    launched: int = 0  # its kernels, so far
    launched_before: int = 0  # those of the jobs before
    read: int = 0  # launches when the daemon last looked
    ran: int = 0
    latencies: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)  # those of the first piece of each request
    left: int = 0  # pieces of the request to come
    seen_done: int | None = None  # when it saw all its work done, until the next comes

    @property
    def kernel(self) -> int:
        return max(1, round(self.load.kernel * 1e9))

    @property
    def work(self) -> float:
        return inf if self.load.work == inf else round(self.load.work * 1e9)

    @property
    def launches(self) -> int:
        return self.launched_before + self.launched

    @property
    def at_gate(self) -> bool:
        """Its next launch waits: that is all a pause does where the hardware is not controlled."""
        return self.held or (self.paused and not self.preemptible)

    @property
    def runnable(self) -> bool:
        if not self.jobs or (self.paused and self.preemptible):
            return False
        return self.done < (min(self.work, self.launched * self.kernel) if self.at_gate else self.work)

    def launch(self) -> bool:
        """Launch what may be launched by now. Returns whether the daemon must hear of it."""
        if not self.jobs or self.at_gate:
            return False
        before, self.launched = self.launched, max(self.launched, self.done // self.kernel + 1)
        rings = self.launched > before and self.armed
        self.armed = self.armed and not rings
        return rings

    def until_event(self) -> float:
        """How much it can do before something happens: its job ends, or a launch that somebody looks at."""
        most = min(self.work, self.launched * self.kernel) if self.armed or self.at_gate else self.work
        return most - self.done


class VirtualCard:
    """Tenants' processes, the hardware, and the loop of the daemon."""

    def __init__(
        self, rules: SharingRules, *, latency: Callable[[], float] = lambda: 0.00035, switch: float = 0.00013
    ) -> None:
        """`latency`: what the next order takes; `switch`: what a switch takes, in seconds."""
        self.arbiter = CardArbiter(rules)
        self.orders: list[tuple[float, Order]] = []  # when each took effect
        self.held: list[tuple[float, float, str]] = []  # who got on the card, from when to when
        self.worst_stall = 0.0  # the longest time in which two with work had slices too short to get anything done
        self._latency = latency
        self._switch = round(switch * 1e9)
        self._contexts: dict[str, _Context] = {}
        self._gone: dict[str, int] = {}  # by tenant: what the contexts that left had
        self._now = 0
        self._marked = 0
        self._read_at = 0
        self._current: _Context | None = None
        self._began = 0  # its stretch
        self._ready = 0  # until then it is being switched in
        self._last: _Context | None = None
        self._stalled: int | None = None
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = count()
        self._inbox: list[Event] = []
        self._gaps: dict[str, list[int]] = {}  # that ended since the daemon last looked, by tenant
        self._round_at: int | None = 0  # None: orders are being performed
        self._rounds = 0

    # --- what is on it -----------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds."""
        return self._now / 1e9

    def admit(
        self,
        tenant: str,
        app_class: AppClass = AppClass.NORMAL,
        quota: float | None = None,
        latency: float | None = None,
        release_delay: float | None = None,
    ) -> None:
        """A tenant; its quota is a part of 1."""
        milli = None if quota is None else round(quota * 1000)
        member = Member(tenant, app_class, milli, latency, release_delay)
        self.post(lambda arbiter, now: arbiter.admit(member))

    def start(self, name: str, tenant: str, load: Load, *, preemptible: bool = True, being_made: bool = False) -> None:
        """A process of the tenant; its context was made before, or only begins to be."""
        context = self._contexts[name] = _Context(name, tenant, load, preemptible)
        made = -inf if not being_made else self.now
        self.post(lambda arbiter, now: arbiter.join(name, tenant, now=made, preemptible=preemptible))
        self._at(self._now + round(load.start * 1e9), lambda: self._come(context))

    def stop(self, name: str) -> None:
        """The process ends."""
        context = self._contexts.pop(name)
        self._gone[context.tenant] = self._gone.get(context.tenant, 0) + context.ran
        context.jobs.clear()
        if self._current is context:
            self._vacate()
        self.post(lambda arbiter, now: arbiter.leave(name, now))
        self._choose()

    def post(self, event: Event) -> None:
        """Something that the daemon hears of."""
        self._inbox.append(event)
        if self._round_at is not None:
            self._round_at = self._now

    # --- what is seen ------------------------------------------------------------------------------------------

    def mark(self) -> None:
        """Measure from here on."""
        self._marked = self._now
        self._gone.clear()
        self.held.clear()
        for context in self._contexts.values():
            context.ran = 0
            context.latencies.clear()
            context.firsts.clear()

    def share(self, tenant: str) -> float:
        """Of the time since the mark, 0 to 1: what its work had of the card, switches not counted."""
        ran = sum(context.ran for context in self._contexts.values() if context.tenant == tenant)
        return (ran + self._gone.get(tenant, 0)) / max(1, self._now - self._marked)

    def share_of_process(self, name: str) -> float:
        """The share of one process."""
        return self._contexts[name].ran / max(1, self._now - self._marked)

    def latencies(self, name: str) -> list[float]:
        """Of each job that ended since the mark, from its coming to its end, in seconds."""
        return self._contexts[name].latencies

    def firsts(self, name: str) -> list[float]:
        """The same of the first piece of each request, where a request has several."""
        return self._contexts[name].firsts

    def paused(self, name: str) -> bool:
        """Whether it is stopped now."""
        return self._contexts[name].paused

    # --- time --------------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Let so much time pass."""
        end = self._now + round(seconds * 1e9)
        while (then := self._next()) <= end:
            self._pass(int(then))
            self._happen()
        self._pass(end)

    def _next(self) -> float:
        event = self._events[0][0] if self._events else inf
        return min(event, inf if self._round_at is None else self._round_at, self._card_event())

    def _card_event(self) -> float:
        """When the one that runs comes to an end, of its work or its turn."""
        current = self._current
        if current is None:
            return inf
        begins = max(self._now, self._ready)
        ends = begins + current.until_event()
        return min(ends, self._slice_ends()) if self._rival() is not None else ends

    def _slice_ends(self) -> int:
        """The next end of the slice, which begins anew each time it ended; the first not before it is switched in."""
        assert self._current is not None
        length = self._current.slice
        first = max(self._began + length, self._ready)
        return first + -(-max(0, self._now - first) // length) * length

    def _pass(self, then: int) -> None:
        current = self._current
        if current is not None:
            progress = max(0, then - max(self._now, self._ready))
            current.done += progress
            current.ran += progress
        for context in self._contexts.values():
            context.busy += max(0, then - self._now) if context.jobs and not context.at_gate else 0
        self._now = max(self._now, then)

    def _happen(self) -> None:
        """Do all that is due now."""
        if self._current is not None:
            self._go_on(self._current)
        while self._events and self._events[0][0] <= self._now:
            heapq.heappop(self._events)[2]()
        if self._round_at is not None and self._round_at <= self._now:
            self._round()
        self._choose()

    def _at(self, time: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._serial), action))

    # --- processes ---------------------------------------------------------------------------------------------

    def _come(self, context: _Context) -> None:
        """A job of its comes."""
        if self._contexts.get(context.name) is not context:
            return
        self._add_job(context)
        context.left += context.load.pieces - 1
        if context.load.period != inf:
            self._at(self._now + round(context.load.period * 1e9), lambda: self._come(context))
        self._hand_over(context)

    def _come_again(self, context: _Context) -> None:
        """The next piece of the request."""
        if self._contexts.get(context.name) is context and context.left:
            context.left -= 1
            self._add_job(context)
            self._hand_over(context)

    def _add_job(self, context: _Context) -> None:
        context.jobs.append(self._now)
        if context.seen_done is not None:
            counts = self._gaps.setdefault(context.tenant, [0] * LENGTHS)
            counts[bisect_left(EDGES, (self._now - context.seen_done) / 1e9)] += 1
            context.seen_done = None

    def _hand_over(self, context: _Context) -> None:
        if context.launch():
            self._at(self._now + _RING, lambda: self.post(lambda arbiter, now: arbiter.wake(context.name, now)))

    def _go_on(self, context: _Context) -> None:
        """Its job may have ended, or its kernel: then it hands over the next."""
        if context.jobs and context.done >= context.work:
            took = (self._now - context.jobs.popleft()) / 1e9
            first = context.load.pieces > 1 and (context.left + 1) % context.load.pieces == 0
            (context.firsts if first else context.latencies).append(took)
            if context.left and not context.jobs:
                self._at(self._now + round(context.load.gap * 1e9), lambda: self._come_again(context))
            if not context.jobs and (context.load.waits or context.load.sees):
                context.seen_done = self._now
            context.launched_before += context.launched
            context.done = context.launched = 0
        self._hand_over(context)

    # --- the hardware ------------------------------------------------------------------------------------------

    def _rival(self) -> _Context | None:
        """Who is next, in turn after the current one."""
        every = list(self._contexts.values())
        after = every.index(self._last) + 1 if self._last in every else 0
        return next(
            (context for context in every[after:] + every[:after] if context is not self._current and context.runnable),
            None,
        )

    def _vacate(self) -> None:
        current = self._current
        if current is not None:
            self.held.append((self._began / 1e9, self._now / 1e9, current.name))
        self._current = None

    def _choose(self) -> None:
        """A context that may run gets on the card if it is free, or if the slice of the one on it has ended."""
        current = self._current
        over = current is not None and self._rival() is not None and self._slice_ends() <= self._now
        if current is not None and (over or not current.runnable):
            self._vacate()
        if self._current is None and (chosen := self._rival()) is not None:
            self._began, self._ready = self._now, self._now + (self._switch if self._last not in (None, chosen) else 0)
            self._current = self._last = chosen
        self._note_stall()

    def _note_stall(self) -> None:
        if self._stalled is not None:
            self.worst_stall = max(self.worst_stall, (self._now - self._stalled) / 1e9)
        tiny = sum(context.runnable and context.slice <= self._switch for context in self._contexts.values())
        if tiny < 2:
            self._stalled = None
        elif self._stalled is None:
            self._stalled = self._now

    # --- the daemon --------------------------------------------------------------------------------------------

    def _round(self) -> None:
        """As the daemon's: what arrived, what the pages say, a decision, its orders."""
        inbox, self._inbox = self._inbox, []
        for event in inbox:
            event(self.arbiter, self.now)
        for context in self._contexts.values():
            self._hand_over(context)
            context.read = context.launches
        elapsed, self._read_at = self._now - self._read_at, self._now
        busy = {name: context.busy / max(1, elapsed) for name, context in self._contexts.items()}
        parts = divide(busy, *self.arbiter.weights())
        readings = {}
        for name, context in self._contexts.items():
            readings[name] = _reading(context, parts.get(name, 0.0) * elapsed / 1e9, context.busy / 1e9)
            context.busy = 0
        gaps, self._gaps = self._gaps, {}
        self.arbiter.read(readings, self.now, gaps)
        orders = self.arbiter.tick(self.now)
        self._round_at = None
        if orders:
            turns = any(isinstance(order, Open) for order in orders)
            closed = [] if self.arbiter.held else [order for order in orders if self._closes_gate(order, turns=turns)]
            rest = [order for order in orders if order not in closed]
            for order in closed:
                self.obey(order)
            self._drain(closed, deque(rest), self._now + _LONGEST_DRAIN)
        else:
            self._sleep()

    def _closes_gate(self, order: Order, *, turns: bool) -> bool:
        context = self._contexts.get(order.context)
        if context is None:
            return False
        return (isinstance(order, Hold) and turns) or (isinstance(order, Pause) and not context.preemptible)

    def _drain(self, closed: list[Order], rest: deque[Order], until: int) -> None:
        """Until what was launched before the gates closed is done, or not; then the other orders."""
        running = [self._contexts[order.context] for order in closed if order.context in self._contexts]
        if self._now < until and any(context.runnable for context in running):
            self._at(self._now + _DRAIN_CHECK, lambda: self._drain(closed, rest, until))
            return
        drained = [(self.now, order) for order in closed]
        self._perform(rest, len(self.orders), drained)

    def _perform(self, orders: deque[Order], first: int, before: list[tuple[float, Order]]) -> None:
        """One after the other, each at the end of the time it takes. `first`: where they are among all orders.
        `before`: those that took effect before."""
        while orders:
            context = self._contexts.get(orders[0].context)
            if context is not None and context.preemptible and not isinstance(orders[0], Arm):
                takes = _GATE if isinstance(orders[0], (Hold, Open)) else round(self._latency() * 1e9)
                self._at(self._now + takes, lambda: self._performed_one(orders, first, before))
                return
            self.obey(orders.popleft())
        self.arbiter.performed((order, at) for at, order in [*before, *self.orders[first:]])
        self._sleep()

    def _performed_one(self, orders: deque[Order], first: int, before: list[tuple[float, Order]]) -> None:
        self.obey(orders.popleft())
        self._perform(orders, first, before)

    def obey(self, order: Order) -> None:
        """Perform the order, at once."""
        self.orders.append((self.now, order))
        context = self._contexts.get(order.context)
        match order:
            case _ if context is None:
                return
            case SetSlice(_, microseconds):
                context.slice = microseconds * 1000 if context.preemptible else context.slice
            case Pause() | Hold() | Open() | Resume():
                self._hand_over(context)  # what it launched until now
                context.paused = isinstance(order, Pause) or (context.paused and isinstance(order, Open))
                context.held = isinstance(order, Hold) or (context.held and context.paused)
                self._hand_over(context)
            case Arm():
                context.armed = True
                if context.launches != context.read:  # it launched while we were about to ask it to tell
                    self.post(lambda arbiter, now: arbiter.wake(order.context, now))
        self._choose()

    def _sleep(self) -> None:
        if self._inbox:
            self._round_at = self._now
            return
        deadline = self.arbiter.deadline
        due = self._now + _BEAT if deadline == inf else min(self._now + _BEAT, _round_up(deadline))
        self._rounds = self._rounds + 1 if due <= self._now else 0
        if self._rounds > _MOST_ROUNDS:
            raise SpinError(f"at {self.now}: the deadline is {deadline} again and again")
        self._round_at = max(self._now, due)


def _reading(context: _Context, had: float, busy: float) -> Reading:
    outstanding = bool(context.jobs) or (context.launches > 0 and not context.load.sees)
    return Reading(context.launches, context.load.waits and bool(context.jobs), outstanding, had, busy)


def _round_up(seconds: float) -> int:
    """Not before: a clock that is asked at the deadline answers the deadline or later."""
    whole = round(seconds * 1e9)
    return whole if whole / 1e9 >= seconds else whole + 1
