"""T9k's three modes, with the taint of exclusive nodes. Tolerations are given by hand: the webhook has its tests."""

from __future__ import annotations

import json

import pytest

from kit.values.manifests import (
    MEM,
    QGPU,
    QGPU_CORE,
    QGPU_MEMORY,
    SGN,
    T9K_CARDS,
    T9K_NODE,
    T9K_PERCENT,
    WHOLE_BESIDE_QGPU,
    XGN,
)
from testbed import objects
from testbed.gpus import TAINT, TOLERATION, gpushare_node, sgn_node, t9k_pod, xgn_node
from testbed.judges import holdings
from testbed.objects import node, pod
from testbed.processes import wait_until
from testbed.programs.wired import Wired

MODE = "sched.tensorstack.dev/node-alloc-mode"


def _taints(cluster: Wired, name: str) -> list[dict[str, str]]:
    taints: list[dict[str, str]] = objects.get_node(cluster.plane, name)["spec"].get("taints", [])
    return taints


def _wait_taints(cluster: Wired, name: str, *taints: dict[str, str]) -> None:
    wait_until(lambda: _taints(cluster, name) == list(taints), 5, f"{name} has {taints}", every=0.05)


def test_a_node_gets_the_taint_with_its_label_and_loses_it_with_it(cluster: Wired) -> None:
    other = {"key": "team", "value": "a", "effect": "NoExecute"}
    cluster.create(node("n", {T9K_CARDS: 4}, taints=[other]))
    cluster.label_node("n", XGN)
    _wait_taints(cluster, "n", other, TAINT)
    cluster.label_node("n", {MODE: "sgn"})
    _wait_taints(cluster, "n", other)
    cluster.await_event("n", "TaintAdded", "only Pods that request xgn may run here")


def test_what_does_not_need_an_exclusive_node_does_not_land_there(cluster: Wired) -> None:
    cluster.create(xgn_node("xgn"))
    _wait_taints(cluster, "xgn", TAINT)
    cluster.create(pod("plain"), t9k_pod("intolerant", T9K_CARDS, 1, tolerant=False))
    for name in ("plain", "intolerant"):
        cluster.waits(name, "untolerated taint")
    cluster.create(t9k_pod("tolerant", T9K_CARDS, 1))
    assert cluster.bound("tolerant") == {"tolerant": "xgn"}


def test_an_exclusive_pod_does_not_share_its_cards(cluster: Wired) -> None:
    cluster.create(xgn_node("xgn", 4))
    places = cluster.placed(t9k_pod("two", T9K_CARDS, 2), t9k_pod("one", T9K_CARDS, 1))
    assert len({card for _, cards in places for card in cards}) == 3
    cluster.create(t9k_pod("more", T9K_CARDS, 2))
    cluster.waits("more", "Insufficient tensorstack.dev/nvidia-gpu")


def test_a_node_of_qgpu_offers_no_whole_cards_until_its_owner_mixes(cluster: Wired) -> None:
    """Seed 001. kubectl's field manager stands for the owner: a label that Aliquot set gives way."""
    amounts = {QGPU_MEMORY: 32, QGPU_CORE: 200, T9K_CARDS: 2}
    cluster.create(node("n", amounts, labels={**QGPU, **XGN}), t9k_pod("whole", T9K_CARDS, 1))
    cluster.waits("whole", "a node of qGPU offers no whole cards", "(aliquot:qgpu-node)")
    cluster.label_node("n", WHOLE_BESIDE_QGPU)
    assert cluster.bound("whole") == {"whole": "n"}
    share = pod("share", {QGPU_MEMORY: 4, QGPU_CORE: 20}, tolerations=[TOLERATION])
    assert cluster.placed(share) == [("n", [1 - cluster.cards("whole")[0]])]


def test_percentages_of_several_pods_share_a_card_up_to_all_of_it(cluster: Wired) -> None:
    cluster.create(sgn_node("sgn", 2))
    places = cluster.placed(*(t9k_pod(f"p{number}", T9K_PERCENT, 40) for number in range(4)))
    assert sorted(card for _, [card] in places) == [0, 0, 1, 1]
    # 40% is left in all, but no card has more than 20%: only we know.
    cluster.create(t9k_pod("fifth", T9K_PERCENT, 30))
    cluster.waits("fifth", "no card has that much free")
    cluster.create(t9k_pod("small", T9K_PERCENT, 20))
    assert cluster.bound("small") == {"small": "sgn"}


