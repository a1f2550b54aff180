"""How long online work keeps a card that it left idle, learned from its own gaps: release-delay `auto`.

Inside a request there are gaps: a server of a language model waits for each token and does some work of its own before
it launches the next. Between requests there are longer ones. Letting batch work into a gap costs the next launch a
switch; keeping it out wastes the gap. So each delay has a price, given the gaps seen lately, and the cheapest is
chosen: a little more than the gaps inside requests where there are many of them, nothing where a request is one piece
of work, everything where requests follow each other closely.

The tenant's library measures each gap where it happens: from the return of the call that saw the work done to the next
launch (shim/work.c). Here they come as counts by length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

SWITCH = 0.0003  # seconds that a switch adds to the work that takes the card back; on an H200, with what it displaced
LATENCY = 0.0005  # seconds added to a request that are accepted where nothing else was asked for
LONGEST = 0.1  # qGPU's delay
SHORTEST = 0.0004  # online work is looked at so often while offline work waits for it
FIRST = 0.01  # before anything was seen

LENGTHS = 24  # of gaps that are told apart: shim/abi.h has the same
EDGES = tuple(0.00005 * 2 ** (at / 2) for at in range(LENGTHS - 1))  # those of the last length are longer
_MIDDLE = tuple(edge / 2**0.25 for edge in (*EDGES, 2 * LONGEST))
_MARGIN = 1.2  # times the longest gap that is to pass: the next may be a little longer
# What offline work may lose rather than have a piece of work wait for one switch more, in seconds of the card. A piece
# waits for more than one where it is many kernels and copies, between which the card is idle for an instant.
_PRICE = 0.012
_NOTICED = 0.05  # of its time: a piece of work that is longer than a switch by more than that hardly notices one
_ANY = 10.0  # ... where not even one is accepted
_ORDERS = 0.002  # the same rather than have it paused and resumed around a request: calls of the driver, in its middle
_WORTH = 0.0008  # seconds: a shorter gap is of no use to offline work
# A steady stream of requests must not keep offline work off for good: of the gaps that are of use, and of all time.
_MOST_LOST, _MOST_HELD = 0.25, 0.4
_HALF_LIFE = 1.0  # seconds, of each gap at most LONGEST: several requests are remembered, however seldom they come
_WITHIN = 0.002  # seconds: a shorter gap is inside a request
_BETWEEN, _LEAST_GAP, _LEAST_IDLE = 0.01, 0.0001, 0.04  # of gaps between pieces: seconds; the part of its time
REQUEST = 0.02  # seconds: after a longer gap another request begins, as far as can be told from here


def _none() -> list[float]:
    return [0.0] * LENGTHS


@dataclass(slots=True)
class Gaps:
    """The gaps of one tenant."""

    latency: float = LATENCY  # accepted
    missed: int = 0  # seconds in which more than that was added, by what switches cost
    delay: float = FIRST
    requests: int = 0  # so far
    takings: int = 0  # of the card from offline work, so far
    _counts: list[float] = field(default_factory=_none)
    _busy: float = 0.0  # seconds with work, among these gaps
    _elapsed: float = 0.0  # seconds in all, each gap at most LONGEST; some of them were waits for the card
    _still: float = 0.0  # seconds since it last had work or came back
    _strain: float = 1.0  # by how much the price was raised because the latency was missed
    _window: float = 0.0
    _switches: float = 0.0
    _waits: float = 0.0  # requests in the window

    def read(self, counts: Sequence[int], busy: float, elapsed: float, *, contended: bool = True) -> None:
        """Take in what it did since the last reading: its gaps by length, and for how long it had work.

        `contended`: there was offline work to let in. Without it no gap costs a switch."""
        if any(counts):
            self._age(busy + sum(count * min(LONGEST, _MIDDLE[at]) for at, count in enumerate(counts)))
            for at, count in enumerate(counts):
                if count:
                    self._add(at, count, contended=contended)
        self._busy += busy
        self._still = 0.0 if busy or any(counts) else self._still + elapsed
        self._elapsed += elapsed if self._still <= LONGEST else 0.0
        if any(counts):
            self.delay = self._cheapest()
        self._judge(elapsed)

    @property
    def piece(self) -> float | None:
        """Seconds of work from one gap to the next, lately. None: not known."""
        total = sum(self._counts)
        return self._busy / total if total > 1e-3 else None

    @property
    def wants(self) -> float:
        """The part of the time in which it had work or waited for the card: all but its gaps."""
        idle = sum(count * min(LONGEST, length) for count, length in zip(self._counts, _MIDDLE, strict=True))
        return max(0.0, 1.0 - idle / self._elapsed) if self._elapsed > 0 else 0.0

    @property
    def waits_for_pieces(self) -> bool:
        """Whether it leaves the card idle after each piece of work: a program that waits for an earlier kernel, with
        others in the queue, leaves it for an instant at most."""
        lengths = [(count * length, length) for count, length in zip(self._counts, _MIDDLE, strict=True)]
        inside = sum(idle for idle, length in lengths if length < _BETWEEN)
        return sum(idle for idle, length in lengths if _LEAST_GAP < length < _BETWEEN) > _LEAST_IDLE * (
            inside + self._busy
        )

    def _add(self, at: int, count: int, *, contended: bool) -> None:
        self._counts[at] += count
        longest = EDGES[at] if at < len(EDGES) else 2 * LONGEST
        if longest > self.delay and contended:
            self._switches += count
            self.takings += count
        if longest > max(self.delay, _WITHIN):
            self._waits += count
        if longest > REQUEST:
            self.requests += count

    def _age(self, seconds: float) -> None:
        left = 0.5 ** (seconds / _HALF_LIFE)
        self._counts = [count * left for count in self._counts]
        self._busy *= left
        self._elapsed *= left

    def _price(self, total: float) -> float:
        """Of one switch."""
        noticed = min(1.0, SWITCH / (_NOTICED * max(self._busy / total, 1e-9)))
        return _PRICE * noticed * LATENCY / self.latency * self._strain

    def _cheapest(self) -> float:
        """Of all delays: 0, or such that all gaps of some length pass unused."""
        total = sum(self._counts)
        if not total:
            return self.delay
        none_accepted = self.latency < SWITCH
        price = _ANY if none_accepted else self._price(total)
        lengths = [count * length for count, length in zip(self._counts, _MIDDLE, strict=True)]
        costs, most = {}, float("inf")
        if not none_accepted:
            worth = sum(length for length, middle in zip(lengths, _MIDDLE, strict=True) if middle >= _WORTH)
            most = max(_MOST_LOST * worth, _MOST_HELD * (self._busy + sum(lengths))) * LATENCY / self.latency
            costs[0.0] = total * price
        passed = spent = lost = 0.0
        for at, edge in enumerate(EDGES):
            passed, spent = passed + self._counts[at], spent + lengths[at]
            lost += lengths[at] if _MIDDLE[at] >= _WORTH else 0.0
            delay = min(LONGEST, max(SHORTEST, _MARGIN * edge))
            left = total - passed
            if lost + left * delay > most:
                continue
            # What is so small was seen so long ago that it must not count, at whatever price.
            costs[delay] = spent + (left * (delay + _ORDERS + price) if left > 1e-9 * total else 0.0)
        return min(costs, key=lambda delay: (costs[delay], delay))

    def _judge(self, elapsed: float) -> None:
        """Once a second: was more added to requests than is accepted? Then a switch is dearer from now on."""
        self._window += elapsed
        if self._window < 1.0:
            return
        if self._switches and SWITCH * self._switches > self.latency * max(1.0, self._waits):
            self.missed += 1
            self._strain = min(16.0, self._strain * 2)
        else:
            self._strain = max(1.0, self._strain / 1.2)
        self._window = self._switches = self._waits = 0.0
