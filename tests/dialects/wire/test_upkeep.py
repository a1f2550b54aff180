"""What a node should be given: taint, label, condition; decided without touching anything."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings

from aliquot.dialects import Rules, render_inventory
from aliquot.dialects.wire.upkeep import Upkeep, may_need_upkeep, upkeep
from aliquot.model.device import Card
from kit.values.claims import nodes
from kit.values.manifests import QGPU, SGN, XGN, a_node
from kit.values.strategies import anything, mutated

Json = dict[str, Any]
TAINT = {"key": "sched.tensorstack.dev/xgn-mode", "value": "true", "effect": "NoSchedule"}
NOW, LATER = "2026-01-01T12:00:00Z", "2026-01-01T13:00:00Z"


def with_cards(*healthy: bool, **more: Any) -> Json:
    """A node whose agent found cards, some of them sick."""
    node = a_node("n1", **more)
    cards = [
        {"index": index, "uuid": f"GPU-{index}", "memory_mib": 16384, "healthy": well}
        for index, well in enumerate(healthy)
    ]
    node["metadata"]["annotations"] = {"aliquot.dev/inventory": json.dumps({"v": 1, "cards": cards})}
    node["metadata"]["resourceVersion"] = "7"
    return node


def with_condition(node: Json, judged: Upkeep) -> Json:
    assert judged.status is not None
    return {**node, "status": {**node["status"], **judged.status["status"]}}


# Taint.


def test_xgn_node_gets_taint_and_keeps_others() -> None:
    other = {"key": TAINT["key"], "effect": "NoExecute", "timeAdded": NOW}
    judged = upkeep(a_node("n1", labels=XGN, taints=[other]), NOW)
    assert judged.node is not None
    assert judged.node["spec"] == {"taints": [other, TAINT]}
    assert [event.reason for event in judged.node_events] == ["TaintAdded"]


@pytest.mark.parametrize("labels", [{}, SGN, {**XGN, "sched.tensorstack.dev/accelerator": "amd-gpu"}])
def test_taint_is_removed_with_label(labels: dict[str, str]) -> None:
    judged = upkeep(a_node("n1", labels=labels, taints=[TAINT]), NOW)
    assert judged.node is not None
    assert judged.node["spec"] == {"taints": []}
    assert [event.reason for event in judged.node_events] == ["TaintRemoved"]


def test_correct_taint_needs_no_patch() -> None:
    assert not upkeep(a_node("n1", labels=XGN, taints=[TAINT]), NOW).needed


def test_patch_has_resource_version() -> None:
    judged = upkeep(with_cards(True, labels=XGN), NOW)
    assert judged.node is not None
    assert judged.node["metadata"] == {"resourceVersion": "7"}


# Label.


def test_node_with_cards_gets_qgpu_label() -> None:
    judged = upkeep(with_cards(True, True), NOW)
    assert judged.node == {"metadata": {"labels": {"qgpu-device-enable": "enable"}, "resourceVersion": "7"}}
    assert [event.message for event in judged.node_events] == ["qgpu-device-enable=enable: the agent found 2 cards"]


@pytest.mark.parametrize(
    "labels",
    [
        QGPU,
        {"qgpu-device-enable": "disable"},
        {"gpushare": "true"},
        {"gpushare": "false"},
        SGN,
        {"aliquot.dev/dra": "true"},
    ],
)
def test_chosen_dialect_labels_are_kept(labels: dict[str, str]) -> None:
    assert upkeep(with_cards(True, labels=labels), NOW).node is None


def test_node_without_cards_or_agent_gets_no_label() -> None:
    assert not upkeep(with_cards(), NOW).needed
    assert not upkeep(a_node("n1", capacity={"aliyun.com/gpu-mem": 16}), NOW).needed


def test_qgpu_label_needs_served_dialect() -> None:
    assert not upkeep(with_cards(True), NOW, rules=Rules(served=frozenset({"gpushare"}))).needed


def _labelled(manager: str, **more: str) -> Json:
    """A node of qGPU that its owner then labelled for whole cards. `manager` wrote qGPU's label."""
    node = with_cards(True, labels={**QGPU, **XGN, **more}, taints=[TAINT])
    fields: Json = {"f:metadata": {"f:labels": {".": {}, "f:qgpu-device-enable": {}}}}
    node["metadata"]["managedFields"] = [{"manager": manager, "fieldsV1": fields}]
    return node


def test_automatic_qgpu_label_gives_way_to_whole_cards() -> None:
    judged = upkeep(_labelled("aliquot"), NOW)
    assert judged.node == {"metadata": {"labels": {"qgpu-device-enable": None}, "resourceVersion": "7"}}
    assert [event.reason for event in judged.node_events] == ["LabelRemoved"]


def test_qgpu_label_of_the_owner_stays_beside_the_label_for_whole_cards() -> None:
    assert not upkeep(_labelled("kubectl-label"), NOW).needed
    assert not upkeep(_labelled("aliquot", **{"aliquot.dev/mix-qgpu-and-whole-cards": "true"}), NOW).needed
    assert not upkeep(_labelled("aliquot", **{"mixed-qgpu-enable": "enable"}), NOW).needed


# Condition.


def test_unhealthy_card_is_named_in_condition() -> None:
    judged = upkeep(with_cards(True, False, labels=QGPU), NOW)
    assert judged.status is not None
    assert judged.status["status"]["conditions"] == [
        {
            "type": "GPUHealthy",
            "status": "False",
            "reason": "SickCards",
            "message": "1 of 2 cards unhealthy: 1 (GPU-1)",
            "lastHeartbeatTime": NOW,
            "lastTransitionTime": NOW,
        }
    ]
    assert [(event.reason, event.type) for event in judged.status_events] == [("SickCards", "Warning")]