@pytest.mark.parametrize(("resource", "labels"), [(T9K_CARDS, SGN), (T9K_PERCENT, XGN), (T9K_NODE, SGN)])
def test_a_pod_does_not_go_to_a_node_of_the_other_mode(cluster: Wired, resource: str, labels: dict[str, str]) -> None:
    everything = {T9K_CARDS: 4, T9K_PERCENT: 400, T9K_NODE: 1}
    cluster.create(node("n", everything, labels=labels))
    tolerant = [{"operator": "Exists"}]
    cluster.create(pod("p", {resource: 1}, scheduler="t9k-scheduler", tolerations=tolerant))
    cluster.waits("p", "does not serve t9k Pods: requires labels sched.tensorstack.dev/accelerator=nvidia-gpu and")


def test_a_pod_that_wants_the_node_waits_until_it_is_empty_and_then_blocks_it(cluster: Wired) -> None:
    cluster.create(xgn_node("xgn", 4))
    _wait_taints(cluster, "xgn", TAINT)
    _daemon(cluster)
    wait_until(lambda: [p for p in objects.list_pods(cluster.plane) if p["spec"].get("nodeName")], 20, "a daemon Pod")
    cluster.placed(t9k_pod("card", T9K_CARDS, 1))
    cluster.create(t9k_pod("whole", T9K_NODE, 1))
    cluster.waits("whole", "needs a whole node; other Pods are on it (aliquot:whole-node)")

    objects.delete_pod(cluster.plane, "card")
    assert cluster.bound("whole") == {"whole": "xgn"}
    assert cluster.cards("whole") == [0, 1, 2, 3]
    grant = json.loads(cluster.pod("whole")["metadata"]["annotations"]["aliquot.dev/grant"])
    assert grant["whole_node"] is True

    cluster.create(t9k_pod("late", T9K_CARDS, 1))
    cluster.waits("late", "another Pod has the whole node")
    assert holdings.overbooked(cluster.plane) == []
    objects.delete_pod(cluster.plane, "whole")
    assert cluster.bound("late") == {"late": "xgn"}


def test_a_plain_pod_on_the_node_is_in_the_way_too(cluster: Wired) -> None:
    cluster.create(xgn_node("one", 4), xgn_node("two", 2))
    cluster.create(pod("plain", node="two"))
    cluster.wait_heard()
    assert cluster.placed(t9k_pod("whole", T9K_NODE, 1)) == [("one", [0, 1, 2, 3])]


def test_whole_nodes_are_taken_smallest_first(cluster: Wired) -> None:
    cluster.create(xgn_node("eight", 8), xgn_node("four", 4))
    assert cluster.placed(t9k_pod("whole", T9K_NODE, 1)) == [("four", [0, 1, 2, 3])]


def test_the_dialects_stand_beside_each_other_in_one_cluster(cluster: Wired) -> None:
    cluster.create(xgn_node("xgn"), sgn_node("sgn"), gpushare_node("share", 8, 8))
    cluster.create(t9k_pod("cards", T9K_CARDS, 1), t9k_pod("percent", T9K_PERCENT, 10), pod("mem", {MEM: 2}))
    assert cluster.bound("cards", "percent", "mem") == {"cards": "xgn", "percent": "sgn", "mem": "share"}


def _daemon(cluster: Wired) -> None:
    """A DaemonSet that runs everywhere, as every cluster has some."""
    labels = {"app": "daemon"}
    template = {
        "metadata": {"labels": labels},
        "spec": {
            "containers": [{"name": "main", "image": "registry.example/pause"}],
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 0,
        },
    }
    spec = {"selector": {"matchLabels": labels}, "template": template}
    body = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "daemon"}, "spec": spec}
    cluster.plane.api("POST", "/apis/apps/v1/namespaces/default/daemonsets", body)
