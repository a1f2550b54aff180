"""Who may run at all, where only one may.

Rotation: offline contexts beside online ones, and ordinary ones that share with them. Two contending tiny slices make
no progress, so exactly one is enabled; by weight, and no turn is wasted on one that is idle.
Windows: fixed-share. Each tenant runs only in its own part of a period, independent of the others; what a window
overran or fell short is carried to the next, so that the mean is right although a pause takes its time.
Rounds: engines that wait for short pieces of work (pieces.py). One turn each, as long as is due, then the next one's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

FOREVER = float("inf")


@dataclass(slots=True)
class Rotation:
    """The one with the least time behind it, by weight, is next."""

    quantum: float = 0.04
    turn: str | None = None
    until: float = FOREVER
    _had: dict[str, float] = field(default_factory=dict)  # time had, over weight
    _since: float | None = None  # None: no tenant runs

    def step(self, weights: Mapping[str, float], now: float) -> str | None:
        """Whose turn it is, among these that have work."""
        self._charge(weights, now)
        self._since = now
        least = min((self._had[name] for name in weights if name in self._had), default=0.0)
        # A tenant that comes back has no claim on the time it was away.
        self._had = {name: self._had.get(name, least) for name in weights}
        if self.turn not in weights or now >= self.until:
            self.turn = self.least(weights)
            self.until = FOREVER
        if len(weights) < 2:
            self.until = FOREVER
        elif self.until == FOREVER:
            self.until = now + self.quantum
        return self.turn

    def least(self, names: Iterable[str]) -> str | None:
        """Who of these is next."""
        return min(names, key=lambda name: (self._had.get(name, 0.0), name), default=None)

    def hold(self, weights: Mapping[str, float], now: float) -> None:
        """No tenant runs for now. Afterwards the one with the least is next: a turn that was kept would be renewed by
        each hold, and holds may come more often than turns end."""
        self._charge(weights, now)
        self.turn, self._since, self.until = None, None, FOREVER

    def _charge(self, weights: Mapping[str, float], now: float) -> None:
        if self._since is not None and self.turn is not None and self.turn in self._had and self.turn in weights:
            self._had[self.turn] += max(0.0, now - self._since) / max(weights[self.turn], 1e-6)


@dataclass(slots=True)
class Rounds:
    """Turns one after the other. What one overran is taken from its next turns."""

    turn: str | None = None
    until: float = FOREVER
    shortest: float = 0.0005  # a turn that is not worth its beginning
    longest_debt: float = 0.1
    _debts: dict[str, float] = field(default_factory=dict)
    _began: float = 0.0  # the round
    _since: float = 0.0

    def step(self, lengths: Mapping[str, float], now: float, period: float = 0.0) -> str | None:
        """Whose turn it is, among these that have work; None: nobody's, for what a round lacks of the period."""
        self._since = now
        if len(lengths) < 2 and not period:
            self.turn, self.until = next(iter(lengths), None), FOREVER
            return self.turn
        if now < self.until != FOREVER and (self.turn is None or self.turn in lengths):
            return self.turn
        if self.turn is not None and self.until != FOREVER:
            self._charge(self.turn, now - self.until)
        self._debts = {name: debt for name, debt in self._debts.items() if name in lengths}
        self.turn, self.until = self._next(lengths, now, period)
        return self.turn

    def _next(self, lengths: Mapping[str, float], now: float, period: float) -> tuple[str | None, float]:
        names, last = sorted(lengths), self.turn
        while names:
            following = next((name for name in names if last is not None and name > last), None)
            if following is None and last is not None and now < self._began + period - self.shortest:
                return None, self._began + period
            if following is None:
                following, self._began = names[0], now
            due = lengths[following] - self._debts.pop(following, 0.0)
            if due > min(self.shortest, lengths[following] / 2):
                return following, now + due
            self._charge(following, -due)
            last = following
        return None, FOREVER

    def switched(self, former: str | None, stopped: float | None, began: float | None) -> None:
        """When the last step's orders took effect: the former one stopped, the one whose turn it is began."""
        if former == self.turn:
            return
        if former is not None and stopped is not None:
            self._charge(former, stopped - self._since)
        if began is not None and self.until != FOREVER:
            self.until += max(0.0, began - self._since)

    def refund(self, seconds: float) -> None:
        """A tenant that could not be stopped had so much of the turn."""
        if self.until != FOREVER:
            self.until += seconds

    def _charge(self, name: str, seconds: float) -> None:
        if seconds > 0:
            self._debts[name] = min(self.longest_debt, self._debts.get(name, 0.0) + seconds)


@dataclass(slots=True)
class Windows:
    """Quotas of a period. Only those with work take part; in the rest of the period none runs."""

    period: float = 0.1
    shortest: float = 0.0005  # a window that is not worth two RM calls
    longest_debt: float = 0.1  # some pauses take 20 ms: small quotas pay for that over several periods
    turn: str | None = None
    until: float = FOREVER
    _left: dict[str, float] = field(default_factory=dict)
    _began: float = 0.0
    _since: float = 0.0

    def step(self, quotas: Mapping[str, float], now: float) -> str | None:
        """Whose window it is, among these that have work; None: the rest of the period."""
        if self.turn in self._left:
            self._left[self.turn] -= max(0.0, now - self._since)
        self._since = now
        if not self._left:
            self._began = now
        ahead = max(0.0, self._began + self.period - now)
        # A tenant that joins gets its part of what is left of the period.
        self._left = {name: self._left.get(name, quota * min(ahead, self.period)) for name, quota in quotas.items()}
        if not self._next() and now >= self._began + self.period - self.shortest:
            self._renew(quotas, now)
            self._next()
        self.until = self._began + self.period if self.turn is None else now + self._left[self.turn]
        if not quotas:
            self.until = FOREVER
        return self.turn

    def switched(self, former: str | None, stopped: float | None, began: float | None) -> None:
        """When the last step's orders took effect: the former one stopped, the one whose turn it is began.

        None where nothing had to be ordered. While both could run, each had half.
        """
        if former == self.turn:
            return
        stopped = self._since if stopped is None else stopped
        began = self._since if began is None else began
        if self.turn is not None and began < stopped:
            began = stopped = (began + stopped) / 2
        if former is not None and former in self._left:
            self._left[former] -= max(0.0, stopped - self._since)
        if self.turn is not None:
            self.until += max(0.0, began - self._since)
            self._since = max(self._since, began)

    def refund(self, seconds: float) -> None:
        """A tenant that could not be stopped had so much of the window."""
        if self.turn in self._left:
            self._left[self.turn] += seconds

    def hold(self, now: float) -> None:
        """No tenant runs for now, for another reason than quotas: the time counts for none."""
        if self.turn in self._left:
            self._left[self.turn] -= max(0.0, now - self._since)
        self.turn, self._since, self.until = None, now, FOREVER

    def _next(self) -> bool:
        if self.turn in self._left and self._left[self.turn] > self.shortest:
            return True
        self.turn = next((name for name, left in self._left.items() if left > self.shortest), None)
        return self.turn is not None

    def _renew(self, quotas: Mapping[str, float], now: float) -> None:
        """A new period: what was due since the last one began, and what was carried, in bounds.

        The least is what a small quota saves up for: a window that is worth it.
        """
        elapsed = min(now - self._began, 2 * self.period)
        self._began = now
        for name, quota in quotas.items():
            most = max(2 * quota * self.period, 2 * self.shortest)
            debt = max(2 * quota * self.period, self.longest_debt)
            self._left[name] = max(-debt, min(most, self._left[name] + quota * elapsed))
