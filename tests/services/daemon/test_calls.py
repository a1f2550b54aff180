"""Counting calls: how many, how they ended, how long they took, and when the last one was."""

from __future__ import annotations

from aliquot.services.daemon.calls import BUCKETS, VERBS, Calls


def test_a_verb_that_was_never_called_is_told_too() -> None:
    assert Calls(lambda: "now").as_json() == {verb: {"count": 0, "last": None} for verb in VERBS}


def test_outcomes_are_added_up_and_the_last_call_is_told() -> None:
    times = iter(["first", "second", "third"])
    calls = Calls(lambda: next(times))
    calls.count("filter", "ok", 0.001)
    calls.count("filter", "error", 3.0)
    calls.count("bind", "refused", 100.0)
    answer = calls.as_json()
    assert answer["filter"] == {"count": 2, "last": "second"}
    assert answer["bind"] == {"count": 1, "last": "third"}
    assert calls.outcomes["filter", "error"] == 1


def test_each_call_is_in_the_first_bucket_that_holds_it() -> None:
    calls = Calls(lambda: "now")
    for seconds in (0.0, BUCKETS[0], BUCKETS[0] * 1.01, BUCKETS[-1], BUCKETS[-1] + 1):
        calls.count("filter", "ok", seconds)
    buckets = calls.buckets["filter"]
    assert (buckets[0], buckets[1], buckets[-2], buckets[-1]) == (2, 1, 1, 1)
    assert sum(buckets) == 5
