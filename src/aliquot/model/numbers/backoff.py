"""How long to wait before the next attempt, for all that is tried again."""

from __future__ import annotations


def backoff(attempt: int, *, first: float, longest: float, chance: float = 1.0) -> float:
    """Seconds before that attempt is repeated (the first is 1): doubled each time, up to the longest.

    `chance`, from 0 to 1, picks a point in the upper half, so that clients that failed together return one by one.
    """
    return min(longest, first * 2.0 ** min(attempt - 1, 32)) * (0.5 + chance / 2)
