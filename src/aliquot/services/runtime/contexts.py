"""Who is on a card: each context with what we hold of it, each tenant with what is told of it.

All of it is the card's own thread's (cardworker.py): nobody else touches it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace

from aliquot.adapters.gpu import rm
from aliquot.adapters.gpu.page import MOST, Page, Use
from aliquot.adapters.host import processes
from aliquot.arbiter.roster import Member
from aliquot.model.tenant import Level, State

_COUNT = 5.0  # seconds between two readings of whole pages
_STILL = 0.3  # a wait this long may be that of a process that was stopped
_LOOK = 0.1  # seconds between two looks whether it is
_TELLING = (State.RUNNING, State.PAUSED, State.WAITING, State.IDLE)


@dataclass(slots=True)
class Seat:
    """A context on the card: which process, which line of which page, which groups."""

    name: str
    tenant: str
    pid: int
    page: Page
    slot: int
    card: int  # index on the page
    groups: tuple[rm.Group, ...]
    level: Level
    joined: float = 0.0
    checks: list[float] = field(default_factory=list)
    last: Use | None = None
    paused_since: float | None = None
    rescued: float = 0.0  # when it was last found to have gone on by itself
    stopped: set[tuple[int, int]] = field(default_factory=set)  # (client, channel) that we disabled
    moved: float = 0.0  # when it last launched something or did not wait
    looked: float = 0.0  # when it was last looked at whether the process is stopped, and whether it was
    frozen: bool = False

    def same(self, other: Seat) -> bool:
        """Whether all that we control is the same, only told again."""
        return (self.slot, self.level, _handles(self.groups)) == (other.slot, other.level, _handles(other.groups))

    def close(self) -> None:
        """Let go of its files: as long as we hold them, the driver keeps the dead process's memory."""
        for fd in {group.fd for group in self.groups}:
            with contextlib.suppress(OSError):
                os.close(fd)
        self.groups = ()


@dataclass(slots=True)
class Tally:
    """What is told of a tenant on this card for as long as it is there."""

    member: Member
    page: Page
    card: int
    limit: int | None
    paused_seconds: float = 0.0
    counted: float = float("-inf")  # when the whole page was last read, and which slots had a seat
    seats: frozenset[int] = frozenset()
    others: tuple[int, int] = (0, 0)  # what it then had of processes that have no seat: bytes used, and refusals
    refused: int = 0  # so far; a process takes its own number with it when it ends
    on_page: int = 0  # refusals, when last looked

    def totals(self, seats: Sequence[Seat], now: float) -> tuple[int, int]:
        """Bytes in use, and allocations refused so far. Of those with a seat as of this round; the others are looked
        for when a seat came or went, and now and then: the page is large, and there are as many as Pods on the card."""
        uses = {seat.slot: seat.last for seat in seats if seat.last is not None}  # whatever they claim: once each
        used = sum(use.memory + use.overhead for use in uses.values())
        refused = sum(use.refused for use in uses.values())
        if now - self.counted >= _COUNT or uses.keys() != self.seats:
            self.counted, self.seats = now, frozenset(uses)
            all_used, all_refused = self.page.totals(self.card)
            self.others = (max(0, all_used - used), max(0, all_refused - refused))
        on_page = refused + self.others[1]
        self.refused += max(0, on_page - self.on_page)
        self.on_page = on_page
        return min(MOST, used + self.others[0]), self.refused

    def paused_until(self, now: float, seats: Iterable[Seat]) -> float:
        """Seconds that it was held off the card, with the pauses that are not over."""
        return self.paused_seconds + sum(now - seat.paused_since for seat in seats if seat.paused_since is not None)


def most_telling(states: Set[State]) -> State:
    """Of a tenant's processes, the one that tells most."""
    return next((state for state in _TELLING if state in states), State.IDLE)


def weakest(levels: Set[Level]) -> Level:
    """How it can be held off the card, all of it."""
    return next((level for level in (Level.GATE, Level.HARDWARE) if level in levels), Level.NONE)


def _handles(groups: Iterable[rm.Group]) -> set[tuple[int, int, int, tuple[int, ...]]]:
    return {(group.client, group.group, group.subdevice, tuple(sorted(group.channels))) for group in groups}


def waits(seat: Seat, use: Use, now: float) -> bool:
    """Whether a thread of it waits for the card. A process that was stopped inside a wait (SIGSTOP, a debugger) can
    not say that the wait is over: it would keep the card for as long as it is stopped."""
    if not use.waiting or seat.last is None or use.launches != seat.last.launches:
        seat.moved, seat.frozen = now, False
    elif now - seat.moved >= _STILL and now - seat.looked >= _LOOK:
        seat.looked, seat.frozen = now, processes.is_stopped(seat.pid)
    return use.waiting > 0 and not seat.frozen


def stop(seat: Seat, group: rm.Group) -> None:
    """Disable those of its channels that are not yet: once is enough, and nobody knows what twice does."""
    fresh = tuple(channel for channel in group.channels if (group.client, channel) not in seat.stopped)
    rm.set_paused(replace(group, channels=fresh), True)
    seat.stopped |= {(group.client, channel) for channel in fresh}


def on_all(groups: Iterable[rm.Group], control: Callable[[rm.Group], None]) -> None:
    """On each, although it fails on some: one that is gone must not leave the others as they were. Raises the worst."""
    failed: list[rm.RmError] = []
    for group in groups:
        try:
            control(group)
        except rm.RmError as error:
            failed.append(error)
    if failed:
        raise min(failed, key=lambda error: error.gone)


def busy_ns(use: Use, stamp: int) -> int:
    """Nanoseconds in which it had work, up to that time."""
    return use.busy_ns + (max(0, stamp - use.busy_since_ns) if use.busy_since_ns else 0)
