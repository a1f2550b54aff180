"""Traces in the openb format: what a line means, and what is generated without one."""

from __future__ import annotations

import io

import pytest

from aliquot.model.claim import Claim
from aliquot.sim.trace import PodSpec, TraceError, generate, parse_nodes, parse_pods

NODES = "sn,cpu_milli,memory_mib,gpu,model"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli"


def lines(*text: str, end: str = "\n") -> list[str]:
    return io.StringIO(end.join(text) + end, newline="").readlines()


def pods(*text: str, models: tuple[str, ...] = ("A", "B")) -> list[PodSpec]:
    return parse_pods(lines(*text), "pods.csv", frozenset(models))


def test_a_node_has_its_cards_of_its_model() -> None:
    (node,) = parse_nodes(lines(NODES, "n1,64000,262144,2,V100M16"), "nodes.csv")
    assert (node.name, node.cpu_milli, node.memory_mib) == ("n1", 64000, 262144)
    assert [(card.index, card.model) for card in node.cards] == [(0, "V100M16"), (1, "V100M16")]


def test_a_pod_asks_for_slices_of_distinct_cards_and_for_cpu_and_memory() -> None:
    (pod,) = pods(PODS, "p,1000,2048,2,500")
    claim = pod.claim("7")
    assert isinstance(claim, Claim)
    assert (claim.cpu_milli, claim.memory_mib, claim.models) == (1000, 2048, None)
    assert [(container.count, container.slice.core_milli) for container in claim.containers] == [(2, 500)]
    assert pod.demand_milli == 1000


def test_a_pod_without_a_gpu_asks_for_no_card() -> None:
    (pod,) = pods(PODS, "p,1000,2048,0,0")
    assert (pod.claim("7").containers, pod.demand_milli) == ((), 0)


def test_columns_after_gpu_milli_may_be_missing_and_come_in_any_order() -> None:
    full = pods(f"{PODS},gpu_spec,qos,pod_phase,creation_time", "p,1,2,1,500,A,LS,Running,9")
    short = pods("gpu_milli,num_gpu,name,memory_mib,cpu_milli,gpu_spec", "500,1,p,2,1,A")
    assert full == short == [PodSpec(1, 2, 1, 500, frozenset({"A"}))]


@pytest.mark.parametrize(
    ("spec", "models"), [("A|B", {"A", "B"}), ("A", {"A"}), (" A | ", {"A"}), ("A|Z", {"A", "Z"}), ("", None)]
)
def test_gpu_spec_restricts_the_model(spec: str, models: set[str] | None) -> None:
    (pod,) = pods(f"{PODS},gpu_spec", f"p,1,2,1,500,{spec}")
    assert pod.models == models


def test_a_spec_of_which_no_node_has_any_is_an_error() -> None:
    with pytest.raises(TraceError, match=r'^pods.csv:2: column gpu_spec: "Y\|Z" is a model that no node has'):
        pods(f"{PODS},gpu_spec", "p,1,2,1,500,Y|Z")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_any_line_ends_will_do_and_empty_lines_are_passed_over(end: str) -> None:
    text = lines(PODS, "", "p,1,2,1,500", "  ", '"p, the ""second""",1,2,1,500', end=end)
    assert len(parse_pods(text, "pods.csv", frozenset())) == 2


def test_a_line_in_quotes_that_goes_on_is_counted() -> None:
    with pytest.raises(TraceError, match=r"^pods.csv:4: column cpu_milli"):
        pods(PODS, '"a', 'name",1,2,1,500', "p,x,2,1,500")


def test_a_generated_cluster_has_that_many_nodes_and_pods_for_them_all() -> None:
    nodes, sample = generate(10, 4, seed=1)
    assert [len(node.cards) for node in nodes] == [4] * 10
    assert len({node.name for node in nodes}) == 10
    assert all(pod.num_gpu <= 4 for pod in sample)
    assert sum(pod.demand_milli for pod in sample) >= 40 * 1000 * 0.5
    assert generate(10, 4, seed=1) == (nodes, sample)
    assert generate(10, 4, seed=2)[1] != sample
