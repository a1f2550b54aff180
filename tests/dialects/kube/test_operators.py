"""Objects of other operators become the Pods that these would make; whole manifests are in tests/cli/cluster."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects.kube import operators
from aliquot.dialects.kube.manifests import expand
from aliquot.dialects.kube.templates import MOST
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
    assert pods[0]["spec"] == {**TEMPLATE["spec"], "schedulerName": "volcano"}


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
    ],
)
def test_wrong_shape_is_named(change: Json, field: str) -> None:
    wrong = operators.operator_pods({**VOLCANO, **change})
    assert isinstance(wrong, Invalid)
    assert wrong.field == field


def test_too_many_pods_in_all_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST == 150_000
    monkeypatch.setattr(operators, "MOST", 5)
    task = {"replicas": 3, "template": TEMPLATE}
    assert isinstance(operators.operator_pods({**VOLCANO, "spec": {"tasks": [{**task, "replicas": 5}]}}), list)
    wrong = operators.operator_pods({**VOLCANO, "spec": {"tasks": [task, task]}})
    assert isinstance(wrong, Invalid)
    assert (wrong.field, wrong.value) == ("spec", 6)


def pods_of(api: str, kind: str, spec: Json, **metadata: Any) -> list[Json]:
    obj = {"apiVersion": api, "kind": kind, "metadata": {"name": "n", **metadata}, "spec": spec}
    pods = operators.operator_pods(obj)
    assert isinstance(pods, list), pods
    return pods


@pytest.mark.parametrize(
    ("job", "template", "wanted"),
    [
        ({}, {}, ("volcano", None)),
        ({"schedulerName": "mine", "priorityClassName": "high"}, {}, ("mine", "high")),
        ({"schedulerName": "mine", "priorityClassName": "high"}, {"schedulerName": ""}, ("mine", "high")),
        (
            {"schedulerName": "mine", "priorityClassName": "high"},
            {"schedulerName": "own", "priorityClassName": "low"},
            ("own", "low"),
        ),
    ],
)
def test_pods_of_volcano_have_the_scheduler_and_priority_of_their_job(job: Json, template: Json, wanted: Any) -> None:
    task = {"template": {"spec": {"containers": [], **template}}}
    (pod,) = pods_of("batch.volcano.sh/v1alpha1", "Job", {**job, "tasks": [task]})
    assert (pod["spec"]["schedulerName"], pod["spec"].get("priorityClassName")) == wanted


@pytest.mark.parametrize(
    ("api", "kind", "spec"),
    [
        ("kubeflow.org/v1", "Notebook", {"template": {"metadata": {"annotations": {"b": "own"}}, "spec": {}}}),
        ("serving.kserve.io/v1beta1", "InferenceService", {"predictor": {"annotations": {"b": "own"}, "model": {}}}),
    ],
)
def test_labels_and_annotations_of_the_object_are_copied_where_its_controller_does(
    api: str, kind: str, spec: Json
) -> None:
    (pod,) = pods_of(api, kind, spec, labels={"l": "x"}, annotations={"a": "x", "b": "x"})
    assert pod["metadata"]["labels"] == {"l": "x"}
    assert pod["metadata"]["annotations"] == {"a": "x", "b": "own"}
    (pod,) = pods_of(api, kind, spec, labels=7, annotations=[])
    assert pod["metadata"]["annotations"] == {"b": "own"}


def test_labels_of_other_objects_are_not_copied() -> None:
    (pod,) = pods_of("apps.kruise.io/v1alpha1", "CloneSet", {"template": TEMPLATE}, labels={"l": "x"})
    assert pod["metadata"]["labels"] == {"a": "b"}


@pytest.mark.parametrize(
    ("group", "number"),
    [
        ({"replicas": 1, "minReplicas": 2}, 2),
        ({"replicas": 5, "maxReplicas": 3}, 3),
        ({"replicas": 5, "maxReplicas": 2**31 - 1}, 5),
        ({"replicas": 5, "minReplicas": 1, "maxReplicas": 3, "numOfHosts": 2}, 6),
        ({"minReplicas": 2, "maxReplicas": 3}, 2),
        ({"replicas": 5, "suspend": True}, 0),
        ({"replicas": 5, "suspend": False}, 5),
        ({}, 0),
    ],
)
def test_ray_has_as_many_workers_as_its_operator_would_start(group: Json, number: int) -> None:
    spec = {"headGroupSpec": {"template": TEMPLATE}, "workerGroupSpecs": [{**group, "template": TEMPLATE}]}
    assert len(pods_of("ray.io/v1", "RayCluster", spec)) == 1 + number


GROUP = ("replicas", "minReplicas", "maxReplicas", "numOfHosts", "suspend")


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(GROUP, anything | st.integers(-2, 9))))
def test_any_group_of_ray_is_read_or_named(group: Json) -> None:
    spec = {"headGroupSpec": {"template": TEMPLATE}, "workerGroupSpecs": [{**group, "template": TEMPLATE}]}
    obj = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "n"}, "spec": spec}
    assert isinstance(operators.operator_pods(obj), list | Invalid)


@pytest.mark.parametrize(("given", "wanted"), [({}, None), ({"t9kScheduler": {"queue": "q"}}, "t9k-scheduler")])
def test_scheduler_of_a_t9k_job_is_that_of_its_pods(given: Json, wanted: str | None) -> None:
    spec = {"scheduler": given, "replicaSpecs": [{"type": "Worker", "template": TEMPLATE}]}
    (pod,) = pods_of("batch.tensorstack.dev/v1beta1", "GenericJob", spec)
    assert (pod["metadata"]["name"], pod["spec"].get("schedulerName")) == ("n-worker-0", wanted)


def test_scheduler_that_a_template_of_t9k_names_itself_is_kept_and_null_names_none() -> None:
    for own, wanted in (("mine", "mine"), (None, "t9k-scheduler"), ("", "t9k-scheduler")):
        template = {**TEMPLATE, "spec": {**TEMPLATE["spec"], "schedulerName": own}}
        spec = {"scheduler": {"t9kScheduler": {}}, "replicaSpecs": [{"type": "Worker", "template": template}]}
        (pod,) = pods_of("batch.tensorstack.dev/v1beta1", "GenericJob", spec)
        assert pod["spec"]["schedulerName"] == wanted


def test_service_of_t9k_that_has_resources_for_its_own_container_has_it_once() -> None:
    limits = {"limits": {"tensorstack.dev/nvidia-gpu-percent": 25}}
    own = {
        "template": {"spec": {"containers": [{"name": "a", "image": "i"}, {"image": "unnamed"}]}},
        "containersResources": [{"name": "a", "resources": limits}, {"resources": limits}],
    }
    (pod,) = pods_of("tensorstack.dev/v1beta1", "MLService", {"releases": [{"name": "v1", "predictor": own}]})
    assert pod["spec"]["containers"] == [
        {"name": "a", "image": "i", "resources": limits},
        {"image": "unnamed"},
        {"image": "of-the-runtime", "resources": limits},
    ]


def test_null_resources_of_a_service_of_t9k_leave_those_of_its_template() -> None:
    limits = {"limits": {"tensorstack.dev/nvidia-gpu-percent": 25}}
    own = {
        "template": {"spec": {"containers": [{"name": "a", "resources": limits}]}},
        "containersResources": [{"name": "a", "resources": None}],
    }
    (pod,) = pods_of("tensorstack.dev/v1beta1", "MLService", {"releases": [{"name": "v1", "predictor": own}]})
    assert pod["spec"]["containers"] == [{"name": "a", "resources": limits}]


def test_service_of_t9k_has_the_containers_of_its_template_and_resources() -> None:
    own = {"template": {"spec": {"containers": [{"name": "a"}]}}, "containersResources": [{"name": "b"}]}
    spec = {"releases": [{"name": "v1", "predictor": own}, {"name": "v2", "predictor": {}}]}
    (pod,) = pods_of("tensorstack.dev/v1beta1", "MLService", spec)
    assert [container["name"] for container in pod["spec"]["containers"]] == ["a", "b"]


REF = {"name": "x"}


@pytest.mark.parametrize(
    ("kind", "spec", "said"),
    [
        ("Rollout", {"replicas": 2, "workloadRef": {"kind": "Deployment", **REF}}, "its template is in Deployment x"),
        ("Workflow", {"workflowTemplateRef": REF}, "its templates are in WorkflowTemplate x"),
        ("Workflow", {"workflowTemplateRef": {**REF, "clusterScope": True}}, "are in ClusterWorkflowTemplate x"),
        ("CronWorkflow", {"workflowSpec": {"workflowTemplateRef": REF}}, "its templates are in WorkflowTemplate x"),
    ],
)
def test_template_of_another_object_is_named(kind: str, spec: Json, said: str) -> None:
    assert pods_of("argoproj.io/v1alpha1", kind, spec) == []
    assert said in str(operators.elsewhere({"apiVersion": "argoproj.io/v1alpha1", "kind": kind, "spec": spec}))


@pytest.mark.parametrize("kind", ["Rollout", "Workflow", "WorkflowTemplate", "CronWorkflow"])
def test_template_of_its_own_is_not_named(kind: str) -> None:
    spec = {"template": TEMPLATE, "templates": [{"container": {}}], "workloadRef": REF}
    assert operators.elsewhere({"apiVersion": "argoproj.io/v1alpha1", "kind": kind, "spec": spec}) is None
    assert operators.elsewhere({"apiVersion": "other/v1", "kind": kind, "spec": {"workflowTemplateRef": REF}}) is None


@given(st.sampled_from(sorted(operators._READERS)), anything, st.dictionaries(st.text(), anything))
def test_any_json_is_read_or_named(key: tuple[str, str], spec: object, more: Json) -> None:
    group, kind = key
    keys = (
        "templates", "tasks", "replicatedJobs", "workerGroupSpecs", "headGroupSpec", "predictor", "template",
        "leaderWorkerTemplate", "rayClusterSpec", "rayClusterConfig", "workflowSpec", "pytorchReplicaSpecs",
        "workloadRef", "workflowTemplateRef", "trainer", "runtimeRef", "replicaSpecs", "worker", "launcher", "releases",
        "tensorflow", "custom", "scheduler",
    )  # fmt: skip
    for inner in (spec, {**more, **dict.fromkeys(keys, spec)}, {**more, **{name: [spec, more] for name in keys}}):
        obj = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": "n", "labels": spec}, "spec": inner}
        operators.elsewhere(obj)
        assert isinstance(operators.operator_pods(obj), list | Invalid)
