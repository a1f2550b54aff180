"""A cluster as it stands: which Pods hold which cards, by annotation or by guess, and what is left for the next Pod."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aliquot.dialects import Rules
from aliquot.dialects.kube.manifests import expand
from aliquot.services.explain.snapshot import Snapshot, take_snapshot
from aliquot.services.explain.verdicts import Verdict
from kit.values.manifests import (
    MEM,
    MIXED,
    QGPU,
    QGPU_CORE,
    QGPU_MEMORY,
    T9K_NODE,
    XGN,
    Json,
    a_container,
    a_node,
    a_pod,
    asking,
    gpushare_node,
    gpushare_pod,
    on_card,
    replicas,
)


def snapshot(*objects: object, policy: str = "binpack") -> Snapshot:
    return take_snapshot(objects, policy=policy, rules=Rules())


def free(there: Snapshot, node: str = "n1") -> list[int]:
    """GiB free on each card of the node."""
    return [int(room) // 1024 for room in there.cluster.board.room_memory[there.cluster.board.row_of[node]]]


def cards(verdict: Verdict) -> list[int]:
    assert verdict.grant is not None
    return [share.card for container in verdict.grant.containers for share in container.shares]


def notes(there: Snapshot) -> list[tuple[str, str]]:
    return [(note.about, note.text) for note in there.notes]


def our_grant(node: str, card: int, gib: int, **more: Any) -> dict[str, str]:
    wire = {"name": "main", "cards": [{"index": card, "memory_mib": gib * 1024, **more}]}
    return {"aliquot.dev/grant": json.dumps({"v": 1, "node": node, "containers": [wire]})}


# --- what is held ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "annotations",
    [
        {"ALIYUN_COM_GPU_MEM_IDX": "1"},
        {"scheduler.framework.gpushare.allocation": '{"0":{"1":5}}'},
        {"scheduler.framework.gpushare.allocation": '{"0":{"1":5}}', "ALIYUN_COM_GPU_MEM_IDX": "0"},
        our_grant("n1", 1, 5),
        our_grant("n1", 1, 5) | {"ALIYUN_COM_GPU_MEM_IDX": "0"},
    ],
    ids=["the old annotation", "the new one", "new before old", "ours", "ours before theirs"],
)
def test_the_card_is_where_the_annotations_say(annotations: dict[str, str]) -> None:
    there = snapshot(gpushare_node("n1", 16, 16), gpushare_pod("r", 5, on="n1", annotations=annotations))
    assert free(there) == [16, 11]
    assert not there.notes


def test_our_grant_follows_the_card_by_its_uuid() -> None:
    node = gpushare_node("n1", 16, 16)
    inventory = [{"index": at, "uuid": f"GPU-{uuid}", "memory_mib": 16384} for at, uuid in enumerate("ba")]
    node["metadata"]["annotations"] = {"aliquot.dev/inventory": json.dumps({"v": 1, "cards": inventory})}
    running = gpushare_pod("r", 5, on="n1", annotations=our_grant("n1", 0, 5, uuid="GPU-a"))
    assert free(snapshot(node, running)) == [16, 11]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_holds_nothing(phase: str) -> None:
    assert free(snapshot(gpushare_node("n1", 16), on_card("r", 5, 0, status={"phase": phase}))) == [16]


def test_a_terminating_pod_still_holds_its_card() -> None:
    """gpushare frees it at once, while the Pod still runs its grace period."""
    running = on_card("r", 5, 0, status={"phase": "Running"})
    running["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert free(snapshot(gpushare_node("n1", 16), running)) == [11]


def test_a_pod_that_is_not_bound_yet_holds_nothing() -> None:
    assert free(snapshot(gpushare_node("n1", 16), gpushare_pod("waiting", 5))) == [16]


def test_the_order_of_objects_does_not_matter() -> None:
    objects = [gpushare_node("n1", 16, 16), on_card("a", 5, 0), on_card("b", 7, 1), gpushare_pod("c", 10, on="n1")]
    assert free(snapshot(*objects)) == free(snapshot(*reversed(objects))) == [1, 9]


def test_a_pod_shown_twice_is_one_pod() -> None:
    assert free(snapshot(gpushare_node("n1", 16), on_card("r", 5, 0), on_card("r", 5, 0))) == [11]


def test_init_containers_count_as_kubernetes_counts_them() -> None:
    init = [a_container("init", {MEM: 9}), {**a_container("side", {MEM: 1}), "restartPolicy": "Always"}]
    there = snapshot(gpushare_node("n1", 16))
    there.place(a_pod("p", a_container("main", {MEM: 5}), init=init))
    assert free(there) == [16 - max(9, 1 + 5)]


def test_cards_without_an_inventory_come_from_the_capacity() -> None:
    there = snapshot(
        a_node("g", capacity={MEM: "46", "aliyun.com/gpu-count": "2"}),
        a_node("q", labels=QGPU, capacity={QGPU_MEMORY: "64", QGPU_CORE: "200"}),
        a_node("x", labels=XGN, capacity={"tensorstack.dev/nvidia-gpu": "2"}),
    )
    assert [free(there, name) for name in ("g", "q", "x")] == [[23, 23], [32, 32], [16, 16]]
    assert notes(there) == [("x", "the memory of the cards is not known: 16 GiB each is assumed")]


# --- what must be guessed -------------------------------------------------------------------------------------------


def test_pod_without_annotations_is_guessed_around_those_with_a_grant() -> None:
    """Even when it comes first, and even when it has annotations of others."""
    guessed = gpushare_pod("guessed", 10, on="n1", annotations={"prometheus.io/scrape": "true"})
    there = snapshot(gpushare_node("n1", 16, 16), guessed, on_card("told", 10, 0))
    assert free(there) == [6, 6]
    assert notes(there) == [("default/guessed (card 1 of n1)", "the place is a guess: no annotation names its cards")]


def test_pod_with_an_unreadable_annotation_is_guessed_with_a_note() -> None:
    there = snapshot(
        gpushare_node("n1", 16), gpushare_pod("r", 5, on="n1", annotations={"ALIYUN_COM_GPU_MEM_IDX": "x"})
    )
    assert free(there) == [11]
    (note,) = there.notes
    assert note.text.startswith('the place is a guess: metadata.annotations["ALIYUN_COM_GPU_MEM_IDX"]: "x"')


@pytest.mark.parametrize(
    ("running", "why"),
    [
        (gpushare_pod("r", 99, on="n1"), "no annotation names its cards, and none of the node's has room"),
        (gpushare_pod("r", 1, on="gone"), "no annotation names its cards, and its node is not among those given"),
        (asking({MEM: "many"}, "r", on="n1"), 'spec.containers[0].resources.limits["aliyun.com/gpu-mem"]: "many"'),
    ],
)
def test_pod_that_cannot_be_counted_gets_a_note(running: Json, why: str) -> None:
    (note,) = snapshot(gpushare_node("n1", 16), running).notes
    assert note.about == f"default/r on {running['spec']['nodeName']}"
    assert note.text.startswith(f"its GPU is not counted: {why}")


def test_a_pod_whose_cards_are_unknown_still_takes_its_cpu_and_its_place() -> None:
    too_big = a_pod("r", a_container("main", {"tensorstack.dev/nvidia-gpu": 9}, requests={"cpu": "3"}), on="n1")
    there = snapshot(a_node("n1", 16, labels=XGN, capacity={"cpu": "4"}), too_big)
    assert there.cluster.board.room_cpu[0] == 1000
    assert not there.place(asking({T9K_NODE: 1})).fits


# --- placing --------------------------------------------------------------------------------------------------------


def test_a_pod_that_runs_already_stays_where_it_is() -> None:
    there = snapshot(gpushare_node("n1", 16, 16), on_card("p", 5, 1))
    verdict = there.place(gpushare_pod("p", 5))
    assert (cards(verdict), verdict.remark) == ([1], "runs there already")
    assert free(there) == [16, 11]


def ending(pod: Json) -> Json:
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return pod


@pytest.mark.parametrize("running", [on_card("p", 3, 0), ending(on_card("p", 3, 0))], ids=["runs", "terminates"])
def test_a_pod_that_asks_for_more_than_the_one_that_runs_is_placed_anew(running: Json) -> None:
    there = snapshot(gpushare_node("n1", 16, 16), running, on_card("q", 2, 0))
    verdict = there.place(gpushare_pod("p", 40))
    assert not verdict.fits
    assert {(refusal.reason, refusal.had) for refusal in verdict.refusals} == {("memory", 16 * 1024)}


def test_a_changed_pod_has_the_room_of_the_one_that_runs() -> None:
    running = on_card("p", 10, 0)
    there = snapshot(gpushare_node("n1", 16), running)
    verdict = there.place(gpushare_pod("p", 14))
    assert (cards(verdict), verdict.remark) == ([0], "in place of the one on n1")
    assert free(there) == [2]


def test_a_pod_with_scheduling_gates_is_held_back() -> None:
    verdict = snapshot(gpushare_node("n1", 16)).place(gpushare_pod("p", 1, schedulingGates=[{"name": "team/quota"}]))
    assert (verdict.fits, verdict.gates) == (False, ("team/quota",))


_SPREAD = {"maxSkew": 1, "topologyKey": "zone", "labelSelector": {}}


@pytest.mark.parametrize(
    ("spec", "asked"),
    [
        ({"affinity": {"podAntiAffinity": {"required": []}}}, "Pod affinity"),
        ({"topologySpreadConstraints": [_SPREAD], "hostNetwork": True}, "topology spread and host ports"),
    ],
)
def test_what_kube_scheduler_alone_decides_is_a_remark(spec: Json, asked: str) -> None:
    there = snapshot(gpushare_node("n1", 16))
    verdict = there.place(gpushare_pod("p", 1, **spec))
    assert (verdict.fits, verdict.remark) == (True, f"only if kube-scheduler finds the node right for its {asked} too")
    assert there.place(gpushare_pod("big", 99, **spec)).remark is None
    assert there.place(gpushare_pod("plain", 1, affinity={}, topologySpreadConstraints=[])).remark is None


def test_pod_of_the_cluster_has_what_kube_scheduler_last_said() -> None:
    """Its own answer, which knows affinity, spread, ports and every other resource."""
    pod = gpushare_pod("p", 1)
    pod["metadata"]["uid"] = "u"
    said = "0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules"
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    pod["status"] = {"phase": "Pending", "conditions": [condition]}
    verdict = snapshot(gpushare_node("n1", 16), pod).place(pod)
    assert (verdict.fits, verdict.remark) == (True, f"kube-scheduler last said: {said}")


def test_a_pod_that_replaces_one_that_terminates_does_not_run_already() -> None:
    there = snapshot(gpushare_node("n1", 16), ending(on_card("p", 5, 0)))
    assert there.place(gpushare_pod("p", 5)).remark == "in place of the one on n1"
    assert free(there) == [11]


@pytest.mark.parametrize(("cpu", "stays"), [("1", True), ("2", True), ("3", False)])
def test_a_pod_that_runs_may_have_more_cpu_than_its_manifest_says(cpu: str, stays: bool) -> None:
    """Webhooks of others add containers, and autoscalers CPU."""
    running, pod = on_card("p", 5, 0), gpushare_pod("p", 5)
    for manifest, amount in ((running, "2"), (pod, cpu)):
        manifest["spec"]["containers"][0]["resources"]["requests"] = {"cpu": amount}
    there = snapshot(gpushare_node("n1", 16, unschedulable=True, capacity={"cpu": "8"}), running)
    assert there.place(pod).fits is stays


def test_the_pod_of_the_cluster_itself_runs_though_it_terminates() -> None:
    itself = ending(on_card("p", 5, 0))
    verdict = snapshot(gpushare_node("n1", 16), itself).place(itself)
    assert verdict.remark == "runs there already"


@pytest.mark.parametrize(
    ("limits", "uid", "fits"),
    [({}, "u", False), ({"aliquot.dev/card-place": 1}, "u", True), ({}, None, True)],
    ids=["of the cluster", "with a place", "yet to be created"],
)
def test_pod_of_kai_without_a_place_must_be_created_again(limits: Json, uid: str | None, fits: bool) -> None:
    """kube-scheduler does not ask us about it, and starts it without a card."""
    pod = a_pod("p", a_container("side"), a_container("main", limits), annotations={"gpu-fraction": "0.5"})
    pod["metadata"]["annotations"]["gpu-fraction-container-name"] = "main"
    pod["metadata"]["uid"] = uid
    node = a_node("n1", 16, labels={"aliquot.dev/serve-kai": "true"})
    verdict = take_snapshot([node, pod], policy="binpack", rules=Rules(served=frozenset({"kai"}))).place(pod)
    assert verdict.fits is fits
    assert [broken.sentence() for broken in verdict.broken] == [
        'spec.containers[1].resources.limits["aliquot.dev/card-place"] is missing: the webhook adds it to new Pods, '
        "and without it the Pod gets no card: create the Pod again"
    ] * (not fits)


def test_daemon_sets_pod_does_not_block_a_whole_node() -> None:
    node = a_node("n1", 16, 16, labels=XGN)
    assert snapshot(node, a_pod("log", a_container(), on="n1", owner="DaemonSet/log")).place(asking({T9K_NODE: 1})).fits
    assert (
        not snapshot(node, a_pod("web", a_container(), on="n1", owner="ReplicaSet/web"))
        .place(asking({T9K_NODE: 1}))
        .fits
    )


def test_a_whole_node_pod_blocks_the_node() -> None:
    there = snapshot(a_node("n1", 16, 16, labels=XGN), asking({T9K_NODE: 1}, "all", on="n1"))
    (refusal,) = there.place(asking({"tensorstack.dev/nvidia-gpu": 1})).refusals
    assert refusal.reason == "whole-node"


def test_the_toleration_an_exclusive_pod_gets_by_itself_counts() -> None:
    node = a_node("n1", 16, labels=XGN)  # its taint follows from its labels
    assert snapshot(node).place(asking({"tensorstack.dev/nvidia-gpu": 1})).fits
    shared = {**XGN, "gpushare": "true"}
    verdict = snapshot(a_node("n1", 16, labels=shared)).place(gpushare_pod())
    assert [refusal.reason for refusal in verdict.refusals] == ["taint"]


def test_a_selected_node_is_taken_even_when_another_scores_better() -> None:
    there = snapshot(
        gpushare_node("fuller", 16), on_card("r", 5, 0, "fuller"), gpushare_node("zone-a", 16, labels={"zone": "a"})
    )
    assert there.place(gpushare_pod("p", 1, nodeSelector={"zone": "a"})).grant is not None
    assert free(there, "zone-a") == [15]


def test_a_selector_nested_beyond_all_measure_selects_nothing() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = {"a": deep}
    assert not snapshot(gpushare_node()).place(gpushare_pod("p", 1, nodeSelector={"zone": deep})).fits


def test_a_node_that_breaks_a_rule_takes_nothing_and_the_others_do() -> None:
    broken = gpushare_node("broken", 16)
    broken["metadata"]["annotations"]["aliquot.dev/inventory"] = "{"
    nameless = gpushare_node("x", 16)
    del nameless["metadata"]["name"]
    there = snapshot(broken, nameless, gpushare_node("n1", 16), {"kind": "Node", "metadata": 7}, "text", None)
    verdict = there.place(gpushare_pod())
    assert verdict.grant is not None
    assert verdict.grant.node == "n1"
    assert {refusal.node for refusal in verdict.refusals} == {"broken", "(a node without a name)"}
    assert {refusal.reason for refusal in verdict.refusals} == {"invalid-node"}


def test_unreadable_unhealthy_configmap_gets_a_note() -> None:
    metadata = {"name": "unhealthy-gpu-n1", "namespace": "kube-system"}
    there = snapshot(gpushare_node("n1", 16), {"kind": "ConfigMap", "metadata": metadata, "data": {"gpus": "first"}})
    assert there.place(gpushare_pod()).fits
    assert [note.about for note in there.notes] == ["kube-system/unhealthy-gpu-n1"]


def test_replicas_that_do_not_fit_share_one_answer_until_something_changes() -> None:
    there = snapshot(gpushare_node("n1", 16))
    there.place(gpushare_pod("there", 2))
    first, second = there.place(gpushare_pod("a", 16)), there.place(gpushare_pod("b", 16))
    assert first.refusals is second.refusals
    there.place(gpushare_pod("c", 10))
    assert [refusal.had for refusal in there.place(gpushare_pod("d", 16)).refusals] == [4 * 1024]


def test_why_not_elsewhere_is_optional() -> None:
    cluster = (gpushare_node("n1", 16), gpushare_node("n2", 1))
    assert snapshot(*cluster).place(gpushare_pod("p", 2)).refusals
    assert not snapshot(*cluster).place(gpushare_pod("p", 2), why_not_elsewhere=False).refusals
    assert snapshot(*cluster).place(gpushare_pod("p", 17), why_not_elsewhere=False).refusals


@pytest.mark.parametrize("policy", ["binpack", "spread", "fgd", "dense"])
def test_every_policy_places_a_pod_of_every_dialect(policy: str) -> None:
    there = snapshot(
        a_node("n1", 16, 16, labels={**MIXED, "gpushare": "true"}), a_node("x", 16, labels=XGN), policy=policy
    )
    pods = [gpushare_pod("g", 4), asking({QGPU_MEMORY: 4, QGPU_CORE: 50}, "q"), asking({T9K_NODE: 1}, "x")]
    assert all(there.place(pod).fits for pod in pods)


def test_spread_keeps_replicas_on_different_nodes() -> None:
    there = snapshot(*(gpushare_node(f"n{at}", 16, 16) for at in range(3)), policy="spread")
    made = expand(replicas(3, gpushare_pod("", 2)))
    assert isinstance(made, list)
    placed = [there.place(pod).grant for pod in made]
    assert {grant.node for grant in placed if grant} == {"n0", "n1", "n2"}
