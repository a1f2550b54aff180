"""What is taken from a Node when it is all taken away: ours, and nothing else."""

from __future__ import annotations

from typing import Any

from aliquot.dialects.leftovers import node_leftovers


def _node(**metadata: Any) -> Any:
    return {"metadata": {"name": "n1", "resourceVersion": "7", **metadata}, "spec": {}, "status": {}}


def test_a_node_without_our_marks_is_left_alone() -> None:
    node = _node(labels={"gpushare": "true"}, annotations={"other.dev/x": "y"})
    assert node_leftovers(node, {}) == (None, None)


def test_labels_that_we_put_there_go_unless_somebody_changed_them() -> None:
    node = _node(labels={"gpushare": "true", "qgpu-device-enable": "disable"})
    patch, _ = node_leftovers(node, {"gpushare": "true", "qgpu-device-enable": "enable"})
    assert patch == {"metadata": {"labels": {"gpushare": None}, "resourceVersion": "7"}}


def test_a_label_that_the_scheduler_put_there_is_known_by_the_api_servers_books() -> None:
    fields: Any = {"f:metadata": {"f:labels": {"f:qgpu-device-enable": {}}}}
    books = [{"manager": "aliquot-scheduler", "fieldsV1": fields}]
    labels = {"qgpu-device-enable": "enable", "zone": "a"}
    patch, _ = node_leftovers(_node(labels=labels, managedFields=books), {})
    assert patch is not None
    assert patch["metadata"]["labels"] == {"qgpu-device-enable": None}
    by_hand = [{"manager": "kubectl-label", "fieldsV1": fields}]
    assert node_leftovers(_node(labels=labels, managedFields=by_hand), {}) == (None, None)


def test_annotations_taint_condition_and_resources_of_ours_go() -> None:
    node = _node(annotations={"aliquot.dev/inventory": "{}", "aliquot.dev/agent": "1", "other": "x"})
    mark = {"key": "sched.tensorstack.dev/xgn-mode", "value": "true", "effect": "NoSchedule"}
    node["spec"]["taints"] = [mark, {"key": "theirs", "effect": "NoSchedule"}]
    node["status"] = {
        "conditions": [{"type": "GPUHealthy"}, {"type": "Ready"}],
        "capacity": {"cpu": "2", "aliyun.com/gpu-mem": "0"},
    }
    patch, status = node_leftovers(node, {})
    assert patch is not None
    assert patch["metadata"]["annotations"] == {"aliquot.dev/inventory": None, "aliquot.dev/agent": None}
    assert patch["spec"] == {"taints": [{"key": "theirs", "effect": "NoSchedule"}]}
    assert status == {
        "status": {"conditions": [{"$patch": "delete", "type": "GPUHealthy"}], "capacity": {"aliyun.com/gpu-mem": None}}
    }
