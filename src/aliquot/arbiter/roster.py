"""Who is on the card, and who was active lately."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from aliquot.model.claim import AppClass
from aliquot.model.device import CORE_MILLI

# A context is quiet after this long without a launch or a wait, counted only while it may run: one that is paused
# cannot show that it has work. Short, since another's turn waits for it; longer than the gaps inside a training step.
IDLE_AFTER = 0.05
# A quiet one that has not seen its work done may be in a long kernel, or may have forgotten to ask. After this long,
# the latter: it still takes turns, or a kernel without end would stop the others for good; but seldom.
DOUBT_AFTER = 0.5
# A context that is being made must not be paused: on an H200 one in two that were never ran again. It is let alone for
# this long after it last registered something, but not for ever.
SETTLING = 0.3
LONGEST_SETTLING = 3.0
# Slices are shared among the contexts that were active within this; longer, since each change costs an RM call.
LATELY = 1.0
# A queue that runs dry for a moment loses the rest of its slice. Slices are right for those that always have work in
# the queue, windows for those with gaps that have work nearly all the time.
NEVER_DRY = 0.9995
BUSY, STILL_BUSY = 0.75, 0.6
# Between two batches of work there is a moment without any, and a reading may fall into it.
BETWEEN_BATCHES = 0.005
_MEMORY = 0.3  # seconds over which that mean is taken
_LEAST = 0.01  # the part of a card that is left to a tenant beside those who booked all of it


@dataclass(frozen=True, slots=True)
class Member:
    """A tenant of the card: its class, its quota of compute (None: it asked for none), the latency in seconds that
    online work accepts to have added (None: it did not say), and its own release delay (None: learned)."""

    tenant: str
    app_class: AppClass
    quota_milli: int | None
    latency: float | None = None
    release_delay: float | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What a process's line on the page says: launches so far, whether a thread is inside a call that waits, whether
    there is work that it has not yet seen done; and, since the last reading, in seconds: what it had of the card
    (account.py), and how long it had work."""

    launches: int
    waiting: bool
    outstanding: bool = False
    had: float = 0.0
    busy: float = 0.0


@dataclass(slots=True)
class Context:
    """One process on the card."""

    name: str
    tenant: str
    preemptible: bool = True  # by the hardware, in mid-kernel; otherwise it stops at its next launch at the earliest
    reading: Reading | None = None
    idle_for: float = IDLE_AFTER  # enabled time without activity; a new one has shown none yet
    last_active: float = float("-inf")
    came: float = float("-inf")
    settles: float = float("-inf")
    settling: bool = False
    part_busy: float = 0.0  # of the time in which it could run, lately: how much of it it had work

    def ran(self, reading: Reading, elapsed: float) -> None:
        """What it did in a stretch in which it could run."""
        self.part_busy += elapsed / (elapsed + _MEMORY) * (min(1.0, reading.busy / elapsed) - self.part_busy)

    def touched(self, now: float) -> None:
        """It is being made, or was added to."""
        self.settles = min(now + SETTLING, self.came + LONGEST_SETTLING)

    @property
    def quiet(self) -> bool:
        """Whether nothing was heard of it lately: its next launch is worth a call."""
        return self.idle_for >= IDLE_AFTER

    @property
    def resting(self) -> bool:
        """Whether it did nothing since the last reading and has nothing to do."""
        return self.quiet or (self.idle_for > 0 and self.reading is not None and not self.reading.outstanding)

    @property
    def pauses(self) -> bool:
        """Whether it has had nothing to do for longer than between two batches."""
        return self.resting and self.idle_for >= BETWEEN_BATCHES

    @property
    def active(self) -> bool:
        """Whether it has work that may be stopped, as far as is known."""
        return not self.settling and self.has_work

    @property
    def has_work(self) -> bool:
        """The same, whether it may be stopped or not."""
        return not self.quiet or (self.reading is not None and self.reading.outstanding)

    @property
    def doubtful(self) -> bool:
        """Whether it is more likely that it has none."""
        return self.idle_for >= DOUBT_AFTER


@dataclass(slots=True)
class Roster:
    """Members and contexts. A context whose tenant is not known is ignored until it is."""

    members: dict[str, Member] = field(default_factory=dict)
    contexts: dict[str, Context] = field(default_factory=dict)
    _read_at: float | None = None

    def of_class(self, app_class: AppClass) -> list[Context]:
        """In a steady order, so that equal states give equal orders."""
        return [context for context in self._known() if self.members[context.tenant].app_class is app_class]

    def read(self, readings: Mapping[str, Reading], enabled: Iterable[str], now: float) -> None:
        """Take in what the pages say now. Contexts that were not enabled since the last time do not age."""
        elapsed, self._read_at = self.unread(now), now
        running = set(enabled)
        for name, reading in readings.items():
            context = self.contexts.get(name)
            if context is None:
                continue
            before, context.reading = context.reading, reading
            if before is not None and name in running and elapsed > 0:
                context.ran(reading, elapsed)
            if reading.waiting or (before is not None and before.launches != reading.launches):
                self.touch(name, now)
            elif before is not None and before.waiting:
                # It launched nothing since then, so it was idle only at the end; if it waited for kernels. Copies are
                # not counted as work: such a wait may have ended just now.
                idle = max(0.0, elapsed - reading.busy) if reading.busy and not reading.outstanding else 0.0
                self.touch(name, now - idle)
                context.idle_for = idle if name in running else 0.0
            elif name in running:
                context.idle_for += elapsed

    def unread(self, now: float) -> float:
        """Seconds since the last reading."""
        return 0.0 if self._read_at is None else max(0.0, now - self._read_at)

    def touch(self, name: str, now: float) -> None:
        """The context has work."""
        context = self.contexts.get(name)
        if context is not None:
            context.idle_for, context.last_active = 0.0, now

    def lately(self, contexts: Iterable[Context], now: float) -> list[Context]:
        """Those active within the last second; all of them if none was, so that the first to wake is served well."""
        every = list(contexts)
        return [context for context in every if now - context.last_active < LATELY] or every

    def quotas(self, tenants: Iterable[str]) -> dict[str, float]:
        """Each tenant's part of the card, 0 to 1, never more than 1 together.

        An offline tenant's quota is a part of what the quotas of other classes leave. Tenants that asked for no quota
        share evenly what is left after that. Both get at least a hundredth.
        """
        names = list(dict.fromkeys(tenants))
        offline = {name for name in names if self.members[name].app_class is AppClass.OFFLINE}
        asked = {name: milli / CORE_MILLI for name in names if (milli := self.members[name].quota_milli) is not None}
        given = {name: part for name, part in asked.items() if name not in offline}
        silent = [name for name in names if name not in asked]
        left = max(0.0, 1.0 - sum(given.values()))
        greedy = {name: part * left for name, part in asked.items() if name in offline}
        rivals = sum(name not in offline for name in silent)  # each gets as much as an offline tenant at least
        most = left * len(greedy) / max(1, len(greedy) + rivals)
        scale = min(1.0, most / max(sum(greedy.values()), 1e-9))
        given |= {name: max(part * scale, min(_LEAST, asked[name])) for name, part in greedy.items()}
        if silent:
            given |= dict.fromkeys(silent, max(_LEAST, (1.0 - sum(given.values())) / len(silent)))
        total = sum(given.values())
        return {name: given[name] / max(1.0, total) for name in names}

    def _known(self) -> Iterator[Context]:
        return (context for _, context in sorted(self.contexts.items()) if context.tenant in self.members)
