"""How many Pods each operator's object has, how they are called and what is in them."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.dialects.kube import operators
from aliquot.dialects.kube.templates import number_of
from aliquot.model.refusal import Invalid
from dialects.kube.test_operators import TEMPLATE, pods_of

Json = dict[str, Any]


LWS = ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
OTHER: Json = {"spec": {"containers": [{"name": "leader"}]}}


def containers_by_name(pods: list[Json]) -> list[tuple[str, list[str]]]:
    return [(pod["metadata"]["name"], [container["name"] for container in pod["spec"]["containers"]]) for pod in pods]


@pytest.mark.parametrize(
    ("spec", "pods"),
    [
        ({"workerTemplate": TEMPLATE}, [("n-0-leader-0", ["c"])]),
        ({"workerTemplate": TEMPLATE, "size": 0}, []),
        (
            {"workerTemplate": TEMPLATE, "leaderTemplate": OTHER, "size": 3},
            [("n-0-leader-0", ["leader"]), ("n-0-worker-0", ["c"]), ("n-0-worker-1", ["c"])],
        ),
    ],
)
def test_group_of_a_leader_worker_set_is_one_leader_and_the_rest(spec: Json, pods: object) -> None:
    assert containers_by_name(pods_of(*LWS, {"leaderWorkerTemplate": spec})) == pods
    assert len(pods_of(*LWS, {"leaderWorkerTemplate": spec, "replicas": 2})) == 2 * len(pods)


@pytest.mark.parametrize(
    ("scale", "number"),
    [("3", 3), ("0", 1), ("", 1), ("00003", 3), ("000003", 1), ("-2", 1), ("٣", 1), (3, 1), (None, 1)],
)
@pytest.mark.parametrize("key", ["autoscaling.knative.dev/min-scale", "autoscaling.knative.dev/minScale"])
def test_knative_service_has_its_least_scale_and_at_least_one(key: str, scale: object, number: int) -> None:
    template = {"metadata": {"annotations": {key: scale}}, "spec": {"containers": [{}, {}, {"name": "own"}, 7]}}
    pods = pods_of("serving.knative.dev/v1", "Service", {"template": template})
    assert len(pods) == number
    assert pods[0]["spec"]["containers"] == [
        {"name": "user-container"},
        {"name": "user-container-1"},
        {"name": "own"},
        7,
    ]


@pytest.mark.parametrize(("least", "number"), [({}, 1), ({"minReplicas": 0}, 1), ({"minReplicas": 2}, 2)])
def test_inference_service_has_the_containers_of_its_predictor(least: Json, number: int) -> None:
    predictor = {"containers": [{"name": "own"}], "model": {"image": "m"}, "labels": {"a": "b"}, **least}
    pods = pods_of("serving.kserve.io/v1beta1", "InferenceService", {"predictor": predictor})
    assert len(pods) == number
    assert pods[0]["spec"]["containers"] == [{"name": "own"}, {"image": "m", "name": "kserve-container"}]
    assert pods[0]["metadata"]["labels"] == {"a": "b"}


WORKFLOW: Json = {
    "nodeSelector": {"zone": "a"},
    "schedulerName": "s",
    "podMetadata": {"labels": {"a": "every", "b": "every"}},
    "templates": [
        {"name": "Script", "script": {"image": "i"}, "metadata": {"labels": {"b": "own"}}, "nodeSelector": {}},
        {"name": "steps", "steps": []},
        {"container": {"image": "i", "name": "x"}, "initContainers": [{"name": "i"}], "sidecars": [{"name": "s"}]},
        {"name": "set", "containerSet": {"containers": [{"name": "p"}, {"name": "q"}]}},
    ],
}


@pytest.mark.parametrize(
    ("kind", "spec", "runs"),
    [
        ("Workflow", WORKFLOW, True),
        ("CronWorkflow", {"workflowSpec": WORKFLOW}, True),
        ("CronWorkflow", {"workflowSpec": WORKFLOW, "suspend": True}, False),
    ],
)
def test_workflow_has_a_pod_for_each_template_with_containers(kind: str, spec: Json, runs: bool) -> None:
    pods = pods_of("argoproj.io/v1alpha1", kind, spec)
    named = [("n-script-0", ["main"]), ("n-template2-0", ["main", "s"]), ("n-set-0", ["p", "q"])]
    assert containers_by_name(pods) == (named if runs else [])
    if runs:
        assert [pod["spec"].get("initContainers") for pod in pods] == [None, [{"name": "i"}], None]
        assert [pod["spec"]["nodeSelector"] for pod in pods] == [{}, {"zone": "a"}, {"zone": "a"}]
        assert [pod["metadata"]["labels"]["b"] for pod in pods] == ["own", "every", "every"]
        assert {pod["metadata"]["labels"]["a"] for pod in pods} == {"every"}


@pytest.mark.parametrize(
    ("jobs", "number"),
    [
        ({}, 1),
        ({"replicas": 3}, 3),
        ({"replicas": 2, "parallelism": 4}, 8),
        ({"replicas": 2, "parallelism": 4, "completions": 3}, 6),
        ({"replicas": 2, "parallelism": 2, "completions": 3}, 4),
    ],
)
def test_job_set_has_as_many_pods_as_run_at_once(jobs: Json, number: int) -> None:
    of_job = {key: jobs[key] for key in ("parallelism", "completions") if key in jobs}
    job: Json = {"template": {"spec": {"template": TEMPLATE, **of_job}}, "replicas": jobs.get("replicas", 1)}
    api, kind = "jobset.x-k8s.io/v1alpha2", "JobSet"
    assert len(pods_of(api, kind, {"replicatedJobs": [job]})) == number
    assert pods_of(api, kind, {"replicatedJobs": [job], "suspend": True}) == []
    two = pods_of(api, kind, {"replicatedJobs": [{**job, "replicas": 1}, {**job, "replicas": 1, "name": "Two"}]})
    assert {pod["metadata"]["name"].rpartition("-")[0] for pod in two} == {"n-0", "n-two"}


@pytest.mark.parametrize(
    ("kind", "under"), [("RayCluster", None), ("RayJob", "rayClusterSpec"), ("RayService", "rayClusterConfig")]
)
def test_ray_has_a_head_and_groups_by_name(kind: str, under: str | None) -> None:
    groups = [{"replicas": 1, "template": TEMPLATE}, {"replicas": 1, "groupName": "Big", "template": TEMPLATE}]
    cluster = {"headGroupSpec": {"template": OTHER}, "workerGroupSpecs": groups}
    spec: Json = {under: cluster} if under else cluster
    found = containers_by_name(pods_of("ray.io/v1", kind, spec))
    assert found[0] == ("n-head-0", ["leader"])
    assert [containers for _, containers in found[1:]] == [["c"], ["c"]]
    assert "big" in found[2][0]
    assert pods_of("ray.io/v1", kind, {**spec, "suspend": True}) == []
    if under:
        assert pods_of("ray.io/v1", kind, {}) == [], "a cluster that exists already"


@pytest.mark.parametrize(
    ("trainer", "suspended", "number"),
    [
        ({"resourcesPerNode": {"limits": {}}}, None, 1),
        ({"resourcesPerNode": {"limits": {}}, "numNodes": 3}, False, 3),
        ({"resourcesPerNode": {"limits": {}}, "numNodes": 3}, True, 0),
        ({"numNodes": 3}, None, 0),
    ],
)
def test_nodes_of_a_train_job_that_says_their_resources(trainer: Json, suspended: object, number: int) -> None:
    pods = pods_of("trainer.kubeflow.org/v1alpha1", "TrainJob", {"trainer": trainer, "suspend": suspended})
    assert len(pods) == number
    wanted = {"name": "node", "image": "of-the-runtime", "resources": {"limits": {}}}
    assert all(pod["spec"]["containers"] == [wanted] for pod in pods)


def test_training_job_has_the_replicas_of_its_roles() -> None:
    roles = {"Master": {"template": OTHER}, "Worker": {"replicas": 2, "template": TEMPLATE}}
    found = pods_of("kubeflow.org/v1", "PyTorchJob", {"pytorchReplicaSpecs": roles})
    named = [("n-master-0", ["leader"]), ("n-worker-0", ["c"]), ("n-worker-1", ["c"])]
    assert containers_by_name(found) == named
    suspended = {"pytorchReplicaSpecs": roles, "runPolicy": {"suspend": True}}
    assert pods_of("kubeflow.org/v1", "PyTorchJob", suspended) == []
    job = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": "n"}, "spec": {}}
    wrong = operators.operator_pods(job)
    assert isinstance(wrong, Invalid)
    assert wrong.field == "spec.pytorchReplicaSpecs"


@pytest.mark.parametrize(("written", "number"), [(0, 0), (7, 7), (150_000, 150_000), (None, 1)])
def test_number_of_replicas(written: int | None, number: int) -> None:
    assert number_of({"replicas": written}, "replicas", "spec") == number


@pytest.mark.parametrize("written", [-1, 150_001, True, "3", 1.0])
def test_wrong_number_of_replicas_is_named_with_its_path(written: object) -> None:
    spec = {"template": {"spec": {}}, "replicas": written}
    obj = {"apiVersion": "apps.kruise.io/v1", "kind": "CloneSet", "metadata": {"name": "n"}, "spec": spec}
    wrong = operators.operator_pods(obj, "items[0].")
    assert isinstance(wrong, Invalid)
    assert (wrong.field, wrong.value) == ("items[0].spec.replicas", written)


def test_pods_of_an_object_with_a_generated_name() -> None:
    spec = {"template": TEMPLATE, "replicas": 2}
    obj = {"apiVersion": "apps.kruise.io/v1", "kind": "CloneSet", "metadata": {"generateName": "n-"}, "spec": spec}
    pods = operators.operator_pods(obj)
    assert isinstance(pods, list)
    assert [pod["metadata"]["name"] for pod in pods] == ["n-replica-0", "n-replica-1"]


T9K_JOBS = "batch.tensorstack.dev/v1beta1"
T9K_APPS = "tensorstack.dev/v1beta1"


@pytest.mark.parametrize(
    ("api", "kind", "spec", "pods"),
    [
        (
            T9K_JOBS,
            "PyTorchTrainingJob",
            {"replicaSpecs": [{"template": TEMPLATE}, {"type": "Worker", "replicas": 2, "template": OTHER}]},
            [("n-role0-0", ["c"]), ("n-worker-0", ["leader"]), ("n-worker-1", ["leader"])],
        ),
        (T9K_JOBS, "MPIJob", {"worker": {"replicas": 1, "template": TEMPLATE}}, [("n-worker-0", ["c"])]),
        (
            T9K_JOBS,
            "ColossalAIJob",
            {"launcher": {"image": "i"}, "worker": {"replicas": 0, "template": TEMPLATE}},
            [("n-launcher-0", ["launcher"])],
        ),
        (T9K_APPS, "Notebook", {"template": TEMPLATE}, [("n-notebook-0", ["c"])]),
        (T9K_APPS, "Notebook", {"template": TEMPLATE, "suspend": True}, []),
        (T9K_APPS, "SimpleMLService", {"custom": TEMPLATE}, [("n-server-0", ["c"])]),
        (
            T9K_APPS,
            "SimpleMLService",
            {"pytorch": {"image": "i"}, "replicas": 2},
            [("n-server-0", ["user-container"]), ("n-server-1", ["user-container"])],
        ),
        (
            T9K_APPS,
            "MLService",
            {"releases": [{"predictor": {"minReplicas": 0, "containersResources": [{"name": "r"}]}}]},
            [("n-release0-0", ["r"])],
        ),
        (
            T9K_APPS,
            "MLService",
            {"releases": [{"name": "V1", "predictor": {"minReplicas": 2, "containersResources": [{"name": "r"}]}}]},
            [("n-v1-0", ["r"]), ("n-v1-1", ["r"])],
        ),
    ],
)
def test_pods_of_t9k(api: str, kind: str, spec: Json, pods: object) -> None:
    assert containers_by_name(pods_of(api, kind, spec)) == pods


@pytest.mark.parametrize("roles", [None, [], {}])
def test_job_of_t9k_without_roles_is_wrong(roles: object) -> None:
    job = {"apiVersion": T9K_JOBS, "kind": "GenericJob", "metadata": {"name": "n"}, "spec": {"replicaSpecs": roles}}
    wrong = operators.operator_pods(job)
    assert isinstance(wrong, Invalid)
    assert (wrong.field, wrong.value) == ("spec.replicaSpecs", roles)


@pytest.mark.parametrize(
    ("api", "kind", "spec", "said"),
    [
        ("trainer.kubeflow.org/v1", "TrainJob", {"runtimeRef": {"name": "r"}}, "is in ClusterTrainingRuntime r, and"),
        (
            "trainer.kubeflow.org/v1",
            "TrainJob",
            {"runtimeRef": {"name": "r", "kind": "TrainingRuntime"}, "trainer": {"resourcesPerNode": {}}},
            "the rest of its template is in TrainingRuntime r: only",
        ),
        (T9K_APPS, "MLService", {}, "the rest of its template is in its runtime"),
    ],
)
def test_template_that_is_in_a_runtime_is_named(api: str, kind: str, spec: Json, said: str) -> None:
    assert said in str(operators.elsewhere({"apiVersion": api, "kind": kind, "spec": spec}))


def test_other_kinds_of_a_group_have_templates_of_their_own() -> None:
    for api, kind in (("trainer.kubeflow.org/v1", "Other"), (T9K_APPS, "Notebook"), ("other", "TrainJob")):
        assert operators.elsewhere({"apiVersion": api, "kind": kind, "spec": {}}) is None
        assert operators.known({"apiVersion": api, "kind": kind}) is (kind == "Notebook")
