"""What is taken from a Node when it is all taken away: ours, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.dialects.wire.leftovers import LeftBehind, node_leftovers, parse_left_behind, render_left_behind
from aliquot.model.refusal import Invalid
from kit.values.manifests import a_node

MARK = "aliquot.dev/left-behind"


def _node(**metadata: Any) -> Any:
    return {"metadata": {"name": "n1", "resourceVersion": "7", **metadata}, "spec": {}, "status": {}}


def test_node_without_marks_needs_no_patch() -> None:
    node = _node(labels={"gpushare": "true"}, annotations={"other.dev/x": "y"})
    assert node_leftovers(node) == (None, None)


def test_scheduler_label_is_found_in_managed_fields() -> None:
    fields: Any = {"f:metadata": {"f:labels": {"f:qgpu-device-enable": {}}}}
    books = [{"manager": "aliquot-scheduler", "fieldsV1": fields}]
    labels = {"qgpu-device-enable": "enable", "zone": "a"}
    patch, _ = node_leftovers(_node(labels=labels, managedFields=books))
    assert patch is not None
    assert patch["metadata"]["labels"] == {"qgpu-device-enable": None}
    by_hand = [{"manager": "kubectl-label", "fieldsV1": fields}]
    assert node_leftovers(_node(labels=labels, managedFields=by_hand)) == (None, None)


def test_node_leftovers_removes_all_marks() -> None:
    node = _node(annotations={"aliquot.dev/inventory": "{}", "aliquot.dev/agent": "1", "other": "x"})
    mark = {"key": "sched.tensorstack.dev/xgn-mode", "value": "true", "effect": "NoSchedule"}
    node["spec"]["taints"] = [mark, {"key": "theirs", "effect": "NoSchedule"}]
    node["status"] = {
        "conditions": [{"type": "GPUHealthy"}, {"type": "Ready"}],
        "capacity": {"cpu": "2", "aliyun.com/gpu-mem": "0"},
    }
    patch, status = node_leftovers(node)
    assert patch is not None
    assert patch["metadata"]["annotations"] == {"aliquot.dev/inventory": None, "aliquot.dev/agent": None}
    assert patch["spec"] == {"taints": [{"key": "theirs", "effect": "NoSchedule"}]}
    assert status == {
        "status": {"conditions": [{"$patch": "delete", "type": "GPUHealthy"}], "capacity": {"aliyun.com/gpu-mem": None}}
    }


@pytest.mark.parametrize("label", ["true", "false"])
@pytest.mark.parametrize(
    ("capacity", "allocatable", "removed"),
    [("200", "200", True), ("200", "0", True), ("0", "0", True), ("2", "2", False), ("2", "0", False)],
    ids=["our agent's", "after our agent", "of a plugin that is gone", "NVIDIA's plugin", "which restarts"],
)
def test_nvidia_gpu_is_removed_only_if_it_was_ours(label: str, capacity: str, allocatable: str, removed: bool) -> None:
    node = a_node("n1", 16, 16, labels={"aliquot.dev/serve-nvidia-gpu": label})
    gpu = "nvidia.com/gpu"
    node["status"] = {"capacity": {gpu: capacity, "cpu": "8"}, "allocatable": {gpu: allocatable}}
    gone = {"status": {"capacity": {gpu: None}, "allocatable": {gpu: None}}}
    assert node_leftovers(node)[1] == (gone if removed else None)


# --- where files of Pods stay ----------------------------------------------------------------------------------------


def test_left_behind_mark_parses_back() -> None:
    labelled = LeftBehind("aliquot", selinux={"type": "spc_t", "level": "s0:c1,c2"})
    team = LeftBehind("aliquot", labels={"team": "gpu", "corp.example/cost-center": "", "a_B.c": "x_Y.1"})
    plain = LeftBehind("reg:5000/a/aliquot@sha256:ab")
    for left in (plain, LeftBehind("aliquot", "/data/k8s.io/kubelet"), labelled, team):
        assert parse_left_behind(_node(annotations={MARK: render_left_behind(left)})) == left
    assert parse_left_behind(_node()) is None


@pytest.mark.parametrize(
    "text",
    ["", "7", "[]", "{}", '{"image":"a"}', '{"v":2,"image":"a"}', '{"v":1,"image":"-v /:/host"}', '{"v":1,"image":""}']
    + [f'{{"v":1,"image":"a","kubelet":"{folder}"}}' for folder in ("", "x", "/", "/a/../b", "/a b", "/a/")]
    + [f'{{"v":1,"image":"a","selinux":{label}}}' for label in ('"x"', '{"more":"x"}', '{"type":"a b"}', '{"type":7}')]
    + [
        f'{{"v":1,"image":"a","labels":{labels}}}'
        for labels in ("7", '{"a b":"x"}', '{"a":"-"}', '{"a":7}', '{"/a":""}')
    ],
)
def test_invalid_left_behind_mark_is_refused(text: str) -> None:
    """The node's kubelet may write annotations of its Node."""
    parsed = parse_left_behind(_node(annotations={MARK: text}))
    assert isinstance(parsed, Invalid)
    assert MARK in parsed.sentence()


def test_left_behind_mark_replaces_agent_marks_in_one_patch() -> None:
    node, left = _node(annotations={"aliquot.dev/agent": "1"}), LeftBehind("here/aliquot:1")
    patch, _ = node_leftovers(node, left)
    assert patch is not None
    assert patch["metadata"]["annotations"] == {"aliquot.dev/agent": None, MARK: render_left_behind(left)}
    again = _node(annotations={MARK: render_left_behind(left)})
    assert node_leftovers(again, left) == (None, None), "said twice, it changes nothing"


def test_resources_of_others_on_left_node_are_kept() -> None:
    """gpushare is back there, and a taint of T9k's is not ours."""
    mark = {"key": "sched.tensorstack.dev/xgn-mode", "value": "true", "effect": "NoSchedule"}
    amounts = {"aliyun.com/gpu-mem": "64", "aliyun.com/gpu-count": "4", "tke.cloud.tencent.com/qgpu-core": "0"}
    node = _node(annotations={MARK: render_left_behind(LeftBehind("i"))})
    node["spec"]["taints"] = [mark]
    node["status"] = {"capacity": dict(amounts), "allocatable": dict(amounts)}
    patch, status = node_leftovers(node)
    assert patch == {"metadata": {"annotations": {MARK: None}, "resourceVersion": "7"}}
    gone = {"tke.cloud.tencent.com/qgpu-core": None}
    assert status == {"status": {"capacity": gone, "allocatable": gone}}


def test_resources_of_others_without_agent_are_kept() -> None:
    node = _node()
    node["status"] = {"capacity": {"aliyun.com/gpu-mem": "64"}, "allocatable": {"aliyun.com/gpu-mem": "64"}}
    assert node_leftovers(node) == (None, None)
