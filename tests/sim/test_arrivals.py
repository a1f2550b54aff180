"""The order in which Pods come."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from aliquot.sim.arrivals import arrivals
from aliquot.sim.trace import PodSpec

specs = st.builds(PodSpec, st.just(0), st.just(0), st.integers(0, 4), st.integers(1, 1000))
SOME = [PodSpec(at, 0, 1, 100) for at in range(10)]


@given(st.lists(specs, min_size=1, max_size=20), st.integers(1, 50_000), st.integers())
def test_pods_come_until_they_ask_for_the_target_and_not_one_more(pods: list[PodSpec], wanted: int, seed: int) -> None:
    coming = arrivals(pods, wanted, seed)
    asked = [pod.demand_milli for pod in coming]
    if sum(pod.demand_milli for pod in pods):
        assert sum(asked) >= wanted
        assert sum(asked[:-1]) < wanted
    else:
        assert Counter(coming) == Counter(pods)
    assert set(coming) <= set(pods)


def test_below_the_target_every_pod_of_the_trace_comes_at_least_once() -> None:
    coming = arrivals(SOME, 1500, seed=1)
    assert len(coming) == 15
    assert set(coming) == set(SOME)


def test_a_trace_that_asks_for_more_is_cut_at_the_target() -> None:
    assert len(arrivals(SOME, 500, seed=1)) == 5


def test_arrivals_depend_on_the_seed_alone() -> None:
    assert arrivals(SOME, 1500, seed=1) == arrivals(SOME, 1500, seed=1)
    assert arrivals(SOME, 1500, seed=1) != arrivals(SOME, 1500, seed=2)


def test_arrivals_do_not_change_the_trace() -> None:
    pods = list(SOME)
    arrivals(pods, 1500, seed=1)
    assert pods == SOME
