"""The replay: none leaves, a misfit is dropped, CPU and memory count; and the policies compared."""

from __future__ import annotations

import itertools

import pytest

from aliquot.model.node import Node
from aliquot.sim.arrivals import arrivals
from aliquot.sim.replay import Outcome, replay
from aliquot.sim.trace import PodSpec, generate
from kit.values.traces import nodes

POLICIES = ["binpack", "spread", "fgd", "dense"]


def a_pod(milli: int, cards: int = 1, *, cpu: int = 0, memory: int = 0, models: set[str] | None = None) -> PodSpec:
    return PodSpec(cpu, memory, cards, milli, frozenset(models) if models else None)


def outcome(cluster: list[Node], *pods: PodSpec, policy: str = "binpack") -> Outcome:
    return replay(cluster, pods, policy, known=pods, clock=itertools.count().__next__)


@pytest.mark.parametrize("policy", POLICIES)
def test_replay_places_pods_that_fit_and_drops_the_others(policy: str) -> None:
    found = outcome(nodes("n1,9000,9000,1,A"), a_pod(600), a_pod(600), a_pod(400), policy=policy)
    assert (found.arrived, found.placed, found.dropped) == (3, 2, 1)
    assert (found.total_milli, found.allocated_milli) == (1000, 1000)
    assert found.percent(found.allocated_milli) == 100


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("extra", [{"cpu": 5000}, {"memory": 5000}], ids=["cpu", "memory"])
def test_replay_counts_cpu_and_memory(policy: str, extra: dict[str, int]) -> None:
    found = outcome(nodes("n1,9000,9000,8,A"), a_pod(100, **extra), a_pod(100, **extra), policy=policy)  # type: ignore[arg-type]
    assert (found.placed, found.dropped) == (1, 1)


def test_a_pod_without_a_gpu_takes_cpu_from_those_with_one() -> None:
    found = outcome(nodes("n1,9000,9000,8,A"), a_pod(0, 0, cpu=5000), a_pod(100, cpu=5000))
    assert (found.placed, found.dropped, found.allocated_milli) == (1, 1, 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_restricted_model_is_heeded(policy: str) -> None:
    cluster = nodes("n1,9000,9000,1,A", "n2,9000,9000,1,B", "n3,9000,9000,1,C")
    only_b = [a_pod(1000, models={"B"})] * 2
    either = [a_pod(1000, models={"A", "B"})] * 3
    assert outcome(cluster, *only_b, policy=policy).placed == 1
    assert outcome(cluster, *either, policy=policy).placed == 2


@pytest.mark.parametrize("policy", POLICIES)
def test_several_cards_are_distinct_cards_of_one_node(policy: str) -> None:
    assert outcome(nodes("n1,9000,9000,1,A", "n2,9000,9000,1,A"), a_pod(300, 2), policy=policy).dropped == 1
    assert outcome(nodes("n1,9000,9000,2,A"), a_pod(1000, 2), policy=policy).dropped == 0


def test_allocation_at_100_is_counted_when_as_much_is_asked_for_as_there_is() -> None:
    found = outcome(nodes("n1,9000,9000,1,A"), a_pod(600), a_pod(500), a_pod(300))
    assert (found.allocated_milli_at_100, found.allocated_milli) == (600, 900)
    assert outcome(nodes("n1,9000,9000,1,A"), a_pod(600), a_pod(400)).allocated_milli_at_100 == 1000


def test_the_curve_goes_from_nothing_to_all_that_was_asked() -> None:
    found = outcome(nodes("n1,9000,9000,2,A"), a_pod(1000), a_pod(1000), a_pod(1000))
    assert found.curve == ((0, 0), (50, 50), (100, 100), (150, 100))


def test_a_workload_that_is_not_known_is_learned_on_the_way() -> None:
    cluster, sample = generate(4, 8, seed=3)
    coming = arrivals(sample, 40_000, 3)
    found = replay(cluster, coming, "dense", known=(), clock=itertools.count().__next__)
    assert found.placed + found.dropped == len(coming)
    assert found.percent(found.allocated_milli) > 80


def test_replay_reports_progress_to_the_end() -> None:
    reported: list[int] = []
    pods = [a_pod(100)] * 500
    replay(
        nodes("n1,9000,9000,1,A"), pods, "binpack", known=(), clock=itertools.count().__next__, progress=reported.append
    )
    assert reported == sorted(reported)
    assert reported[-1] == 500
    assert len(reported) <= 260


def test_dense_packs_no_worse_than_fgd_and_better_than_spread() -> None:
    mean = dict.fromkeys(POLICIES, 0.0)
    for seed in (1, 2, 3):
        cluster, sample = generate(24, 8, seed)
        coming = arrivals(sample, round(1.3 * 24 * 8000), seed)
        for policy in POLICIES:
            found = replay(cluster, coming, policy, known=sample, clock=itertools.count().__next__)
            mean[policy] += found.percent(found.allocated_milli) / 3
    assert mean["dense"] >= mean["fgd"]
    assert mean["dense"] > mean["spread"] + 1
    assert mean["dense"] <= 100
