"""The answers to kube-scheduler's calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aliquot.dialects import parse_pod
from aliquot.dialects.wire.extender import parse_args, without_percent_sign
from aliquot.model.claim import Claim
from aliquot.model.refusal import Reason
from aliquot.services.scheduler.cluster import Cluster, Placed
from aliquot.services.scheduler.verbs import COARSE, FINE, filter_answer, scores_answer
from aliquot.wording.reasons import codes
from aliquot.wording.refusals import coded_reason
from kit.clusters.watchobjects import a_cluster, as_pod, claim_of, live_node, live_pod, node_json, pod_json
from kit.values.manifests import (
    APP_CLASS,
    MEM,
    MIXED,
    QGPU,
    QGPU_CORE,
    QGPU_GREEDY,
    QGPU_MEMORY,
    T9K_CARDS,
    T9K_PERCENT,
    Json,
    a_container,
    asking,
)

ON_CARD_0 = {"ALIYUN_COM_GPU_MEM_IDX": "0"}


def question(pod: Json, *names: str, whole: bool = False) -> Any:
    nodes = {"items": [node_json(name) for name in names]} if whole else None
    return parse_args(json.dumps({"Pod": pod, "Nodes": nodes, "NodeNames": None if whole else names}).encode())


def filtered(cluster: Cluster, pod: Json, *names: str, whole: bool = False) -> Json:
    answer: Json = json.loads(filter_answer(cluster, question(pod, *names, whole=whole))[0])
    assert answer["Error"] == ""
    return answer


def reasons(cluster: Cluster, pod: Json, *names: str, whole: bool = False) -> Json:
    """The answer to a Pod that comes again: with the reasons of the nodes that it does not fit."""
    filtered(cluster, pod, *names, whole=whole)
    return filtered(cluster, pod, *names, whole=whole)


def scored(cluster: Cluster, pod: Json, *names: str, top: int = COARSE) -> dict[str, int]:
    return {load["Host"]: load["Score"] for load in json.loads(scores_answer(cluster, question(pod, *names), top)[0])}


# --- filter ----------------------------------------------------------------------------------------------------------


def test_pod_with_thousands_of_gpu_containers_is_refused_with_what_is_allowed() -> None:
    pod = pod_json("p")
    pod["spec"]["containers"] = [a_container(f"c{at}", {QGPU_MEMORY: "1"}) for at in range(3000)]
    (why,) = filtered(a_cluster(live_node("n1")), pod, "n1")["FailedAndUnresolvableNodes"].values()
    assert "spec.containers: 3000 is not allowed: at most 256 containers" in why


def test_busy_nodes_are_distinguished_from_nodes_that_never_fit() -> None:
    cluster = a_cluster(
        live_node("fits"),
        live_node("busy"),
        live_node("small", 2),
        live_node("other", labels=QGPU),
        live_node("broken", labels={"sched.tensorstack.dev/node-alloc-mode": "typo"}),
    )
    cluster.set_pod(live_pod("q", {MEM: "16"}, on="busy", annotations=ON_CARD_0))
    assert filtered(cluster, pod_json(), "small", "fits")["FailedAndUnresolvableNodes"] == {}, (
        "one fits: nobody asks why"
    )
    answer = reasons(cluster, pod_json(), "small", "fits", "busy", "other", "broken", "new")
    assert answer["NodeNames"] == ["fits"]
    assert answer["FailedNodes"] == {
        "busy": "GPU memory: needs 4 GiB per card; no card has that much free (aliquot:memory)",
        "new": "aliquot has not seen this node yet (aliquot:unknown-node)",
    }
    never = answer["FailedAndUnresolvableNodes"]
    assert never["small"] == "GPU memory: needs 4 GiB per card; no card is that large (aliquot:memory)"
    assert never["other"].startswith("does not serve gpushare Pods: requires capacity aliyun.com/gpu-mem")
    assert never["broken"].startswith('invalid node: metadata.labels["sched.tensorstack.dev/node-alloc-mode"]')
    assert len(never) == 3


@pytest.mark.parametrize("broken", [True, False], ids=["broken", "gone"])
def test_a_node_kept_only_for_its_bookings_is_reported_as_such(broken: bool) -> None:
    cluster = a_cluster(live_node())
    cluster.set_pod(live_pod("q", on="n1", annotations=ON_CARD_0))
    if broken:
        cluster.set_node(live_node(labels={"sched.tensorstack.dev/node-alloc-mode": "typo"}))
    else:
        cluster.drop_node("n1")
    answer = filtered(cluster, pod_json(), "n1")
    if broken:
        assert answer["FailedAndUnresolvableNodes"]["n1"].startswith("invalid node")
        assert answer["FailedNodes"] == {}
    else:
        assert answer["FailedNodes"] == {"n1": "aliquot has not seen this node yet (aliquot:unknown-node)"}
        assert answer["FailedAndUnresolvableNodes"] == {}


def test_every_name_is_answered_once() -> None:
    names = [f"n{at}" for at in range(20)]
    cluster = a_cluster(*(live_node(name, at % 3 * 8) for at, name in enumerate(names) if at % 5))
    answer = reasons(cluster, pod_json(), *names)
    named = [*answer["NodeNames"], *answer["FailedNodes"], *answer["FailedAndUnresolvableNodes"]]
    assert sorted(named) == sorted(names)


def test_a_pod_that_is_not_ours_fits_everywhere_even_where_we_know_no_node() -> None:
    answer = filtered(a_cluster(), pod_json(limits={"cpu": "1"}), "a", "b")
    assert answer["NodeNames"] == ["a", "b"]


def test_a_pod_that_breaks_a_rule_fits_nowhere_and_never_will() -> None:
    answer = filtered(a_cluster(live_node("a")), pod_json(limits={MEM: "5Gi"}), "a")
    assert answer["NodeNames"] == []
    assert "whole GiB" in answer["FailedAndUnresolvableNodes"]["a"]


def test_whole_nodes_are_answered_whole() -> None:
    cluster = a_cluster(live_node("a"), live_node("b", 2))
    answer = reasons(cluster, pod_json(), "a", "b", whole=True)
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


def test_filter_answers_have_a_code_for_unknown_and_invalid_nodes_and_pods() -> None:
    broken = live_node("broken", labels={"sched.tensorstack.dev/node-alloc-mode": "typo"})
    answer = filtered(a_cluster(broken), pod_json(), "broken", "new")
    assert codes(answer["FailedNodes"]["new"]) == {Reason.UNKNOWN_NODE}
    assert codes(answer["FailedAndUnresolvableNodes"]["broken"]) == {Reason.INVALID}
    answer = filtered(a_cluster(live_node("a")), pod_json(limits={MEM: "5Gi"}), "a")
    assert codes(answer["FailedAndUnresolvableNodes"]["a"]) == {Reason.INVALID_POD}


@pytest.mark.parametrize("reason", Reason)
@pytest.mark.parametrize("never", [False, True])
def test_every_reason_reaches_kube_scheduler_without_percent_signs_and_with_its_code(
    reason: Reason, never: bool
) -> None:
    """It uses the sentence as a format of Printf: "80% of" would become "80%!o(MISSING)f"."""
    for limits in (
        {QGPU_CORE: 80, QGPU_MEMORY: 4},
        {QGPU_GREEDY: 70, QGPU_MEMORY: 4},
        {T9K_PERCENT: 30},
        {T9K_CARDS: 2},
        {MEM: 3},
    ):
        offline = {"tke.cloud.tencent.com/app-class": "offline"} if QGPU_GREEDY in limits else {}
        claim = parse_pod(asking(limits, annotations=offline))
        assert isinstance(claim, Claim)
        sentence = without_percent_sign(coded_reason(reason, never, claim))
        assert "%" not in sentence
        assert codes(sentence) == {reason}


def test_a_busy_card_is_described_in_percent_words() -> None:
    cluster = a_cluster(live_node("a", labels=QGPU | MIXED))
    cluster.set_pod(live_pod("q", {QGPU_CORE: "30", QGPU_MEMORY: "4"}, on="a", annotations=ON_CARD_0))
    answer = filtered(cluster, pod_json(limits={QGPU_CORE: "80", QGPU_MEMORY: "4"}), "a")
    assert answer["FailedNodes"] == {
        "a": "GPU compute: needs 80 percent per card; no card has that much free (aliquot:core)"
    }


def test_percent_signs_that_a_user_wrote_are_named() -> None:
    pod = pod_json(limits={QGPU_MEMORY: "4"}, annotations={"tke.cloud.tencent.com/app-class": "on%line 50%"})
    (sentence,) = filtered(a_cluster(live_node("a", labels=QGPU)), pod, "a")["FailedAndUnresolvableNodes"].values()
    assert '"on(percent sign)line 50 percent"' in sentence
    assert "%" not in sentence
    assert codes(sentence) == {Reason.INVALID_POD}


# --- prioritize ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("top", [COARSE, FINE])
def test_the_chosen_node_has_a_score_of_its_own(top: int) -> None:
    """kube-scheduler breaks ties at random."""
    cluster = a_cluster(*(live_node(f"n{at}") for at in range(30)))
    scores = sorted(scored(cluster, pod_json(), *(f"n{at}" for at in range(30)), top=top).values())
    assert scores[-1] == top > scores[-2]
    assert scores[0] >= 0
    assert top == COARSE or len(set(scores)) == 30, "whichever of them the preferences of a Pod leave, one is the best"


@pytest.mark.parametrize("top", [COARSE, FINE])
def test_scores_follow_the_policy(top: int) -> None:
    for policy, best in (("binpack", "half"), ("spread", "empty")):
        cluster = a_cluster(live_node("empty"), live_node("half"), policy=policy)
        cluster.set_pod(live_pod("q", {MEM: "8"}, on="half", annotations=ON_CARD_0))
        scores = scored(cluster, pod_json(), "empty", "half", top=top)
        assert scores[best] == top


@pytest.mark.parametrize(
    "limits", [{"cpu": "1"}, {MEM: "5Gi"}, {MEM: "64"}], ids=["not ours", "broken", "fits nowhere"]
)
def test_where_nothing_is_to_be_chosen_all_are_alike(limits: Json) -> None:
    answer, _, best = scores_answer(a_cluster(live_node("a")), question(pod_json(limits=limits), "a", "b"))
    assert json.loads(answer) == [{"Host": "a", "Score": 0}, {"Host": "b", "Score": 0}]
    assert best is None


# --- spread ----------------------------------------------------------------------------------------------------------


def _places(cluster: Cluster, pods: list[Json], *names: str) -> list[tuple[str, list[int]]]:
    """Where kube-scheduler sends the Pods, one after the other, if it heeds filter and prioritize."""
    places = []
    for pod in pods:
        fitting = filtered(cluster, pod, *names)["NodeNames"]
        scores = scored(cluster, pod, *fitting)
        node = max(scores, key=lambda name: scores[name])
        assert list(scores.values()).count(scores[node]) == 1, "kube-scheduler breaks ties by chance"
        placed = cluster.assume(claim_of(cluster, as_pod(pod)), node)
        assert isinstance(placed, Placed)
        places.append((node, [share.card for share in placed.grant.containers[0].shares]))
    return places


@pytest.mark.parametrize("shortlist", [0, 1])
def test_spread_leaves_no_card_empty_where_nodes_differ_in_size(shortlist: int) -> None:
    cluster = Cluster("spread", shortlist=shortlist)
    for node in (live_node("a", 8), live_node("b", 8, 8)):
        cluster.set_node(node)
    places = _places(cluster, [pod_json(f"p{at}", {MEM: "3"}) for at in range(6)], "a", "b")
    assert sorted(places[:3]) == sorted(places[3:]) == [("a", [0]), ("b", [0]), ("b", [1])]


@pytest.mark.parametrize("shortlist", [0, 1])
def test_online_replicas_go_to_different_cards_where_nodes_differ_in_size(shortlist: int) -> None:
    cluster = Cluster("binpack", shortlist=shortlist)
    for node in (live_node("a", 32), live_node("b", 32, 32, 32, 32)):
        cluster.set_node(node)
    pods = [
        pod_json(f"p{at}", {QGPU_MEMORY: "3"}, annotations={APP_CLASS: "online"}, owner="ReplicaSet/web")
        for at in range(6)
    ]
    places = _places(cluster, pods, "a", "b")
    assert sorted(places[:5]) == [("a", [0]), ("b", [0]), ("b", [1]), ("b", [2]), ("b", [3])]
