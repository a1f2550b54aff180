"""Objects of other operators become the Pods that these would make; whole manifests are in tests/cli/cluster."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects.kube import operators
from aliquot.dialects.kube.manifests import expand
from aliquot.model.refusal import Invalid
from kit.values.strategies import anything

Json = dict[str, Any]
TEMPLATE: Json = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}}
VOLCANO: Json = {
    "apiVersion": "batch.volcano.sh/v1alpha1",
    "kind": "Job",
    "metadata": {"name": "v", "namespace": "team"},
    "spec": {"tasks": [{"name": "Worker", "replicas": 2, "template": TEMPLATE}]},
}


def test_pods_have_names_namespace_owner_and_the_template() -> None:
    pods = expand({"kind": "List", "items": [VOLCANO]}, operators=True)
    assert isinstance(pods, list)
    assert [pod["metadata"]["name"] for pod in pods] == ["v-worker-0", "v-worker-1"]
    (owner,) = pods[0]["metadata"]["ownerReferences"]
    assert (owner["kind"], pods[0]["metadata"]["namespace"], pods[0]["metadata"]["labels"]) == (
        "Job",
        "team",
        {"a": "b"},
    )
    assert pods[0]["spec"] == TEMPLATE["spec"]


def test_without_the_operators_only_kubernetes_own_kinds_are_read() -> None:
    assert isinstance(expand(VOLCANO), Invalid), "a Job of Kubernetes has a template"
    assert expand({**VOLCANO, "kind": "RayCluster", "apiVersion": "ray.io/v1"}) == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"metadata": {}}, "metadata.name"),
        ({"spec": None}, "spec"),
        ({"spec": {"tasks": [{"replicas": -1, "template": TEMPLATE}]}}, "spec.tasks[0].replicas"),
        ({"spec": {"tasks": [{"replicas": True, "template": TEMPLATE}]}}, "spec.tasks[0].replicas"),
        ({"spec": {"tasks": [{"template": {"spec": []}}]}}, "spec.tasks[0].template"),
        ({"spec": {"tasks": [{"template": {"spec": {}, "metadata": 7}}]}}, "spec.tasks[0].template"),
        ({"spec": {"tasks": [{"replicas": 150_000, "template": TEMPLATE}] * 2}}, "spec"),
    ],
)
def test_wrong_shape_is_named(change: Json, field: str) -> None:
    wrong = operators.operator_pods({**VOLCANO, **change})
    assert isinstance(wrong, Invalid)
    assert wrong.field == field


@given(st.sampled_from(sorted(operators._READERS)), anything, st.dictionaries(st.text(), anything))
def test_any_json_is_read_or_named(key: tuple[str, str], spec: object, more: Json) -> None:
    group, kind = key
    keys = (
        "templates", "tasks", "replicatedJobs", "workerGroupSpecs", "headGroupSpec", "predictor", "template",
        "leaderWorkerTemplate", "rayClusterSpec", "rayClusterConfig", "workflowSpec", "pytorchReplicaSpecs",
    )  # fmt: skip
    for inner in (spec, {**more, **dict.fromkeys(keys, spec)}, {**more, **{name: [spec, more] for name in keys}}):
        obj = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": "n"}, "spec": inner}
        assert isinstance(operators.operator_pods(obj), list | Invalid)
