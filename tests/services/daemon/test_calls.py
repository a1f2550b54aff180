"""Counting calls: how many, how they ended, how long they took, and when the last one was."""

from __future__ import annotations

from aliquot.model.status.machine import CallStatus
from aliquot.services.daemon.calls import BUCKETS, VERBS, Calls


def test_calls_status_has_verbs_that_were_never_called() -> None:
    assert Calls(lambda: "now").status() == {verb: CallStatus(0, None) for verb in VERBS}


def test_calls_status_sums_outcomes_and_has_the_last_call() -> None:
    times = iter(["first", "second", "third"])
    calls = Calls(lambda: next(times))
    calls.count("filter", "ok", 0.001)
    calls.count("filter", "error", 3.0)
    calls.count("bind", "refused", 100.0)
    status = calls.status()
    assert status["filter"] == CallStatus(2, "second")
    assert status["bind"] == CallStatus(1, "third")
    assert calls.outcomes["filter", "error"] == 1


def test_calls_count_into_the_first_bucket_that_holds_the_time() -> None:
    calls = Calls(lambda: "now")
    for seconds in (0.0, BUCKETS[0], BUCKETS[0] * 1.01, BUCKETS[-1], BUCKETS[-1] + 1):
        calls.count("filter", "ok", seconds)
    buckets = calls.buckets["filter"]
    assert (buckets[0], buckets[1], buckets[-2], buckets[-1]) == (2, 1, 1, 1)
    assert sum(buckets) == 5
