"""How often something is tried that fails, or that a tenant can cause."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.model.numbers.backoff import backoff

_FORGOTTEN = 600.0  # seconds after which what was not done any more begins anew
_NEVER = float("-inf")


@dataclass(slots=True)
class Backoff:
    """It is due `first` seconds after it was done, twice as long after the next time, and so on up to `most` seconds.
    `soon`: so many times it stays at `first`."""

    first: float
    most: float
    soon: int = 0
    due: float = _NEVER
    _times: int = 0

    def is_due(self, now: float) -> bool:
        """Whether it may be done."""
        return now >= self.due

    def note(self, now: float) -> None:
        """It is done now."""
        if now - self.due > _FORGOTTEN:
            self._times = 0
        self._times += 1
        self.due = now + backoff(max(1, self._times - self.soon), first=self.first, longest=self.most)

    def reset(self) -> None:
        """It succeeded: it is due, and the next time counts as the first."""
        self.due, self._times = _NEVER, 0
