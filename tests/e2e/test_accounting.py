"""Every Pod that holds a card is counted, from any scheduler, by the API server's objects; also after a restart."""

from __future__ import annotations

import json
from typing import Any

from kit.values.manifests import MEM, MIXED, T9K_CARDS, T9K_NODE
from testbed import objects
from testbed.gpus import gpushare_node, gpushare_pod, inventory, offline_pod, qgpu_node, t9k_pod, xgn_node
from testbed.objects import container, pod
from testbed.processes import wait_until
from testbed.programs.wired import Wired


def _used(cluster: Wired) -> dict[tuple[str, int], int]:
    """GiB by card, as ours sees it; cards without a holder are left out."""
    return {
        (node["name"], card["index"]): card["used_memory_mib"] // 1024
        for node in cluster.status()["nodes"]
        for card in node["cards"]
        if card["used_memory_mib"]
    }


def _nodes(cluster: Wired) -> list[dict[str, Any]]:
    """All that ours knows of nodes, cards and Pods on them."""
    nodes: list[dict[str, Any]] = cluster.status()["nodes"]
    return [{**node, "pods": sorted(node["pods"], key=lambda pod: str(pod["uid"]))} for node in nodes]


def _wait_used(cluster: Wired, used: dict[tuple[str, int], int]) -> None:
    wait_until(lambda: _used(cluster) == used, 5, f"{used} is counted", saw=lambda: _used(cluster), every=0.05)


def test_pod_bound_without_extender_is_booked_on_likely_card(cluster: Wired) -> None:
    cluster.create(gpushare_node("n", 8, 8))
    cluster.placed(gpushare_pod("ours", 6))
    cluster.create(gpushare_pod("past", 4, node="n"))
    _wait_used(cluster, {("n", 0): 6, ("n", 1): 4})
    (reported,) = [pod for pod in cluster.status()["nodes"][0]["pods"] if pod["pod"] == "default/past"]
    assert reported["doubt"] == "no annotation names its cards"
    assert cluster.placed(gpushare_pod("next", 3)) == [("n", [1])]
    cluster.restart_ours()
    assert _used(cluster) == {("n", 0): 6, ("n", 1): 7}


