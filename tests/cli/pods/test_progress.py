"""`apply --wait`: what it takes for running."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from aliquot.cli.pods.progress import until_twice

RUNS, FAILED, STARTS = "runs", "failed", "starts"


@given(st.lists(st.booleans()))
def test_wait_ends_with_the_second_good_look_in_a_row(looks: list[bool]) -> None:
    seen = list(until_twice(looks, bool))
    assert seen == looks[: len(seen)]
    assert len(seen) == len(looks) or seen[-2:] == [True, True]
    assert not any(first and second for first, second in pairwise(seen[:-1]))


def test_wait_sees_the_failure_of_a_pod_that_ran_for_a_moment() -> None:
    looks = [STARTS, RUNS, FAILED, FAILED, FAILED]
    assert list(until_twice(looks, lambda look: look != STARTS)) == looks[:3]
    assert list(until_twice([STARTS, RUNS, STARTS, RUNS, RUNS], lambda look: look == RUNS))[-1] == RUNS
