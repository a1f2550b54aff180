"""The answers to kube-scheduler's calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aliquot.dialects import parse_pod
from aliquot.dialects.wire.extender import parse_args
from aliquot.model.claim import Claim
from aliquot.model.refusal import Reason
from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.verbs import (
    filter_answer,
    repeats_us,
    scores_answer,
    short_reason,
)
from kit.manifests import (
    APP_CLASS,
    COUNT,
    MEM,
    QGPU,
    QGPU_CORE,
    QGPU_GREEDY,
    QGPU_MEMORY,
    T9K_CARDS,
    T9K_NODE,
    T9K_PERCENT,
    Json,
    asking,
    gpushare_pod,
)
from kit.watchobjects import a_cluster, live_node, live_pod, node_json, pod_json

ON_CARD_0 = {"ALIYUN_COM_GPU_MEM_IDX": "0"}


def question(pod: Json, *names: str, whole: bool = False) -> Any:
    nodes = {"items": [node_json(name) for name in names]} if whole else None
    return parse_args(json.dumps({"Pod": pod, "Nodes": nodes, "NodeNames": None if whole else names}).encode())


def filtered(cluster: Cluster, pod: Json, *names: str, whole: bool = False) -> Json:
    answer: Json = json.loads(filter_answer(cluster, question(pod, *names, whole=whole))[0])
    assert answer["Error"] == ""
    return answer


def scored(cluster: Cluster, pod: Json, *names: str) -> dict[str, int]:
    return {load["Host"]: load["Score"] for load in json.loads(scores_answer(cluster, question(pod, *names))[0])}


# --- filter ----------------------------------------------------------------------------------------------------------


def test_nodes_that_are_busy_are_told_apart_from_those_that_will_never_do() -> None:
    cluster = a_cluster(
        live_node("fits"),
        live_node("busy"),
        live_node("small", 2),
        live_node("other", labels=QGPU),
        live_node("broken", labels={"sched.tensorstack.dev/node-alloc-mode": "typo"}),
    )
    cluster.set_pod(live_pod("q", {MEM: "16"}, on="busy", annotations=ON_CARD_0))
    answer = filtered(cluster, pod_json(), "small", "fits", "busy", "other", "broken", "new")
    assert answer["NodeNames"] == ["fits"]
    assert answer["FailedNodes"] == {
        "busy": "GPU memory: 4 GiB wanted, no card has that much free",
        "new": "aliquot has not heard of this node yet",
    }
    never = answer["FailedAndUnresolvableNodes"]
    assert never["small"] == "GPU memory: 4 GiB wanted, no card is that large"
    assert never["other"].startswith("not for gpushare Pods: that takes capacity aliyun.com/gpu-mem")
    assert never["broken"].startswith('the node is broken: metadata.labels["sched.tensorstack.dev/node-alloc-mode"]')
    assert len(never) == 3


@pytest.mark.parametrize("broken", [True, False], ids=["broken", "gone"])
def test_a_node_kept_only_for_what_is_booked_on_it_is_told_as_what_it_is(broken: bool) -> None:
    cluster = a_cluster(live_node())
    cluster.set_pod(live_pod("q", on="n1", annotations=ON_CARD_0))
    if broken:
        cluster.set_node(live_node(labels={"sched.tensorstack.dev/node-alloc-mode": "typo"}))
    else:
        cluster.drop_node("n1")
    answer = filtered(cluster, pod_json(), "n1")
    if broken:
        assert answer["FailedAndUnresolvableNodes"]["n1"].startswith("the node is broken")
        assert answer["FailedNodes"] == {}
    else:
        assert answer["FailedNodes"] == {"n1": "aliquot has not heard of this node yet"}
        assert answer["FailedAndUnresolvableNodes"] == {}


def test_every_name_is_answered_once() -> None:
    names = [f"n{at}" for at in range(20)]
    cluster = a_cluster(*(live_node(name, at % 3 * 8) for at, name in enumerate(names) if at % 5))
    answer = filtered(cluster, pod_json(), *names)
    told = [*answer["NodeNames"], *answer["FailedNodes"], *answer["FailedAndUnresolvableNodes"]]
    assert sorted(told) == sorted(names)


def test_a_pod_that_is_not_ours_fits_everywhere_even_where_we_know_no_node() -> None:
    answer = filtered(a_cluster(), pod_json(limits={"cpu": "1"}), "a", "b")
    assert answer["NodeNames"] == ["a", "b"]


def test_a_pod_that_breaks_a_rule_fits_nowhere_and_never_will() -> None:
    answer = filtered(a_cluster(live_node("a")), pod_json(limits={MEM: "5Gi"}), "a")
    assert answer["NodeNames"] == []
    assert "whole GiB" in answer["FailedAndUnresolvableNodes"]["a"]


def test_whole_nodes_are_answered_whole() -> None:
    cluster = a_cluster(live_node("a"), live_node("b", 2))
    answer = filtered(cluster, pod_json(), "a", "b", whole=True)
    assert answer["NodeNames"] is None
    assert [node["metadata"]["name"] for node in answer["Nodes"]["items"]] == ["a"]
    assert list(answer["FailedAndUnresolvableNodes"]) == ["b"]


def test_nodes_that_lack_the_same_say_the_same() -> None:
    """kube-scheduler counts equal reasons: 4,990 Insufficient this, 10 that."""
    cluster = a_cluster(*(live_node(f"n{at}") for at in range(4)))
    for at, used in enumerate((13, 14, 15, 16)):
        cluster.set_pod(live_pod(f"q{at}", {MEM: str(used)}, on=f"n{at}", annotations=ON_CARD_0))
    answer = filtered(cluster, pod_json(), "n0", "n1", "n2", "n3")
    assert len(set(answer["FailedNodes"].values())) == 1


PODS = [
    gpushare_pod("p", 4),
    gpushare_pod("p", 8, annotations={COUNT: "2"}),
    asking({QGPU_MEMORY: 1, QGPU_CORE: 20}),
    asking({QGPU_MEMORY: 1, QGPU_GREEDY: 20}, annotations={APP_CLASS: "offline"}),
    asking({T9K_CARDS: 2}),
    asking({T9K_PERCENT: 30}),
    asking({T9K_NODE: 1}),
]


@pytest.mark.parametrize("reason", list(Reason))
@pytest.mark.parametrize("never", [True, False], ids=["never", "now"])
def test_there_are_words_for_every_reason_and_every_kind_of_pod(reason: Reason, never: bool) -> None:
    for pod in PODS:
        claim = parse_pod(pod)
        assert isinstance(claim, Claim)
        said = short_reason(reason, never, claim)
        assert said
        assert "None" not in said
        assert len(said) < 200
        assert repeats_us(f"0/3 nodes are available: 1 {said}, 2 Insufficient cpu. preemption: none")


def test_a_node_that_we_do_not_know_or_cannot_read_is_told_in_words_of_ours_too() -> None:
    broken = live_node("broken", labels={"sched.tensorstack.dev/node-alloc-mode": "typo"})
    answer = filtered(a_cluster(broken), pod_json(), "broken", "new")
    assert repeats_us(answer["FailedNodes"]["new"])
    assert repeats_us(answer["FailedAndUnresolvableNodes"]["broken"])


@pytest.mark.parametrize(
    "said",
    [
        "0/2 nodes are available: 2 Insufficient aliyun.com/gpu-mem. preemption: 0/2 nodes are available",
        "0/2 nodes are available: 1 node(s) had untolerated taint(s), 1 didn't match Pod's node affinity/selector",
        "0/2 nodes are available: 1 Too many pods, 1 node(s) were unschedulable. No preemption victims found",
        "",
    ],
)
def test_what_kube_scheduler_finds_by_itself_is_not_in_words_of_ours(said: str) -> None:
    assert not repeats_us(said)


def test_percentages_are_told_as_percentages() -> None:
    claim = parse_pod(asking({T9K_PERCENT: 30}))
    assert isinstance(claim, Claim)
    assert short_reason(Reason.MEMORY, False, claim) == "GPU memory: 30% wanted, no card has that much free"


# --- prioritize ------------------------------------------------------------------------------------------------------


def test_the_chosen_node_has_a_score_of_its_own() -> None:
    """kube-scheduler breaks ties at random."""
    cluster = a_cluster(*(live_node(f"n{at}") for at in range(30)))
    scores = scored(cluster, pod_json(), *(f"n{at}" for at in range(30)))
    assert sorted(scores.values())[-1] == 10
    assert sorted(scores.values())[-2] <= 5
    assert min(scores.values()) >= 0


def test_scores_follow_the_policy() -> None:
    for policy, best in (("binpack", "half"), ("spread", "empty")):
        cluster = a_cluster(live_node("empty"), live_node("half"), policy=policy)
        cluster.set_pod(live_pod("q", {MEM: "8"}, on="half", annotations=ON_CARD_0))
        scores = scored(cluster, pod_json(), "empty", "half")
        assert scores[best] == 10


@pytest.mark.parametrize(
    "limits", [{"cpu": "1"}, {MEM: "5Gi"}, {MEM: "64"}], ids=["not ours", "broken", "fits nowhere"]
)
def test_where_nothing_is_to_be_chosen_all_are_alike(limits: Json) -> None:
    answer, _, best = scores_answer(a_cluster(live_node("a")), question(pod_json(limits=limits), "a", "b"))
    assert json.loads(answer) == [{"Host": "a", "Score": 0}, {"Host": "b", "Score": 0}]
    assert best is None
