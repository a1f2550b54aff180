"""How long online work keeps a card that it left idle, learned from its own gaps: release-delay `auto`.

Inside a request there are gaps: a server of a language model waits for one token before it launches the next, some
tens of microseconds. Between requests there are longer ones. A gap that offline work is let into costs the next launch
a switch; a gap that it is kept out of costs offline work the gap. So each delay has a price, given the gaps seen
lately, and the cheapest is chosen: a little more than the gaps inside requests where there are many of them, nothing
where a request is one piece of work, everything where requests follow each other closely.

Gaps are far shorter than the time between two readings of the page. So they are counted where a process had work at
both ends of a stretch: what it was idle in between is divided among its launches.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SWITCH = 0.0003  # seconds that a switch adds to the work that takes the card back; on an H200, with what it displaced
LATENCY = 0.0005  # seconds added to a request that are accepted where nothing else was asked for
LONGEST = 0.1  # qGPU's delay
SHORTEST = 0.0004  # online work is looked at so often while offline work waits for it
FIRST = 0.01  # before anything was seen

_PRICE = 0.003  # seconds of the card that offline work loses rather than have a request wait for one switch more
_ORDERS = 0.002  # the same rather than have it paused and resumed around a request: calls of the driver, in its middle
_WORTH = 0.0008  # seconds: a shorter gap is of no use to offline work
_MOST_LOST = 0.25  # of the gaps that are: a steady stream of requests must not keep offline work off for good
_EDGES = tuple(0.00005 * 2**power for power in range(12))  # up to the longest
_HALF_LIFE = 0.4  # seconds, of each gap at most LONGEST: several requests are remembered, however seldom they come
_WITHIN = 0.002  # seconds: a shorter gap is inside a request
_LEAST_GAP = 0.00001  # a process cannot see its work done and launch again any sooner


@dataclass(slots=True)
class Gaps:
    """The gaps of one online tenant."""

    latency: float = LATENCY  # accepted
    missed: int = 0  # seconds in which more than that was added, by what switches cost
    delay: float = FIRST
    _counts: list[float] = field(default_factory=lambda: [0.0] * (len(_EDGES) + 1))
    _lengths: list[float] = field(default_factory=lambda: [0.0] * (len(_EDGES) + 1))
    _open: dict[str, float] = field(default_factory=dict)  # by context: the gap that it is in
    _strain: float = 1.0  # by how much the price was raised because the latency was missed
    _window: float = 0.0
    _switches: float = 0.0
    _requests: float = 0.0
    _contended: bool = True

    def read(
        self, context: str, elapsed: float, busy: float, launches: int, works: bool, *, contended: bool = True
    ) -> None:
        """What a context did since the last reading: seconds with work, launches, and whether it has work now.

        `contended`: there was offline work to let in. Without it no gap costs a switch."""
        self._contended = contended
        idle = max(0.0, elapsed - busy)
        gap = self._open.get(context)
        self._age(min(elapsed, max(0.0, LONGEST - (gap or 0.0))))
        if not launches and not busy:
            self._open[context] = (0.0 if gap is None else gap) + elapsed
        elif gap is not None:  # it was idle at the beginning
            self._add(gap + (idle if works else idle / 2), 1)
            self._open.pop(context)
        elif works and idle > 0:
            # A request may be several launches: where it is idle most of the time, that is one gap.
            count = min(launches, int(idle / _LEAST_GAP)) if idle < busy else 1
            self._add(idle / max(1, count), count)
        if not works and context not in self._open:
            self._open[context] = idle / 2
        self.delay = self._cheapest()
        self._judge(elapsed)

    def forget(self, context: str) -> None:
        """The context is gone."""
        self._open.pop(context, None)

    def _add(self, length: float, count: int) -> None:
        at = next((at for at, edge in enumerate(_EDGES) if length <= edge), len(_EDGES))
        self._counts[at] += count
        self._lengths[at] += length * count
        if length > self.delay and self._contended:
            self._switches += count
        if length > max(self.delay, _WITHIN):
            self._requests += count

    def _age(self, seconds: float) -> None:
        left = 0.5 ** (seconds / _HALF_LIFE)
        self._counts = [count * left for count in self._counts]
        self._lengths = [length * left for length in self._lengths]

    def _cheapest(self) -> float:
        """Of all delays: 0, or such that all gaps of some length pass unused."""
        total = sum(self._counts)
        if not total:
            return self.delay
        price = _PRICE * LATENCY / self.latency * self._strain if self.latency >= SWITCH else float("inf")
        costs = {0.0: total * price} if price < float("inf") else {}
        worth = sum(length for edge, length in zip((0.0, *_EDGES), self._lengths, strict=True) if edge >= _WORTH)
        most = _MOST_LOST * LATENCY / self.latency * worth if costs else float("inf")
        passed = spent = lost = 0.0
        for at, edge in enumerate(_EDGES):
            passed, spent = passed + self._counts[at], spent + self._lengths[at]
            lost += self._lengths[at] if edge > _WORTH else 0.0
            delay = min(LONGEST, max(SHORTEST, 2 * edge))
            left = total - passed
            if worth and lost + left * delay > most:
                continue
            # What is so small was seen so long ago that it must not count, at whatever price.
            costs[delay] = spent + (left * (delay + _ORDERS + price) if left > 1e-9 * total else 0.0)
        return min(costs, key=lambda delay: (costs[delay], delay))

    def _judge(self, elapsed: float) -> None:
        """Once a second: was more added to requests than is accepted? Then a switch is dearer from now on."""
        self._window += elapsed
        if self._window < 1.0:
            return
        if self._switches and SWITCH * self._switches > self.latency * max(1.0, self._requests):
            self.missed += 1
            self._strain = min(16.0, self._strain * 2)
        else:
            self._strain = max(1.0, self._strain / 1.2)
        self._window = self._switches = self._requests = 0.0
