"""One card: from who is there and what they do, to orders.

The wanted state follows from the roster, the rules and the time; orders are its difference from what was ordered
before. So a context that registers again, or that was found changed, only has to be forgotten to be put right.

Without online work on the card all tenants are in front and share it by policy, offline ones too.
With online work there are two ranks. In front: online work and ordinary work (no class), which compete freely. Behind:
offline work. Of those behind at most one is enabled, with a slice so tiny that the hardware takes the card from it in
mid-kernel whenever anybody in front has work; and none at all while online work was active within the release delay.
Such a slice would leave nothing beside busy ordinary work, and only online work may do that: so, while online work does
not hold the card, ordinary and offline contexts take turns by policy.
An idle context is never paused: it may be inside some call of the driver that needs the card and is no launch.
Nor is one that is being made; under fixed-share what it has then is its tenant's debt (debts.py).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from aliquot.arbiter import pieces, slices
from aliquot.arbiter.debts import Debts
from aliquot.arbiter.differing import Ordered, difference
from aliquot.arbiter.gaps import LATENCY, Gaps
from aliquot.arbiter.orders import Hold, Open, Order, Pause, Resume
from aliquot.arbiter.roster import BUSY, IDLE_AFTER, NEVER_DRY, STILL_BUSY, Context, Member, Reading, Roster
from aliquot.arbiter.timeline import Taken
from aliquot.arbiter.turns import FOREVER, Rotation, Rounds, Windows
from aliquot.model.claim import AppClass
from aliquot.model.node import Isolation
from aliquot.model.tenant import SharingRules, State

SAMPLE = 0.01  # seconds between two readings of activity while it decides something
DOZE = 0.1  # ... while it does not
REST = 2.0  # ... while no tenant is active: only in case a wake got lost

_SELDOM = 0.05  # the weight of a turn that is likely to be wasted


@dataclass(slots=True)
class CardArbiter:
    """Events in, orders out. `deadline` is when to call `tick` next, if nothing happens before."""

    rules: SharingRules = field(default_factory=SharingRules)
    deadline: float = FOREVER
    look: float = 0.0  # seconds from one look at online work that holds the card to the next, at least
    held_by: str | None = None  # the online tenant for which offline work is paused
    preemptions: Counter[str] = field(default_factory=Counter)  # by tenant
    takings: deque[Taken] = field(default_factory=lambda: deque(maxlen=64))  # the same one by one, for the timelines
    roster: Roster = field(default_factory=Roster)
    _ordered: dict[str, Ordered] = field(default_factory=dict)
    _front: Windows = field(default_factory=Windows)
    _gated: Windows = field(default_factory=Windows)  # those in front, where slices do not bind
    _behind: Rotation = field(default_factory=Rotation)  # offline contexts beside online ones, and ordinary ones
    _capped: Windows = field(default_factory=Windows)  # the same, under fixed-share
    _debts: Debts = field(default_factory=Debts)
    _gaps: dict[str, Gaps] = field(default_factory=dict)  # by tenant
    _brief: Rounds = field(default_factory=Rounds)  # those in front, where all wait for short pieces of work
    _pieces: bool = False  # they take turns so
    _former: tuple[str | None, ...] = (None, None, None, None)  # whose windows it was before the last step
    _first: dict[str, str] = field(default_factory=dict)  # by tenant: its context that began its last window in front
    _lent: str | None = None  # the ordinary context that left a part of its turn to offline work
    _online_was_active: bool = False
    _dry: bool = False  # burst-share in windows
    _release: float = FOREVER  # when those held are let go if nothing happens before

    # --- events ----------------------------------------------------------------------------------------------

    def admit(self, member: Member) -> None:
        """A tenant of this card, or what changed about it."""
        self._gaps.setdefault(member.tenant, Gaps()).latency = member.latency or LATENCY
        self.roster.members[member.tenant] = member

    def dismiss(self, tenant: str) -> None:
        """The tenant is gone, with all its contexts."""
        self.roster.members.pop(tenant, None)
        self.preemptions.pop(tenant, None)
        self._debts.forget(tenant)
        self._gaps.pop(tenant, None)
        self._first.pop(tenant, None)
        for name in [context.name for context in self.roster.contexts.values() if context.tenant == tenant]:
            self.leave(name)

    def join(
        self, name: str, tenant: str, *, now: float = -FOREVER, preemptible: bool = True, paused: bool = True
    ) -> None:
        """A context registered, for the first time or again: what was ordered of it before may not hold any more.

        `paused`: for all we know a daemon before us died with it paused.
        """
        if name not in self.roster.contexts:
            self._debts.collect(tenant)
        context = self.roster.contexts.setdefault(name, Context(name, tenant, came=now))
        context.preemptible = preemptible
        self.settle(name, now)
        before = self._ordered.get(name)
        runs = not paused if before is None else before.enabled is True
        self._ordered[name] = Ordered(enabled=True if runs else None)

    def settle(self, name: str, now: float) -> None:
        """It registered something: it is still being made. One that is paused was made before, and stays paused."""
        context = self.roster.contexts.get(name)
        if context is not None and not self.paused(name):
            context.touched(now)

    def leave(self, name: str, now: float = -FOREVER) -> None:
        """The context is gone. What it had since the last reading cannot be read any more."""
        context = self.roster.contexts.pop(name, None)
        if context is not None and context.settling and context.has_work and self._bound(context):
            self._debts.charge(context.tenant, min(SAMPLE, self.roster.unread(now)))
        self._ordered.pop(name, None)

    def forget(self, name: str) -> None:
        """What was ordered of it does not hold any more: order it again."""
        if name in self.roster.contexts:
            self._ordered[name] = Ordered()

    def wake(self, name: str, now: float) -> None:
        """The context was idle and has launched work."""
        if name in self._ordered:
            self._ordered[name].armed = False
        self.roster.touch(name, now)

    def read(
        self, readings: Mapping[str, Reading], now: float, gaps: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        """What the pages say now. `gaps`: those of each tenant that ended since the last reading, by length."""
        self._read_gaps(readings, gaps or {}, now)
        self.roster.read(readings, [name for name, was in self._ordered.items() if was.enabled is not False], now)
        for name, reading in readings.items():
            context = self.roster.contexts.get(name)
            if context is not None and context.settling and self._bound(context):
                self._debts.charge(context.tenant, reading.had)
                (self._capped if self._has_online() else self._brief if self._pieces else self._front).refund(
                    reading.had
                )

    def _read_gaps(self, readings: Mapping[str, Reading], gaps: Mapping[str, Sequence[int]], now: float) -> None:
        elapsed = self.roster.unread(now)
        contended = any(context.has_work for context in self.roster.of_class(AppClass.OFFLINE))
        busy: dict[str, float] = {}
        for name, reading in readings.items():
            if (context := self.roster.contexts.get(name)) is not None:
                busy[context.tenant] = max(busy.get(context.tenant, 0.0), reading.busy)
        for tenant, learned in self._gaps.items():
            learned.read(gaps.get(tenant, ()), busy.get(tenant, 0.0), elapsed, contended=contended)

    # --- decision --------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Order]:
        """The orders that make it right for now; sets `deadline`."""
        for context in self.roster.contexts.values():
            context.settling = now < context.settles
        settled = min(
            (context.settles for context in self.roster.contexts.values() if context.settling), default=FOREVER
        )
        self._former = (self._front.turn, self._capped.turn, self._gated.turn, self._brief.turn)
        front, behind = self._ranks()
        self._step_debts([*front, *behind], now)
        self._pieces = not self._has_online() and pieces.take_turns(front, self._gaps, before=self._pieces)
        self._dry = not self._pieces and self._runs_dry(front)
        lengths = self._lengths(front, behind, now)
        enabled = self._enabled_front(front, now) | {context.name for context in behind}
        enabled -= self._waiting_behind(front, behind, now)
        enabled -= {context.name for context in (*front, *behind) if context.settling and self._pays(context)}
        turns = (self._front, self._gated, self._behind, self._capped, self._brief)
        interval = now + self._interval(front, behind)
        self.deadline = min(interval, settled, self._release, self._debts.until, *(turn.until for turn in turns))
        online = {context.name for context in front if self._class_of(context) is AppClass.ONLINE}
        first = self._begins_window(front)
        return difference(
            self._ordered, [*front, *behind], lengths, enabled,
            online=online, held=self.held, first=first, at_gate=self._pieces,
        )  # fmt: skip

    def performed(self, effects: Iterable[tuple[Order, float]]) -> None:
        """When each order of the last tick took effect."""
        pauses: dict[str, float] = {}
        resumes: dict[str, float] = {}
        for order, at in effects:
            context = self.roster.contexts.get(order.context)
            names = [order.context] if context is None else [order.context, context.tenant]
            for name in names:  # windows are tenants' in front, contexts' behind
                if isinstance(order, (Pause, Hold)):
                    pauses[name] = at
                elif isinstance(order, (Resume, Open)):
                    resumes.setdefault(name, at)
        every: tuple[Windows | Rounds, ...] = (self._front, self._capped, self._gated, self._brief)
        for windows, former in zip(every, self._former, strict=True):
            windows.switched(former, pauses.get(former or ""), resumes.get(windows.turn or ""))

    @property
    def held(self) -> bool:
        """Whether offline work is paused because online work was active just now."""
        return self.held_by is not None

    def state(self, name: str) -> State:
        """What the context does at this moment."""
        context = self.roster.contexts.get(name)
        if context is None:
            return State.IDLE
        ordered = self._ordered[name]
        if ordered.enabled is False:
            return State.PAUSED if self.held and self._class_of(context) is AppClass.OFFLINE else State.WAITING
        return State.IDLE if context.quiet and not context.active else State.RUNNING

    def weights(self) -> tuple[dict[str, int], dict[str, int]]:
        """The slices of the enabled contexts, in front and behind: how the card's time is divided now."""
        front, behind = self._ranks()
        return self._running(front), self._running(behind)

    def _running(self, rank: Sequence[Context]) -> dict[str, int]:
        return {
            context.name: ordered.microseconds or slices.FAIR
            for context in rank
            if (ordered := self._ordered.get(context.name)) is not None and ordered.enabled is not False
        }

    def slice_of(self, name: str) -> int | None:
        """The slice that was ordered."""
        ordered = self._ordered.get(name)
        return None if ordered is None else ordered.microseconds

    def paused(self, name: str) -> bool:
        """Whether its pause was ordered."""
        ordered = self._ordered.get(name)
        return ordered is not None and ordered.paused

    # --- inside ----------------------------------------------------------------------------------------------

    def _class_of(self, context: Context) -> AppClass | None:
        member = self.roster.members.get(context.tenant)
        return None if member is None else member.app_class

    def _ranks(self) -> tuple[list[Context], list[Context]]:
        online, normal = self.roster.of_class(AppClass.ONLINE), self.roster.of_class(AppClass.NORMAL)
        offline = self.roster.of_class(AppClass.OFFLINE)
        return (online + normal, offline) if online else (normal + offline, [])

    def _has_online(self) -> bool:
        return bool(self.roster.of_class(AppClass.ONLINE))

    def _lengths(self, front: Sequence[Context], behind: Sequence[Context], now: float) -> dict[str, int]:
        busy = self.roster.lately(front, now)
        if self._has_online():
            tiny = {context.name: slices.TINY if context.active else slices.BRIEF for context in behind}
            # Ordinary work takes turns with offline work: no length keeps the latter from cutting in.
            online = all(self._class_of(context) is AppClass.ONLINE for context in busy)
            let_in = any(not self._fixed_delay(context.tenant) for context in busy)
            return tiny | slices.online(front, busy, cut=bool(behind) and online and let_in)
        if self.rules.isolation is Isolation.BURST_SHARE:  # also in windows: what stays when the daemon ends
            by_quota = self.roster.quotas(context.tenant for context in front)
            return slices.proportional(front, by_quota) | slices.proportional(busy, by_quota)
        if self._turns_in_front(front) is not None:  # a tenant's processes have its window for themselves
            return {context.name: slices.FAIR for context in front}
        return slices.equal(front) | slices.equal(busy)

    def _enabled_front(self, front: Sequence[Context], now: float) -> set[str]:
        """Under fixed-share only the tenant whose window it is, beside those that have nothing to do.

        Under burst-share the slices do it all, unless there is one that they do not bind: then they take turns; or one
        whose queue runs dry: then they have windows that leave no rest.
        """
        quotas = self.roster.quotas(context.tenant for context in front)
        if self._pieces:
            self._front, self._gated = Windows(), Windows()
            return self._take_turns(front, quotas, now)
        self._brief = Rounds()
        working = {
            context.tenant: quotas[context.tenant] for context in front if context.active and not self._pays(context)
        }
        policy = self._turns_in_front(front)
        if self._dry:  # what all of them together did not ask for is theirs too
            working = {tenant: quota / sum(working.values()) for tenant, quota in working.items()}
        if policy is not Isolation.FIXED_SHARE:
            self._front = Windows()
        if policy is not Isolation.BURST_SHARE:
            self._gated = Windows()
        if policy is None:
            return {context.name for context in front}
        if policy is Isolation.FIXED_SHARE:
            turn = self._front.step(working, now)
        else:  # what is not booked, and what idle tenants leave, goes to the others
            total = sum(working.values())
            turn = self._gated.step({tenant: quota / total for tenant, quota in working.items()}, now)
        return {context.name for context in front if context.tenant == turn or not context.active}

    def _take_turns(self, front: Sequence[Context], quotas: Mapping[str, float], now: float) -> set[str]:
        """Who may launch in this turn: its tenant, and those that do nothing just now, and so lose no turn."""
        waiting = [context for context in front if context.active and not context.pauses and not self._pays(context)]
        working = {context.tenant: quotas[context.tenant] for context in waiting}
        fixed = self.rules.isolation is Isolation.FIXED_SHARE
        if self.rules.isolation is Isolation.BEST_EFFORT:
            working = dict.fromkeys(working, 1.0)
        if not fixed:
            working = {tenant: quota / sum(working.values()) for tenant, quota in working.items()}
        period = pieces.period(working.values())
        lengths = {tenant: quota * period for tenant, quota in working.items()}
        turn = self._brief.step(lengths, now, period if fixed else 0.0)
        return {context.name for context in front if context.tenant == turn or context not in waiting}

    def _begins_window(self, front: Sequence[Context]) -> str | None:
        """Which context of the tenant whose window begins runs first: each in turn. The card would begin with the same
        one each time, and where its slice is as long as the window the others would never run."""
        turn = self._front.turn
        contexts = [context for context in front if context.tenant == turn and context.active]
        if turn == self._former[0] or not contexts:
            return None
        names = [context.name for context in contexts if not context.resting] or [contexts[0].name]
        before = self._first.get(contexts[0].tenant, "")
        first = self._first[contexts[0].tenant] = min(names, key=lambda name: (name <= before, name))
        return first

    def delay_of(self, tenant: str) -> float:
        """Seconds for which this online tenant keeps an idle card."""
        fixed, member = self._fixed_delay(tenant), self.roster.members.get(tenant)
        if fixed is not None:
            return fixed
        return self._gaps[tenant].delay if member is not None and member.app_class is AppClass.ONLINE else 0.0

    def _fixed_delay(self, tenant: str) -> float | None:
        """None: it is learned. The latency that a tenant accepts says more than the node's delay, which is everybody's;
        and a delay that is set for the node more than the tenant's own."""
        member = self.roster.members.get(tenant)
        if member is not None and member.latency is not None:
            return None
        if self.rules.release_delay is not None:
            return self.rules.release_delay
        return None if member is None else member.release_delay

    def missed_of(self, tenant: str) -> int:
        """Seconds in which this online tenant had more latency added than it accepts, by what switches cost; 0 where it
        did not say what it accepts."""
        member, gaps = self.roster.members.get(tenant), self._gaps.get(tenant)
        return 0 if gaps is None or member is None or member.latency is None else gaps.missed

    def taken_by(self, tenant: str) -> tuple[int, int]:
        """How many requests an online tenant had, as far as can be told, and how often it took the card for them."""
        member, gaps = self.roster.members.get(tenant), self._gaps.get(tenant)
        if gaps is None or member is None or member.app_class is not AppClass.ONLINE:
            return 0, 0
        return gaps.requests, gaps.takings

    def takes_turns(self, tenant: str) -> bool:
        """Whether it and others wait for each short piece of their work, and so hand the card over again and again."""
        if not self._pieces:
            return False
        return any(context.tenant == tenant and context.active for context in self.roster.contexts.values())

    def _bound(self, context: Context) -> bool:
        """Whether windows bind it. Those in front of offline work they do not while online work is there."""
        if self.rules.isolation is not Isolation.FIXED_SHARE:
            return False
        return not self._has_online() or self._class_of(context) is AppClass.OFFLINE

    def _pays(self, context: Context) -> bool:
        return self._debts.pays(context.tenant) and self._bound(context)

    def _step_debts(self, contexts: Sequence[Context], now: float) -> None:
        if self.rules.isolation is not Isolation.FIXED_SHARE:
            self._debts = Debts()
            return
        for context in contexts:
            if context.active:
                self._debts.collect(context.tenant)
        here = [context.tenant for context in contexts if self._bound(context)]
        self._debts.step(self.roster.quotas([*here, *(self._debts.debtors() & self.roster.members.keys())]), now)

    def _runs_dry(self, front: Sequence[Context]) -> bool:
        """Under burst-share: whether all that have work have it nearly always, and some with gaps, in which its queue
        is dry. A tenant that is idle for longer would waste its windows: with slices others have that time."""
        active = [context for context in front if context.active]
        if self.rules.isolation is not Isolation.BURST_SHARE or self._has_online():
            return False
        if len({context.tenant for context in active}) < 2 or not all(context.preemptible for context in front):
            return False
        least = STILL_BUSY if self._dry else BUSY
        if any(context.pauses for context in active):
            return False
        return least <= min(context.part_busy for context in active) < NEVER_DRY

    def _turns_in_front(self, front: Sequence[Context]) -> Isolation | None:
        """By which policy those in front take turns; None: they all run, and the hardware divides."""
        if self._has_online():
            return None
        if self.rules.isolation is Isolation.BURST_SHARE and all(context.preemptible for context in front):
            return Isolation.FIXED_SHARE if self._dry else None
        return None if self.rules.isolation is Isolation.BEST_EFFORT else self.rules.isolation

    def _waiting_behind(self, front: Sequence[Context], behind: Sequence[Context], now: float) -> set[str]:
        """Those with work that may not run now. One may: offline, or ordinary if there is ordinary work beside it."""
        offline = [context for context in behind if context.active]
        self._note_online(front, offline, now)
        if self.held:
            self._behind.hold(self._weights_behind(offline), now)
            self._capped.hold(now)
            return {context.name for context in offline}
        ordinary = [context for context in front if context.active and self._class_of(context) is AppClass.NORMAL]
        working = [*ordinary, *offline] if offline else []
        paying = {context.name for context in working if self._pays(context)}
        weights = self._weights_behind([context for context in working if context.name not in paying])
        if self.rules.isolation is Isolation.FIXED_SHARE:
            self._behind = Rotation()
            return paying | weights.keys() - {self._capped.step(weights, now)}
        self._capped = Windows()
        turn = self._behind.step(weights, now)
        return weights.keys() - {turn, self._lent_to(turn, ordinary, offline)}

    def _lent_to(self, turn: str | None, ordinary: Sequence[Context], offline: Sequence[Context]) -> str | None:
        """Who gets what an ordinary context leaves of its turn: the offline one that is next.

        Only if it was seen without work in this turn: beside one that is always busy each slice's end costs a switch.
        """
        if self._lent != turn:
            self._lent = None
        for context in ordinary:
            if context.name == turn and context.reading is not None and not context.reading.outstanding:
                self._lent = turn
        if self._lent is None:
            return None
        return self._behind.least(context.name for context in offline if context.preemptible)

    def _weights_behind(self, working: Sequence[Context]) -> dict[str, float]:
        """A tenant's weight is split over its processes: the promise is per tenant."""
        processes = Counter(context.tenant for context in working)
        if self.rules.isolation is Isolation.BEST_EFFORT:
            quotas = dict.fromkeys(processes, 1.0)
        else:
            classes = (AppClass.NORMAL, AppClass.OFFLINE)
            quotas = self.roster.quotas(context.tenant for kind in classes for context in self.roster.of_class(kind))
        seldom = 1.0 if self.rules.isolation is Isolation.FIXED_SHARE else _SELDOM  # a window takes nothing from others
        return {
            context.name: quotas[context.tenant] / processes[context.tenant] * (seldom if context.doubtful else 1.0)
            for context in working
        }

    def _note_online(self, front: Sequence[Context], offline: Sequence[Context], now: float) -> None:
        """Whether offline work is held, by whom, and from whom the card was just taken."""
        online = [context for context in front if self._class_of(context) is AppClass.ONLINE]
        # Only a closed gate takes the card from those that are not preemptible.
        least = 0.0 if all(context.preemptible for context in offline) else IDLE_AFTER
        delays = {context.name: max(least, self.delay_of(context.tenant)) for context in online}
        latest = max((context.last_active for context in online), default=float("-inf"))
        last = max(online, key=lambda one: (one.last_active + delays[one.name], one.last_active), default=None)
        by, delay = (None, 0.0) if last is None else (last.tenant, delays[last.name])
        release = float("-inf") if last is None else last.last_active + delay
        was_held, held = self.held, bool(offline) and delay > 0 and now < release
        self.held_by = by if held else None
        self._release = max(release, now + self.look) if held else FOREVER
        active = now - latest < max(delay, IDLE_AFTER)
        taken = held and not was_held if delay > 0 else active and not self._online_was_active
        if taken:
            self.preemptions.update(losers := {context.tenant for context in offline})
            self.takings.append(Taken(now, by, tuple(losers)))
        self._online_was_active = active

    def _interval(self, front: Sequence[Context], behind: Sequence[Context]) -> float:
        """Seconds until activity is read again. An idle context wakes us by itself."""
        if all(context.quiet for context in (*front, *behind)):
            return REST
        if self._pieces:
            return pieces.LOOK
        watched = [*front, *behind] if behind or self._turns_in_front(front) else []
        return DOZE if all(context.quiet for context in watched) else SAMPLE