def test_card_in_configmap_is_unhealthy() -> None:
    judged = upkeep(a_node("n1", 16, 16, labels=QGPU), NOW, unhealthy=frozenset({0}))
    assert judged.status is not None
    assert judged.status["status"]["conditions"][0]["message"] == "1 of 2 cards unhealthy: 0"


def test_healthy_node_gets_no_condition() -> None:
    assert not upkeep(with_cards(True, labels=QGPU), NOW).needed


def test_recovered_node_condition_is_true_once() -> None:
    sick = with_cards(True, False, labels=QGPU)
    sick = with_condition(sick, upkeep(sick, NOW))
    assert not upkeep(sick, LATER).needed
    well = {**with_cards(True, True, labels=QGPU), "status": sick["status"]}
    judged = upkeep(well, LATER)
    assert judged.status is not None
    (condition,) = judged.status["status"]["conditions"]
    assert (condition["status"], condition["reason"], condition["lastTransitionTime"]) == (
        "True",
        "CardsHealthy",
        LATER,
    )
    assert [event.type for event in judged.status_events] == ["Normal"]
    assert not upkeep(with_condition(well, judged), LATER).needed


def test_second_unhealthy_card_keeps_transition_time() -> None:
    sick = with_cards(True, False, labels=QGPU)
    sick = with_condition(sick, upkeep(sick, NOW))
    worse = {**with_cards(False, False, labels=QGPU), "status": sick["status"]}
    judged = upkeep(worse, LATER)
    assert judged.status is not None
    (condition,) = judged.status["status"]["conditions"]
    assert condition["message"] == "2 of 2 cards unhealthy: 0 (GPU-0), 1 (GPU-1)"
    assert condition["lastTransitionTime"] == NOW


def test_node_without_reported_cards_is_unknown() -> None:
    sick = with_cards(False, labels=QGPU)
    sick = with_condition(sick, upkeep(sick, NOW))
    judged = upkeep({**a_node("n1", labels=QGPU), "status": sick["status"]}, LATER)
    assert judged.status is not None
    assert judged.status["status"]["conditions"][0]["status"] == "Unknown"


# What cannot be read.


def test_invalid_node_still_gets_taint() -> None:
    node = a_node("n1", labels=XGN)
    node["metadata"]["annotations"] = {"aliquot.dev/inventory": "{"}
    judged = upkeep(node, NOW)
    assert [problem.field for problem in judged.problems] == ['metadata.annotations["aliquot.dev/inventory"]']
    assert judged.node is not None
    assert judged.node["spec"] == {"taints": [TAINT]}


def looks_needy(node: Json) -> bool:
    metadata, taints, conditions = node["metadata"], node["spec"].get("taints"), node["status"].get("conditions")
    return may_need_upkeep(metadata["labels"], metadata.get("annotations") or {}, taints or (), conditions or ())


SICK = with_cards(False, labels=QGPU)


@pytest.mark.parametrize(
    "node",
    [
        with_cards(True),
        a_node("n1", labels=XGN),
        a_node("n1", taints=[TAINT]),
        SICK,
        {**with_cards(True, labels=QGPU), "status": with_condition(SICK, upkeep(SICK, NOW))["status"]},
    ],
    ids=["a label", "a taint", "a taint to take away", "a sick card", "a card that is well again"],
)
def test_may_need_upkeep_has_no_false_negatives(node: Json) -> None:
    assert upkeep(node, NOW).needed
    assert looks_needy(node)


def test_may_need_upkeep_skips_complete_nodes() -> None:
    ready = {"type": "Ready", "status": "True"}
    other = a_node("n1", taints=[{"key": "a", "effect": "NoSchedule"}])
    other["status"]["conditions"] = [ready]
    as_the_agent_writes = a_node("n1", labels=QGPU)
    as_the_agent_writes["metadata"]["annotations"] = render_inventory([Card(0, 16384, "GPU-0")])
    for node in (other, as_the_agent_writes, a_node("n1", labels=XGN, taints=[TAINT])):
        assert not looks_needy(node)


@settings(max_examples=200)
@given(anything | mutated(nodes))
def test_upkeep_accepts_any_json(node: object) -> None:
    judged = upkeep(node, NOW, unhealthy=frozenset({0}))
    assert isinstance(judged, Upkeep)


@settings(max_examples=100)
@given(nodes)
def test_upkeep_is_idempotent(node: Json) -> None:
    judged = upkeep(node, NOW)
    after = json.loads(json.dumps(node))
    if judged.node:
        after["metadata"]["labels"] |= judged.node["metadata"].get("labels", {})
        after["spec"] |= judged.node.get("spec", {})
    if judged.status:
        after["status"]["conditions"] += judged.status["status"]["conditions"]
    assert not upkeep(after, LATER).needed


# Other plugins.


@pytest.mark.parametrize("amount", ["2", "0"])
def test_node_of_another_plugin_is_not_labelled(amount: str) -> None:
    node = with_cards(True, capacity={"nvidia.com/gpu": amount})
    assert not upkeep(node, NOW).needed
    node["metadata"]["labels"] = {"aliquot.dev/share-cards-with-other-plugins": "true"}
    assert upkeep(node, NOW).node is not None


def test_node_of_dra_driver_is_not_labelled() -> None:
    assert not upkeep(with_cards(True), NOW, drivers=("gpu.nvidia.com",)).needed
