"""Who pays for a card's time. The time of a card is divided without a rest: tenants, idle, unknown, unmeasured.

A card's loop measures stretches (`CardBill`); `Bill` adds them up by payer, card and hour, and knows what is not on the
disk yet. Times are monotonic; the wall clock only chooses the hour, so a clock that is set moves time between hours
and neither loses nor invents any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from aliquot.model.usage import (
    IDLE,
    UNKNOWN,
    UNMEASURED,
    Mark,
    Payer,
    Spent,
    Stretch,
    UsageRow,
    as_others,
    owner_of,
    place_of,
)

HOUR = 3600
MOST_NAMES = 200  # of one owner's tenants in an hour that are listed by name: a row on each card, a line of the metrics
FORGET = 3600.0  # seconds after which the counters of a payer that is gone are no longer shown

Key = tuple[str, Payer]  # card, payer


def divide_spending(
    tenants: Mapping[str, str], busy: Mapping[str, float], parts: Mapping[str, float], lost: Mapping[str, float]
) -> dict[str, Spent]:
    """One second of a card by tenant. `tenants` names the tenant of each context; `busy` is the part of the time in
    which a context had work, `parts` what it had of the card, `lost` what online work took from a tenant."""
    spent = {tenant: Spent() for tenant in tenants.values()}
    wanted = dict.fromkeys(spent, 0.0)
    for context, tenant in tenants.items():
        spent[tenant].gpu += parts.get(context, 0.0)
        wanted[tenant] = max(wanted[tenant], min(1.0, busy.get(context, 0.0)))
    for tenant, one in spent.items():
        one.preempted = lost.get(tenant, 0.0)
        one.waiting = max(0.0, wanted[tenant] - one.gpu - one.preempted)
    return spent


@dataclass(slots=True)
class CardBill:
    """What was measured on one card since the last `take`. For one thread at a time."""

    _open: Stretch | None = None

    def add(self, began: float, ended: float, spent: Mapping[str, Spent]) -> None:
        """A stretch that follows the one before. `spent` is of one second of it: all rates are even within it."""
        if ended <= began:
            return
        if self._open is None:
            self._open = Stretch(began, began)
        stretch, length = self._open, ended - began
        stretch.ended = ended
        stretch.idle += length * max(0.0, 1.0 - sum(one.gpu for one in spent.values()))
        for tenant, one in spent.items():
            stretch.tenants.setdefault(tenant, Spent()).add(
                Spent(
                    one.gpu * length,
                    one.preempted * length,
                    one.waiting * length,
                    one.booked * length,
                    one.used * length,
                )
            )

    def take(self) -> Stretch | None:
        """Everything since the last call; None: nothing was measured."""
        taken, self._open = self._open, None
        return taken


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What goes to the disk in one transaction: the increase since the last one, and until when it counts."""

    rows: tuple[UsageRow, ...]
    marks: Mapping[str, Mark]  # by card
    shown_since: float  # counters of payers that were last seen before are forgotten


