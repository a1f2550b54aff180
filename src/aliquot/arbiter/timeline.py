"""Who held a card in the last minute, in steps of a tenth of a second: what a dashboard draws.

The card's loop only appends records to a queue of bounded length; they are folded here, in another thread, now and
then. Time is the loop's own clock. A bucket is named by its number since that clock's zero, so that what is sent twice
is the same both times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

_PER_SECOND = 10
STEP = 1 / _PER_SECOND  # seconds
BUCKETS = 600  # kept
MOST_RECORDS = 4096  # between two foldings: ten a second while nothing is to be decided, a hundred while something is
_LAG = 3  # buckets that may still change: a stretch is recorded when it is over
_MOST_MARKS = 256


@dataclass(frozen=True, slots=True)
class Came:
    """A context registered on the card."""

    context: str
    tenant: str
    offline: bool


@dataclass(frozen=True, slots=True)
class Left:
    """A context has left the card."""

    context: str


@dataclass(frozen=True, slots=True)
class Taken:
    """Work in front took the card. `by` was active last; `of` are the tenants that lost it."""

    at: float
    by: str | None
    of: tuple[str, ...]


# From, to, the part of it that each context had which could run, and whether offline work was held off the card.
Stretch = tuple[float, float, Mapping[str, float], bool]
Record = Stretch | Came | Left | Taken


@dataclass(frozen=True, slots=True)
class Track:
    """One tenant, a value per bucket: percent of the card, and whether it was held off most of the time."""

    shares: tuple[int, ...]
    paused: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """Buckets `first` to before `end`."""

    first: int
    end: int
    tracks: Mapping[str, Track]  # by tenant
    marks: tuple[Taken, ...]


@dataclass(slots=True)
class Timeline:
    """The last minute of one card."""

    _contexts: dict[str, Came] = field(default_factory=dict)
    _buckets: dict[int, dict[str, list[float]]] = field(default_factory=dict)  # by tenant: seconds held, seconds paused
    _marks: deque[Taken] = field(default_factory=lambda: deque(maxlen=_MOST_MARKS))

    def add(self, records: Iterable[Record]) -> None:
        """Add records in the order in which they were made."""
        for record in records:
            match record:
                case Came():
                    self._contexts[record.context] = record
                case Left():
                    self._contexts.pop(record.context, None)
                case Taken():
                    self._marks.append(record)
                case (began, ended, parts, held):
                    self._fold(max(began, ended - STEP * BUCKETS), ended, parts, held)
        if len(self._buckets) > BUCKETS:  # also while no viewer asks
            self._forget(max(self._buckets) - BUCKETS)

    def keep(self, tenants: Set[str]) -> None:
        """Only these are there now. That others left was not heard where too many records came between two foldings."""
        for context in [name for name, came in self._contexts.items() if came.tenant not in tenants]:
            del self._contexts[context]

    def drawn(self) -> set[str]:
        """The tenants that are still to be seen on it."""
        seen = {tenant for cell in self._buckets.values() for tenant in cell}
        marked = {tenant for mark in self._marks for tenant in (mark.by, *mark.of) if tenant is not None}
        return seen | marked | {came.tenant for came in self._contexts.values()}

    def window(self, since: int | None, now: float) -> Window:
        """The buckets from `since` on (None: all that are kept) that will not change any more."""
        end = int(now * _PER_SECOND) - _LAG
        oldest = end - BUCKETS
        first = min(end, max(oldest, since if since is not None else oldest))
        self._forget(oldest)
        cells = [self._buckets.get(at, {}) for at in range(first, end)]
        tenants = {context.tenant: None for context in self._contexts.values()}
        tenants |= dict.fromkeys(tenant for cell in cells for tenant in cell)
        tracks = {tenant: _track([cell.get(tenant) for cell in cells]) for tenant in tenants}
        return Window(first, end, tracks, tuple(mark for mark in self._marks if first <= mark.at * _PER_SECOND < end))

    def _fold(self, began: float, ended: float, parts: Mapping[str, float], held: bool) -> None:
        shares: dict[str, float] = {}
        for context, part in parts.items():
            came = self._contexts.get(context)
            if came is not None and part:
                shares[came.tenant] = shares.get(came.tenant, 0.0) + part
        paused = {context.tenant for context in self._contexts.values() if held and context.offline} - {
            self._contexts[context].tenant for context in parts if context in self._contexts
        }
        if not shares and not paused:
            return
        for at in range(int(began * _PER_SECOND), int(ended * _PER_SECOND) + 1):
            length = min(ended, (at + 1) / _PER_SECOND) - max(began, at / _PER_SECOND)
            if length <= 0:
                continue  # it ends where the bucket begins
            cell = self._buckets.setdefault(at, {})
            for tenant, share in shares.items():
                cell.setdefault(tenant, [0.0, 0.0])[0] += share * length
            for tenant in paused:
                cell.setdefault(tenant, [0.0, 0.0])[1] += length

    def _forget(self, oldest: int) -> None:
        for at in [at for at in self._buckets if at < oldest]:
            del self._buckets[at]
        while self._marks and self._marks[0].at * _PER_SECOND < oldest:
            self._marks.popleft()


def _track(cells: list[list[float] | None]) -> Track:
    return Track(
        tuple(0 if cell is None else min(100, round(cell[0] / STEP * 100)) for cell in cells),
        tuple(0 if cell is None else int(cell[1] >= STEP / 2) for cell in cells),
    )
