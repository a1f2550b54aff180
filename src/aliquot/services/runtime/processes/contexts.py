"""The contexts on a card, and the totals of its tenants. Only the card's own thread (cards/cardloop) touches them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

from aliquot.adapters.gpu import rm
from aliquot.adapters.gpu.page import MOST, Page, Use
from aliquot.adapters.host.process import processes
from aliquot.arbiter.roster import Member
from aliquot.model.tenant import Level, State

_COUNT = 5.0  # seconds between two readings of whole pages
_STILL = 0.3  # a wait this long may be that of a process that was stopped
_STOP_CHECK = 0.1  # seconds between two checks whether it is
_MOST_ACTIVE_FIRST = (State.RUNNING, State.PAUSED, State.WAITING, State.IDLE)


@dataclass(slots=True)
class Context:
    """A process on the card: its slot on its tenant's page, and its channel groups."""

    name: str
    tenant: str
    pid: int
    page: Page
    slot: int
    card: int  # index on the page
    groups: tuple[rm.Group, ...]
    level: Level
    joined: float = 0.0
    checks: list[float] = field(default_factory=list)  # when its slice is read back
    last: Use | None = None
    resumed_itself: float = 0.0  # when it was last found running although paused
    stopped: set[tuple[int, int]] = field(default_factory=set)  # (client, channel) that we disabled
    drained: float = 0.0  # when what it had launched before its gate closed was done
    moved: float = 0.0  # when it last launched something or did not wait
    stop_checked: float = 0.0  # when it was last checked whether the process is stopped ...
    frozen: bool = False  # ... and whether it was
    draining: bool = False  # its memory leaves the card: it finishes what it submitted, and is not paused
    member: str = ""  # the tenant whose process it is, where `tenant` is that of its group
    parts: list[Context] = field(default_factory=list)  # of an MPS server: the processes that work through it
    all_launches: int = 0  # of those, so far
    all_busy_ns: int = 0

    @property
    def owner(self) -> str:
        """The tenant whose process it is."""
        return self.member or self.tenant

    @property
    def is_part(self) -> bool:
        """Whether it works through the channel groups of its group's MPS server."""
        return bool(self.member) and not self.groups

    def same(self, other: Context) -> bool:
        """Whether all that we control is the same, and it only registered again."""
        return (self.slot, self.level, _handles(self.groups)) == (other.slot, other.level, _handles(other.groups))

    def inherit(self, before: Context) -> None:
        """Go on where the same process's former registration ended."""
        channels = {(group.client, channel) for group in self.groups for channel in group.channels}
        self.stopped = before.stopped & channels
        self.joined, self.last = before.joined, before.last
        self.parts, self.all_launches, self.all_busy_ns = before.parts, before.all_launches, before.all_busy_ns

    def waits(self, use: Use, now: float) -> bool:
        """Whether a thread of it waits for the card. A process that was stopped inside a wait (SIGSTOP, a debugger)
        cannot report the end of the wait: it would keep the card for as long as it is stopped."""
        if not use.waiting or self.last is None or use.launches != self.last.launches:
            self.moved, self.frozen = now, False
        elif now - self.moved >= _STILL and now - self.stop_checked >= _STOP_CHECK:
            self.stop_checked, self.frozen = now, processes.is_stopped(self.pid)
        return use.waiting > 0 and not self.frozen

    def close(self) -> None:
        """Close its files: as long as we hold them, the driver keeps the dead process's memory."""
        for fd in {group.fd for group in self.groups}:
            with contextlib.suppress(OSError):
                os.close(fd)
        self.groups = ()


@dataclass(slots=True)
class TenantTotals:
    """A tenant on this card, and what is counted for it as long as it is there."""

    member: Member
    page: Page
    card: int
    limit: int | None
    paused_seconds: float = 0.0
    group: str = ""  # the tenant that has its time; itself, if it is a group
    booked: int = 0  # bytes promised to it; of a card held whole all of them
    most: int = MOST  # bytes that are believed: what a page says is on the bill, and in the sums of all
    used: int = 0  # bytes at the last `measure`
    counted: float = float("-inf")  # when the whole page was last read, and which slots had a context
    slots: frozenset[int] = frozenset()
    others: tuple[int, int] = (0, 0)  # what processes without a context had then: bytes used, and refusals
    refused: int = 0  # so far; a process takes its own number with it when it ends
    on_page: int = 0  # refusals at the last reading
    gaps: tuple[int, ...] | None = None  # its counts of gaps, as last read

    def measure(self, contexts: Sequence[Context], now: float) -> tuple[int, int]:
        """Bytes in use, and allocations refused so far. Contexts count as of this round. Other processes are counted
        when a context came or went, and now and then: the page is large, and there is one per Pod on the card."""
        uses = {context.slot: context.last for context in contexts if context.last is not None}  # each slot once
        used = sum(use.memory + use.overhead for use in uses.values())
        refused = sum(use.refused for use in uses.values())
        if now - self.counted >= _COUNT or uses.keys() != self.slots:
            self.counted, self.slots = now, frozenset(uses)
            all_used, all_refused = self.page.totals(self.card)
            self.others = (max(0, all_used - used), max(0, all_refused - refused))
        on_page = refused + self.others[1]
        self.refused += max(0, on_page - self.on_page)
        self.on_page = on_page
        self.used = min(self.most, used + self.others[0])
        return self.used, self.refused


def most_active(states: Set[State]) -> State:
    """The state that is shown for a tenant with processes in these."""
    return next((state for state in _MOST_ACTIVE_FIRST if state in states), State.IDLE)


def weakest(levels: Set[Level]) -> Level:
    """How all of its processes can be held off the card."""
    return next((level for level in (Level.GATE, Level.HARDWARE) if level in levels), Level.NONE)


def busy_ns(use: Use, stamp: int) -> int:
    """Nanoseconds in which it had work, up to that time."""
    return use.busy_ns + (max(0, stamp - use.busy_since_ns) if use.busy_since_ns else 0)


def _handles(groups: Iterable[rm.Group]) -> set[tuple[int, int, int, tuple[int, ...]]]:
    return {(group.client, group.group, group.subdevice, tuple(sorted(group.channels))) for group in groups}
