"""A pace: a burst at once, then so many per second."""

from __future__ import annotations

import pytest

from aliquot.services.daemon.pace import Pace


def test_pace_allows_a_burst_and_then_waits() -> None:
    pace = Pace(per_second=10, burst=3)
    assert [pace.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert pace.wait(0.0) == pytest.approx(0.1)


def test_pace_refills_with_time_up_to_the_burst() -> None:
    pace = Pace(per_second=10, burst=2)
    for _ in range(2):
        pace.take(0.0)
    assert pace.take(0.1)
    assert [pace.take(100.0) for _ in range(3)] == [True, True, False]


def test_pace_ignores_a_clock_that_was_set_back() -> None:
    pace = Pace(per_second=1, burst=1)
    assert pace.take(100.0)
    assert not pace.take(50.0)
    assert pace.take(51.0)