def test_pods_of_the_peer_are_understood_by_its_annotations(cluster: Wired) -> None:
    cluster.create(gpushare_node("n", 8, 8, 8))
    old = {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "5", "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}
    new = {"scheduler.framework.gpushare.allocation": '{"0":{"1":2,"2":2}}', "ALIYUN_COM_GPU_MEM_IDX": "1"}
    cluster.create(gpushare_pod("old", 5, annotations=old, node="n"))
    cluster.create(gpushare_pod("new", 4, cards=2, annotations=new, node="n"))
    expected = {("n", 1): 7, ("n", 2): 2}
    _wait_used(cluster, expected)
    cluster.restart_ours()
    assert _used(cluster) == expected
    assert all(pod["doubt"] is None for pod in cluster.status()["nodes"][0]["pods"])
    assert cluster.placed(gpushare_pod("a", 8), gpushare_pod("b", 6)) == [("n", [0]), ("n", [2])]


def test_restart_restores_bookings(cluster: Wired) -> None:
    cluster.create(
        gpushare_node("share", 8, 24, 8), qgpu_node("mixed", 16, 16, labels=MIXED), xgn_node("xgn"), xgn_node("node", 2)
    )
    init = [container("before", {MEM: 7})]
    cluster.placed(
        gpushare_pod("two", 8, cards=2),
        pod("init", {MEM: 2}, init=init),
        offline_pod("offline", 4, 30),
        t9k_pod("whole", T9K_NODE, 1),
        t9k_pod("cards", T9K_CARDS, 2),
    )
    before = _nodes(cluster)
    assert sum(len(node["pods"]) for node in before) == 5
    cluster.restart_ours()
    assert _nodes(cluster) == before
    # And what it decides next is as if it had never been away.
    cluster.create(t9k_pod("late", T9K_CARDS, 4))
    cluster.waits("late")
    assert cluster.placed(t9k_pod("last", T9K_CARDS, 2))[0][0] == "xgn"


def test_a_terminating_pod_keeps_its_card_until_it_is_gone(cluster: Wired) -> None:
    cluster.create(gpushare_node("n", 8))
    held = gpushare_pod("a", 6)
    held["metadata"]["finalizers"] = ["example.com/slow"]
    cluster.placed(held)
    objects.delete_pod(cluster.plane, "a")
    wait_until(lambda: cluster.pod("a")["metadata"].get("deletionTimestamp"), 5, "a is terminating")
    cluster.create(gpushare_pod("b", 4))
    cluster.waits("b")
    assert _used(cluster) == {("n", 0): 6}
    cluster.patch("/api/v1/namespaces/default/pods/a", {"metadata": {"finalizers": None}})
    assert cluster.bound("b") == {"b": "n"}


def test_bookings_follow_card_uuid_after_reboot(cluster: Wired) -> None:
    cluster.create(gpushare_node("n", 8, 8, annotations=inventory(8, 8)))
    cluster.placed(gpushare_pod("a", 6))
    swapped = [
        {"index": 0, "uuid": "GPU-1", "memory_mib": 8192},
        {"index": 1, "uuid": "GPU-0", "memory_mib": 8192},
    ]
    cluster.annotate_node("n", {"aliquot.dev/inventory": json.dumps({"v": 1, "cards": swapped})})
    _wait_used(cluster, {("n", 1): 6})
    assert cluster.placed(gpushare_pod("b", 4)) == [("n", [0])]
    cluster.restart_ours()
    assert _used(cluster) == {("n", 0): 4, ("n", 1): 6}


def test_inspect_endpoint_shows_holders(cluster: Wired) -> None:
    cluster.create(gpushare_node("n", 8, 8), objects.node("bare"))
    cluster.placed(gpushare_pod("a", 5), gpushare_pod("b", 4, cards=2))

    def pod(name: str, gib: int) -> dict[str, object]:
        return {"name": name, "namespace": "default", "usedGPU": gib}

    devs = [
        {"id": 0, "totalGPU": 8, "usedGPU": 7, "pods": [pod("a", 5), pod("b", 2)]},
        {"id": 1, "totalGPU": 8, "usedGPU": 2, "pods": [pod("b", 2)]},
    ]
    expected = {"nodes": [{"name": "n", "totalGPU": 16, "usedGPU": 9, "devs": devs}]}
    assert json.loads(cluster.ours.get("/gpushare-scheduler/inspect")) == expected
    assert json.loads(cluster.ours.get("/gpushare-scheduler/inspect/n")) == expected
    status, answer = cluster.ours.ask("GET", "/gpushare-scheduler/inspect/bare")
    assert (status, json.loads(answer)) == (404, {"error": "no node with GPUs is named bare"})


def test_status_version_and_metrics_endpoints(cluster: Wired) -> None:
    cluster.create(gpushare_node("n", 8))
    cluster.placed(gpushare_pod("a", 6))
    assert cluster.status() == json.loads(cluster.ours.get("/scheduler/status"))
    assert cluster.status()["leading"] is True
    calls = cluster.status()["calls"]
    assert all(calls[verb]["count"] > 0 and calls[verb]["last"] for verb in ("filter", "bind"))
    assert set(json.loads(cluster.ours.get("/version"))) == {"version"}
    assert cluster.ours.get("/livez") == cluster.ours.get("/readyz") == "ok\n"
    metrics = cluster.ours.get("/metrics")
    assert "aliquot_leading 1.0" in metrics
    assert not [line for line in metrics.splitlines() if line and not line.startswith(("#", "aliquot_"))]


def test_scheduler_log_is_json_with_decisions(cluster: Wired) -> None:
    cluster.create(gpushare_node("n", 8))
    cluster.placed(gpushare_pod("a", 6))
    uid = cluster.pod("a")["metadata"]["uid"]

    def said() -> list[Any]:
        return [entry for entry in cluster.ours.entries() if entry.get("uid") == uid or uid in str(entry)]

    (reported,) = wait_until(said, 5, "it is told, a moment after the API server has it")
    assert "bound" in str(reported)
    assert "default/a" in str(reported)
