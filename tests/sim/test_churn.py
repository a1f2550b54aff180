"""Pods that come and go: the load is the one asked for, waiting Pods hold up no other, and time is counted right."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.model.node import Node
from aliquot.sim.churn import MEAN_STAY, MEASURED, WARM_UP, Arrival, Steady, Step, Waits, churn, come_and_go, size_of
from aliquot.sim.trace import PodSpec, generate
from kit.values.traces import nodes

BEGIN = WARM_UP * MEAN_STAY
END = BEGIN + MEASURED * MEAN_STAY
SHARE, ONE, TWO, NONE = PodSpec(0, 0, 1, 500), PodSpec(0, 0, 1, 1000), PodSpec(0, 0, 2, 1000), PodSpec(1000, 0, 0, 0)
KINDS = [SHARE, ONE, TWO, NONE]


def run(cluster: list[Node], *coming: tuple[float, PodSpec, float], policy: str = "binpack") -> Steady:
    """Arrivals as (seconds after the measured time begins, kind, stay)."""
    arrivals = [Arrival(BEGIN + at, KINDS.index(pod), stay) for at, pod, stay in coming]
    return churn(cluster, KINDS, arrivals, policy, load=1.0, known=KINDS, clock=itertools.count().__next__)


def waits(found: Steady, size: str) -> Waits:
    (only,) = [entry for entry in found.waits if entry.size == size]
    return only


def test_a_pod_waits_until_room_comes() -> None:
    found = run(nodes("n1,9000,9000,1,A"), (0, ONE, 100), (30, ONE, 100))
    assert waits(found, "1") == Waits("1", pods=2, waiting=0, mean=35.0, p50=35.0, p99=waits(found, "1").p99)
    assert waits(found, "1").p99 == pytest.approx(69.3)
    assert found.allocated_percent == pytest.approx(100 * 200 / (END - BEGIN))


def test_watch_receives_every_step_in_its_order() -> None:
    arrivals = [Arrival(0, 1, 100), Arrival(30, 1, 100), Arrival(40, 0, 10)]
    steps: list[Step] = []
    clock = itertools.count().__next__
    churn(nodes("n1,9000,9000,1,A"), KINDS, arrivals, "binpack", load=1.0, known=KINDS, clock=clock, watch=steps.append)
    found = [(step.uid, step.grant.node if step.grant else None, step.leaves) for step in steps]
    gets, waits, leaves = ("n1", False), (None, False), (None, True)
    steps_of = [(0, gets), (1, waits), (2, waits), (0, leaves), (1, gets), (1, leaves), (2, gets), (2, leaves)]
    assert found == [(uid, *what) for uid, what in steps_of]


def test_a_waiting_pod_holds_up_no_other() -> None:
    found = run(nodes("n1,9000,9000,2,A"), (0, ONE, 500), (1, TWO, 100), (2, ONE, 10))
    assert (waits(found, "1").mean, waits(found, "2").mean) == (0, 499)


def test_room_goes_to_the_pod_that_waits_longest_of_those_that_fit() -> None:
    found = run(nodes("n1,9000,9000,2,A"), (0, ONE, 100), (0, ONE, 900), (10, TWO, 50), (20, SHARE, 300), (30, ONE, 50))
    assert waits(found, "share").mean == 80  # not TWO, for which one card is too little; not ONE, which came later
    assert waits(found, "2").mean == 890
    assert waits(found, "1").p99 > 250  # after the share has left


def test_a_pod_that_still_waits_counts_with_its_time_so_far() -> None:
    found = run(nodes("n1,9000,9000,1,A"), (0, ONE, 10 * MEAN_STAY), (100, ONE, 1), (100, TWO, 1))
    assert (waits(found, "1").waiting, waits(found, "2").waiting) == (1, 1)
    assert waits(found, "1").mean == (END - BEGIN - 100) / 2
    assert found.allocated_percent == pytest.approx(100)


def test_only_the_measured_time_counts() -> None:
    found = run(nodes("n1,9000,9000,1,A"), (-500, ONE, 600), (-300, ONE, 100), (0, SHARE, 1))
    assert found.allocated_percent == pytest.approx(100 * (100 + 100 + 0.5) / (END - BEGIN))
    assert [(entry.size, entry.pods) for entry in found.waits] == [("share", 1)]


def test_cpu_memory_and_model_keep_a_waiting_pod_waiting() -> None:
    kinds = [ONE, PodSpec(5000, 0, 1, 1000), PodSpec(0, 5000, 1, 1000), PodSpec(0, 0, 1, 1000, frozenset({"B"}))]
    cluster = nodes("n1,4000,4000,1,A", "n2,9000,9000,1,B")
    coming = [Arrival(BEGIN, 0, 10.0), Arrival(BEGIN, 0, 20.0)] + [
        Arrival(BEGIN + 1 + at, kind, 1.0) for at, kind in enumerate((1, 2, 3))
    ]
    found = churn(cluster, kinds, coming, "binpack", load=1.0, known=kinds, clock=itertools.count().__next__)
    assert waits(found, "1").mean == (0 + 0 + 19 + 19 + 19) / 5  # one after the other on n2, never on n1


@pytest.mark.parametrize(
    ("pod", "size"), [(NONE, "no GPU"), (SHARE, "share"), (ONE, "1"), (TWO, "2"), (PodSpec(0, 0, 2, 500), "2")]
)
def test_sizes(pod: PodSpec, size: str) -> None:
    assert size_of(pod) == size


def test_sizes_are_reported_from_the_smallest() -> None:
    cluster, sample = generate(4, 8, seed=1)
    coming = come_and_go(sample, 32_000, 0.7, 1)
    found = churn(cluster, sample, coming, "dense", load=0.7, known=(), clock=itertools.count().__next__)
    assert [entry.size for entry in found.waits] == ["no GPU", "share", "1", "2", "4", "8"]


@settings(deadline=None, max_examples=20)
@given(st.floats(0.2, 2.0), st.integers(0, 1000))
def test_the_load_is_the_one_asked_for(load: float, seed: int) -> None:
    _, sample = generate(20, 8, seed)
    coming = come_and_go(sample, 160_000, load, seed)
    there = [min(END, pod.at + pod.stay) - max(BEGIN, pod.at) for pod in coming]
    asked = sum(sample[pod.kind].demand_milli * max(0.0, time) for pod, time in zip(coming, there, strict=True))
    assert asked / (END - BEGIN) == pytest.approx(load * 160_000, rel=0.01)
    assert [pod.at for pod in coming] == sorted(pod.at for pod in coming)
    assert coming == come_and_go(sample, 160_000, load, seed)


def test_no_arrivals_without_gpu() -> None:
    assert come_and_go([NONE], 1000, 0.9, 1) == []


@pytest.mark.parametrize("policy", ["binpack", "spread", "fgd", "dense"])
def test_every_pod_starts_as_soon_as_it_could(policy: str) -> None:
    """Against a plain simulation of one node with one card, where no policy has a choice."""
    chance = random.Random(5)
    times = np.cumsum([chance.expovariate(1 / 60) for _ in range(150)]).tolist()
    coming = [(at, chance.choice([SHARE, ONE]), chance.expovariate(1 / 50)) for at in times]
    found = run(nodes("n1,9000,9000,1,A"), *coming, policy=policy)
    running: list[tuple[float, int]] = []
    waiting: list[tuple[float, PodSpec, float]] = []
    waited: dict[str, list[float]] = {"share": [], "1": []}

    def start(now: float, pod: tuple[float, PodSpec, float]) -> bool:
        if sum(milli for _, milli in running) + pod[1].demand_milli > 1000:
            return False
        running.append((now + pod[2], pod[1].demand_milli))
        waited[size_of(pod[1])].append(now - pod[0])
        return True

    for pod in [*coming, (END, ONE, 0.0)]:
        while running and min(running)[0] <= pod[0]:
            gone = min(running)
            running.remove(gone)
            waiting = [other for other in waiting if not start(gone[0], other)]
        if pod[0] < END and not start(pod[0], pod):
            waiting.append(pod)
    for size, times_waited in waited.items():
        assert waits(found, size).mean == pytest.approx(np.mean(times_waited))
