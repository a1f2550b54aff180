"""Pauses of groups that held cards in vain."""

from __future__ import annotations

import pytest

from aliquot.placement.groups.attempts import Attempts, Pause, pause_after


@pytest.mark.parametrize(
    ("failures", "held", "seconds"),
    [
        (1, 0.0, 2.0),  # as if they were held for a second
        (1, 1.0, 2.0),
        (1, 10.0, 20.0),
        (2, 10.0, 40.0),
        (3, 10.0, 60.0),  # the longest
        (1, 20.0, 40.0),
        (2, 20.0, 80.0),  # four times as long as they were held
        (9, 20.0, 80.0),
    ],
)
def test_pause_grows_with_failures_up_to_a_limit(failures: int, held: float, seconds: float) -> None:
    assert pause_after(failures, held) == seconds


def test_group_that_failed_pauses_and_longer_each_time() -> None:
    attempts = Attempts()
    assert attempts.begin("g", 100.0, anew=True) == 100.0
    assert attempts.begin("g", 105.0, anew=False) == 100.0
    attempts.fail("g", 110.0, came=3)
    attempts.fail("g", 111.0, came=2)  # another member says so too
    pause = Pause(130.0, 20.0, 3)
    assert attempts.pause("g", 129.9) == pause
    assert attempts.pause("g", 130.0) is None
    assert attempts.pause("other", 110.0) is None
    assert attempts.begin("g", 130.0, anew=True) == 130.0
    attempts.fail("g", 140.0, came=4)
    assert attempts.pause("g", 140.0) == Pause(180.0, 40.0, 4)


def test_a_hold_that_begins_anew_counts_from_then() -> None:
    attempts = Attempts()
    attempts.begin("g", 100.0, anew=True)
    assert attempts.begin("g", 107.0, anew=True) == 107.0
    attempts.end("g")
    attempts.fail("g", 110.0, came=0)
    assert attempts.pause("g", 110.0) is None


@pytest.mark.parametrize("forgets", [Attempts.excuse, Attempts.forget])
def test_excused_group_may_hold_cards_at_once_and_begins_to_count_again(forgets: object) -> None:
    attempts = Attempts()
    for _ in range(2):
        attempts.begin("g", 0.0, anew=True)
        attempts.fail("g", 10.0, came=0)
    forgets(attempts, "g")  # type: ignore[operator]
    assert attempts.pause("g", 10.0) is None
    attempts.begin("g", 10.0, anew=True)
    attempts.fail("g", 20.0, came=0)
    assert attempts.pause("g", 20.0) == Pause(40.0, 20.0, 0)
