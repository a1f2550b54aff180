"""Pods that wait: an event says why in one sentence, and they are bound within a second once there is room."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from aliquot.dialects.native import AGENT
from kit.values.manifests import APP_CLASS, MEM, MIXED, QGPU, QGPU_CORE, QGPU_MEMORY
from testbed import objects
from testbed.gpus import gpushare_node, gpushare_pod, inventory, qgpu_node, unhealthy
from testbed.objects import delete_pod, finish_pod, pod
from testbed.processes import wait_until
from testbed.programs.wired import Wired

SOON = 3.0  # seconds; on an idle machine it is less than one


def _two_busy_cards(cluster: Wired) -> None:
    """4 GiB are left on the node, but no more than 2 on a card: kube-scheduler sees room where we see none."""
    cluster.create(gpushare_node("n", 8, 8))
    cluster.placed(gpushare_pod("a", 6), gpushare_pod("b", 6))


def _bound_after(cluster: Wired, free: Callable[[], object], *names: str) -> float:
    """Seconds from the moment that cards are freed until the Pods are bound."""
    began = time.monotonic()
    free()
    wait_until(
        lambda: all(objects.bound_to(cluster.plane, name) for name in names),
        20,
        f"{names} bound",
        saw=lambda: [objects.events_of(cluster.plane, name) for name in names],
        every=0.02,
    )
    taken = time.monotonic() - began
    print(f"bound {taken:.2f} s after room was made")
    return taken


def test_pending_reason_in_event_and_condition(cluster: Wired) -> None:
    _two_busy_cards(cluster)
    cluster.create(gpushare_pod("c", 4))
    cluster.waits(
        "c", "0/1 nodes are available: 1 GPU memory: needs 4 GiB per card; no card has that much free (aliquot:memory)."
    )
    said = cluster.await_event("c", "WaitingForGPU")
    assert said == "fits none of 1 node. 1 is busy: GPU memory: needs 4 GiB per card, at most 2 GiB free (2 cards)"


def test_kube_scheduler_counts_the_nodes_that_give_the_same_reason(cluster: Wired) -> None:
    cluster.create(gpushare_node("small", 2, 2, 2), *(gpushare_node(f"n{number}", 8, 8) for number in range(3)))
    cluster.placed(*(gpushare_pod(f"p{number}", 6) for number in range(6)))
    cluster.create(gpushare_pod("c", 4))
    busy = "3 GPU memory: needs 4 GiB per card; no card has that much free (aliquot:memory)"
    never = "1 GPU memory: needs 4 GiB per card; no card is that large (aliquot:memory)"
    cluster.waits("c", "0/4 nodes are available", busy, never)


def test_the_event_of_kube_scheduler_has_no_trace_of_printf(cluster: Wired) -> None:
    """kube-scheduler formats our sentence with Printf: a percent sign would become "80%!p(MISSING)er card"."""
    cluster.create(qgpu_node("q", 16, 16, labels=MIXED))  # 40 are free on each card: to kube-scheduler that is 80
    cluster.placed(*(pod(name, {QGPU_CORE: 60, QGPU_MEMORY: 4}) for name in ("a", "b")))
    odd = pod("odd", {QGPU_MEMORY: 4}, annotations={APP_CLASS: "on%line 50%"})
    cluster.create(pod("more", {QGPU_CORE: 80, QGPU_MEMORY: 4}), odd)
    cluster.waits("more", "GPU compute: needs 80 percent per card; no card has that much free (aliquot:core)")
    cluster.waits("odd", '"on(percent sign)line 50 percent"', "(aliquot:invalid-pod)")
    for name in ("more", "odd"):
        assert "%!" not in cluster.await_event(name, "FailedScheduling", "nodes are available")


def test_pending_reason_of_invalid_pod(cluster: Wired) -> None:
    """Where no webhook keeps it out."""
    cluster.create(gpushare_node("n", 8, 8), gpushare_pod("odd", 3, cards=2))
    rule = 'limits["aliyun.com/gpu-mem"]: "3" is not allowed: a multiple of 2'
    cluster.waits("odd", rule)
    cluster.await_event("odd", "WaitingForGPU", rule)


@pytest.mark.parametrize("how", [delete_pod, finish_pod])
def test_pending_pod_is_bound_when_a_pod_ends(cluster: Wired, how: Callable[..., None]) -> None:
    _two_busy_cards(cluster)
    cluster.create(gpushare_pod("c", 4))
    cluster.waits("c")
    assert _bound_after(cluster, lambda: how(cluster.plane, "b"), "c") < SOON
    assert cluster.cards("c") == [1]


def test_pending_pod_is_bound_when_a_node_arrives(cluster: Wired) -> None:
    _two_busy_cards(cluster)
    cluster.create(gpushare_pod("c", 4))
    cluster.waits("c")
    assert _bound_after(cluster, lambda: cluster.create(gpushare_node("m", 8)), "c") < SOON


def test_pending_pod_is_bound_when_a_card_recovers(cluster: Wired) -> None:
    cluster.create(gpushare_node("n", 8, 8, annotations=inventory(8, 8, sick=[1])))
    cluster.placed(gpushare_pod("a", 6))
    cluster.create(gpushare_pod("c", 4))
    cluster.waits("c")
    assert _bound_after(cluster, lambda: cluster.annotate_node("n", inventory(8, 8)), "c") < SOON


def test_pending_pod_is_bound_when_configmap_returns_a_card(cluster: Wired) -> None:
    """kube-scheduler does not look at ConfigMaps: that it tries again is our doing."""
    cluster.create(unhealthy("n", "1"), gpushare_node("n", 8, 8))
    cluster.placed(gpushare_pod("a", 6))
    cluster.create(gpushare_pod("c", 4))
    cluster.waits("c")
    path = "/api/v1/namespaces/kube-system/configmaps/unhealthy-gpu-n"
    assert _bound_after(cluster, lambda: cluster.plane.api("DELETE", path), "c") < SOON


def test_a_node_that_breaks_a_rule_takes_no_pod_until_it_is_corrected(cluster: Wired) -> None:
    policy = "tke.cloud.tencent.com/qgpu-schedule-policy"
    cluster.create(qgpu_node("n", 16, labels={**QGPU, policy: "fair"}), pod("p", {QGPU_MEMORY: 4, QGPU_CORE: 20}))
    rule = f'metadata.labels["{policy}"]: "fair" is not allowed: best-effort or be, fixed-share or fs'
    cluster.waits("p", f"invalid node: {rule}")
    cluster.await_event("n", "InvalidNode", rule)
    assert _bound_after(cluster, lambda: cluster.label_node("n", {policy: "fs"}), "p") < SOON


def test_pending_pod_is_bound_fast_if_kube_scheduler_saw_no_room(cluster: Wired) -> None:
    cluster.create(gpushare_node("n", 8))
    cluster.placed(gpushare_pod("a", 8))
    cluster.create(gpushare_pod("c", 4))
    cluster.waits("c", "Insufficient aliyun.com/gpu-mem")
    assert _bound_after(cluster, lambda: delete_pod(cluster.plane, "a"), "c") < SOON


def test_pending_pod_is_bound_fast_after_long_wait(cluster: Wired) -> None:
    """Tried many times over, a Pod is not put off for longer and longer."""
    _two_busy_cards(cluster)
    cluster.create(gpushare_pod("c", 4))
    cluster.waits("c")
    for number in range(6):  # each an event at which kube-scheduler tries again
        cluster.label_node("n", {"round": str(number)})
        time.sleep(0.3)
    assert _bound_after(cluster, lambda: delete_pod(cluster.plane, "b"), "c") < SOON


def test_pending_pods_are_bound_together(cluster: Wired) -> None:
    cluster.create(*(gpushare_node(f"n{number}", 8, 8) for number in range(5)))
    # 2 of 8 are left on each card: 20 GiB in all, and not one card for 3.
    objects.create_many(cluster.plane, [gpushare_pod(f"a{number}", 6) for number in range(10)])
    cluster.bound(*(f"a{number}" for number in range(10)))
    waiting = [f"c{number}" for number in range(12)]
    objects.create_many(cluster.plane, [gpushare_pod(name, 8) for name in waiting])
    for name in waiting:
        cluster.waits(name)

    def free() -> None:
        for number in range(10):
            delete_pod(cluster.plane, f"a{number}")

    def bound() -> int:
        return sum(1 for pod in objects.list_pods(cluster.plane) if pod["spec"].get("nodeName"))

    began = time.monotonic()
    free()
    wait_until(lambda: bound() == 10, 20, "10 of 12 bound", saw=bound, every=0.05)
    print(f"10 Pods bound {time.monotonic() - began:.2f} s after room was made")
    assert time.monotonic() - began < SOON + 1


def test_pod_that_never_fits_preempts_no_other(cluster: Wired) -> None:
    cluster.create(gpushare_node("n", 16, 16))
    cluster.placed(gpushare_pod("low", 4))
    cluster.create(pod("high", {MEM: 20}, priorityClassName="system-cluster-critical"))
    never = "1 GPU memory: needs 20 GiB per card; no card is that large (aliquot:memory)"
    cluster.waits("high", never, "Preemption is not helpful for scheduling")
    cluster.await_event("high", "WaitingForGPU", "will not take it")
    assert objects.bound_to(cluster.plane, "low") == "n"


def test_pod_that_a_kubelet_rejected_goes_with_an_event_on_its_owner_and_its_node_is_closed(cluster: Wired) -> None:
    """Its agent was killed. A finalizer keeps the Pod, so that we see what the API server wrote on it."""
    cluster.create(gpushare_node("n", 8, 8, annotations={AGENT: "0.1.0"}))
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner", "namespace": "default"}}
    (owner,) = cluster.create(config)
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    owned = gpushare_pod("owned", 4)
    owned["metadata"] |= {"ownerReferences": [{**reference, "controller": True}], "finalizers": ["example.com/kept"]}
    bare = gpushare_pod("bare", 4)
    cluster.placed(owned, bare)
    message = f"Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy {MEM}"
    rejected = {"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message}}
    for name in ("bare", "owned"):
        cluster.patch(f"/api/v1/namespaces/default/pods/{name}/status", rejected)
    try:
        wait_until(lambda: "deletionTimestamp" in cluster.pod("owned")["metadata"], 10, "the Pod is deleted")
        conditions = {condition["type"]: condition for condition in cluster.pod("owned")["status"]["conditions"]}
        assert conditions["DisruptionTarget"]["reason"] == "EvictionByEvictionAPI"
        events = wait_until(lambda: objects.events_of(cluster.plane, "owner"), 10, "an event on its owner")
        assert [reason for reason, _ in events] == ["PodRejected"]
    finally:
        cluster.patch("/api/v1/namespaces/default/pods/owned", {"metadata": {"finalizers": None}})
        cluster.plane.api("DELETE", "/api/v1/namespaces/default/configmaps/owner")
    assert objects.get_node(cluster.plane, "n")["metadata"]["annotations"][AGENT] == "away"
    assert "deletionTimestamp" not in cluster.pod("bare")["metadata"]
    cluster.create(gpushare_pod("later", 4))
    cluster.waits("later", "0/1 nodes are available")
    cluster.annotate_node("n", {AGENT: "0.1.0"})
    cluster.bound("later", seconds=SOON)
