"""Back-off: doubled up to a bound, and spread over the upper half of it."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from aliquot.model.numbers.backoff import backoff


def test_backoff_doubles_up_to_its_longest() -> None:
    assert [backoff(attempt, first=1, longest=5) for attempt in (1, 2, 3, 4, 400)] == [1, 2, 4, 5, 5]


@given(st.integers(1, 1000), st.floats(0, 1))
def test_backoff_grows_to_its_bound_and_never_falls_below_half_of_it(attempt: int, chance: float) -> None:
    pause = partial(backoff, first=0.1, longest=15.0)
    assert pause(attempt) / 2 <= pause(attempt, chance=chance) <= pause(attempt) <= 15.0
    assert pause(attempt) <= pause(attempt + 1)
