"""Counts calls by verb and outcome, and how long they took: for metrics and `doctor`."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence

from aliquot.model.status.machine import CallStatus

VERBS = ("filter", "prioritize", "bind", "preempt", "review")  # kube-scheduler's, and the API server's
BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 0.5, 2.0, 5.0)  # seconds


class Calls:
    """The counters of one server."""

    def __init__(self, stamp: Callable[[], str], verbs: Sequence[str] = VERBS) -> None:
        self.verbs = tuple(verbs)
        self.outcomes: Counter[tuple[str, str]] = Counter()  # (verb, outcome)
        self.seconds: dict[str, float] = dict.fromkeys(verbs, 0.0)
        self.buckets: dict[str, list[int]] = {verb: [0] * (len(BUCKETS) + 1) for verb in verbs}
        self._last: dict[str, str] = {}
        self._stamp = stamp

    def count(self, verb: str, outcome: str, seconds: float) -> None:
        """Count one call."""
        self.outcomes[verb, outcome] += 1
        self.seconds[verb] += seconds
        self.buckets[verb][bisect_left(BUCKETS, seconds)] += 1
        self._last[verb] = self._stamp()

    def status(self) -> dict[str, CallStatus]:
        """The number of calls and the time of the last one, by verb."""
        return {
            verb: CallStatus(
                count=sum(times for (of, _), times in self.outcomes.items() if of == verb), last=self._last.get(verb)
            )
            for verb in self.verbs
        }