@dataclass(slots=True)
class Bill:
    """See the head of the file. `interval`: seconds between two checkpoints, the most that a killed daemon loses."""

    boot: str
    interval: float
    marks: dict[str, Mark]  # as they are on the disk
    counters: dict[Key, Spent] = field(default_factory=dict)  # never decrease while they are shown
    seen: dict[Key, float] = field(default_factory=dict)  # when a counter last grew, seconds since 1970
    _pending: dict[tuple[int, str, Payer], Spent] = field(default_factory=dict)
    _until: dict[str, tuple[float, float]] = field(default_factory=dict)  # by card: monotonic, wall
    _cards: Counter[Payer] = field(default_factory=Counter)  # counters by payer
    _names: Counter[int | str] = field(default_factory=Counter)  # payers by owner
    _namespaces: Counter[tuple[int | str, str]] = field(default_factory=Counter)  # payers by owner and namespace

    def __post_init__(self) -> None:
        self._cards.update(payer for _, payer in self.counters)
        self._names.update(owner_of(payer) for payer in self._cards)
        self._namespaces.update(place_of(payer) for payer in self._cards)

    def add(self, uuid: str, stretch: Stretch, payers: Mapping[str, Payer], wall: float) -> None:
        """`payers` by tenant id; `wall` is the time of the stretch's end."""
        if uuid not in self._until:
            self._close_gap(uuid, stretch, wall)
        self._until[uuid] = (stretch.ended, wall)
        self._spend(uuid, IDLE, Spent(gpu=stretch.idle), wall)
        for tenant, spent in stretch.tenants.items():
            self._spend(uuid, self._bounded(payers.get(tenant, UNKNOWN)), spent, wall)

    def _bounded(self, payer: Payer) -> Payer:
        """The payer; or the rest of its owner's, if those that were seen in the last hour are too many. The rest keeps
        a namespace that the owner has on the bill already: there are no more of these than names."""
        if payer.kind or payer in self._cards or self._names[owner_of(payer)] < MOST_NAMES:
            return payer
        return as_others(payer, keep_namespace=self._namespaces[place_of(payer)] > 0)

    def _close_gap(self, uuid: str, stretch: Stretch, wall: float) -> None:
        """The time since the last daemon's mark. A daemon that was killed had measured up to an interval of it."""
        mark = self.marks.get(uuid)
        if mark is None:
            return
        began = wall - (stretch.ended - stretch.began)
        gap = stretch.began - mark.monotonic if mark.boot == self.boot else began - mark.wall
        gap = max(0.0, gap)  # after a boot the wall clock may be behind
        unknown = 0.0 if mark.clean else min(gap, self.interval)
        for payer, seconds in ((UNKNOWN, unknown), (UNMEASURED, gap - unknown)):
            for at, part in _by_hour(began - (gap if payer is UNKNOWN else gap - unknown), seconds):
                self._spend(uuid, payer, Spent(gpu=part), at)

    def _spend(self, uuid: str, payer: Payer, spent: Spent, wall: float) -> None:
        key = (int(wall // HOUR) * HOUR, uuid, payer)
        self._pending.setdefault(key, Spent()).add(spent)
        if (uuid, payer) not in self.counters:
            self._names[owner_of(payer)] += payer not in self._cards
            self._namespaces[place_of(payer)] += payer not in self._cards
            self._cards[payer] += 1
        self.counters.setdefault((uuid, payer), Spent()).add(spent)
        self.seen[uuid, payer] = wall

    def checkpoint(self, wall: float, *, clean: bool = False) -> Checkpoint:
        """All that is not on the disk. It counts as written until `failed`."""
        rows = tuple(UsageRow(*key, spent) for key, spent in self._pending.items())
        self._pending = {}
        marks = {uuid: Mark(self.boot, *until, clean) for uuid, until in self._until.items()}
        gone = [key for key, seen in self.seen.items() if seen < wall - FORGET and not key[1].kind]
        for key in gone:
            del self.seen[key], self.counters[key]
            self._cards[key[1]] -= 1
            self._names[owner_of(key[1])] -= not self._cards[key[1]]
            self._namespaces[place_of(key[1])] -= not self._cards[key[1]]
        self._cards += Counter()  # forgets those with none
        self._names += Counter()
        self._namespaces += Counter()
        return Checkpoint(rows, marks, wall - FORGET)

    def failed(self, checkpoint: Checkpoint) -> None:
        """It is not on the disk after all: the next one has it too."""
        for row in checkpoint.rows:
            self._pending.setdefault(row[:3], Spent()).add(row.spent)

    def pending(self) -> list[UsageRow]:
        """What is not on the disk yet."""
        return [UsageRow(*key, spent) for key, spent in self._pending.items()]


def _by_hour(began: float, seconds: float) -> Iterable[tuple[float, float]]:
    """A stretch of wall time in parts that lie in one hour each: where it begins, and its seconds."""
    while seconds > 0:
        part = min(seconds, HOUR - began % HOUR)
        yield began, part
        began, seconds = began + part, seconds - part
