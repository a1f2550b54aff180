"""Objects of operators become the Pods of the templates in them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects.kube import templates
from aliquot.dialects.kube.manifests import expand
from aliquot.dialects.kube.templates import MOST, guess, is_custom, template_pods, templates_in
from aliquot.model.refusal import Invalid
from kit.values.strategies import anything

Json = dict[str, Any]
TEMPLATE: Json = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}}
OTHER: Json = {"spec": {"containers": [{"name": "leader"}]}}
LIMITS: Json = {"limits": {"aliyun.com/gpu-mem": 2}}
VOLCANO: Json = {
    "apiVersion": "batch.volcano.sh/v1alpha1",
    "kind": "Job",
    "metadata": {"name": "v", "namespace": "team"},
    "spec": {"schedulerName": "volcano", "tasks": [{"name": "Worker", "replicas": 2, "template": TEMPLATE}]},
}


def an_object(spec: object, kind: str = "Any") -> Json:
    return {"apiVersion": "example.com/v1", "kind": kind, "metadata": {"name": "n"}, "spec": spec}


def counted(spec: Json) -> list[tuple[str, int]]:
    found = templates_in(an_object(spec))
    assert isinstance(found, list), found
    return [(template.path, template.number) for template in found]


def pods_of(spec: Json) -> list[Json]:
    pods = template_pods(an_object(spec))
    assert isinstance(pods, list), pods
    return pods


def test_pods_have_names_namespace_owner_and_the_template() -> None:
    pods = expand({"kind": "List", "items": [VOLCANO]}, operators=True)
    assert isinstance(pods, list)
    assert [pod["metadata"]["name"] for pod in pods] == ["v-0", "v-1"]
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
    ("api", "custom"),
    [("v1", False), ("apps/v1", False), ("networking.k8s.io/v1", False), (None, False), ("jobset.x-k8s.io/v1", True),
     ("ray.io/v1", True), ("batch.tensorstack.dev/v1beta1", True)],
)  # fmt: skip
def test_kinds_of_operators_are_known_by_their_group(api: object, custom: bool) -> None:
    assert is_custom({"apiVersion": api, "kind": "Job"}) is custom


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        (  # RayCluster
            {
                "headGroupSpec": {"template": OTHER},
                "workerGroupSpecs": [{"replicas": 3, "numOfHosts": 2, "template": TEMPLATE}],
            },
            [("spec.headGroupSpec.template.spec", 1), ("spec.workerGroupSpecs[0].template.spec", 6)],
        ),
        (  # PyTorchJob
            {"pytorchReplicaSpecs": {"Master": {"template": OTHER}, "Worker": {"replicas": 2, "template": TEMPLATE}}},
            [
                ("spec.pytorchReplicaSpecs.Master.template.spec", 1),
                ("spec.pytorchReplicaSpecs.Worker.template.spec", 2),
            ],
        ),
        (  # JobSet
            {"replicatedJobs": [{"replicas": 2, "template": {"spec": {"parallelism": 4, "template": TEMPLATE}}}]},
            [("spec.replicatedJobs[0].template.spec.template.spec", 8)],
        ),
        (  # LeaderWorkerSet
            {"replicas": 2, "leaderWorkerTemplate": {"size": 3, "workerTemplate": TEMPLATE}},
            [("spec.leaderWorkerTemplate.workerTemplate.spec", 6)],
        ),
        ({"predictor": {"model": {"resources": LIMITS}}}, [("spec.predictor.model", 1)]),  # InferenceService
        ({"predictor": {"containers": [{}]}}, [("spec.predictor", 1)]),
        ({"trainer": {"numNodes": 3, "resourcesPerNode": LIMITS}}, [("spec.trainer", 3)]),  # TrainJob
        ({"templates": [{"container": {"resources": LIMITS}}, {"steps": []}]}, [("spec.templates[0].container", 1)]),
        ({"rayClusterSpec": {"suspend": True, "replicas": 2, "a": TEMPLATE}}, [("spec.rayClusterSpec.a.spec", 0)]),
        ({"runPolicy": {"suspend": True}, "roles": [TEMPLATE]}, [("spec.roles[0].spec", 0)]),
        ({"volumeClaimTemplates": [{"spec": {"accessModes": [], "resources": {"requests": {}}}}]}, []),
        ({"disk": {"size": "10Gi"}, "replicas": {"min": 1}, "template": TEMPLATE}, [("spec.template.spec", 1)]),
        ({"workloadRef": {"kind": "Deployment", "name": "x"}}, []),
    ],
)
def test_templates_are_found_by_their_shape(spec: Json, found: list[tuple[str, int]]) -> None:
    assert counted(spec) == found
    assert len(pods_of(spec)) == sum(number for _, number in found)


def test_container_by_itself_is_the_only_one_of_its_pod() -> None:
    workflow = {"nodeSelector": {"zone": "a"}, "templates": [{"container": {"image": "i", "resources": LIMITS}}]}
    (pod,) = pods_of(workflow)
    wanted = {"name": "main", "image": "i", "resources": LIMITS}
    assert pod["spec"] == {"nodeSelector": {"zone": "a"}, "containers": [wanted]}


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        ({}, ("mine", "high")),
        ({"schedulerName": ""}, ("mine", "high")),
        ({"schedulerName": "own", "priorityClassName": "low"}, ("own", "low")),
    ],
)
def test_what_is_written_once_for_all_pods_counts_where_a_template_says_nothing(template: Json, wanted: object) -> None:
    tasks = [{"template": {"spec": {"containers": [], **template}}}]
    (pod,) = pods_of({"schedulerName": "mine", "priorityClassName": "high", "tasks": tasks})
    assert (pod["spec"]["schedulerName"], pod["spec"]["priorityClassName"]) == wanted


@pytest.mark.parametrize("written", [-1, 150_001, True, "3", 1.0])
def test_wrong_number_of_replicas_is_named_with_its_path(written: object) -> None:
    wrong = template_pods(an_object({"roles": [{"replicas": written, "template": TEMPLATE}]}), "items[0].")
    assert isinstance(wrong, Invalid)
    assert (wrong.field, wrong.value) == ("items[0].spec.roles[0].replicas", written)


def test_too_many_pods_in_all_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST == 150_000
    monkeypatch.setattr(templates, "MOST", 5)
    assert len(pods_of({"replicas": 5, "template": TEMPLATE})) == 5
    wrong = template_pods(an_object([{"replicas": 3, "template": TEMPLATE}] * 2))
    assert isinstance(wrong, Invalid)
    assert (wrong.field, wrong.value) == ("spec", 6)


def test_pods_need_a_name_which_may_be_generated() -> None:
    generated = {**an_object({"template": TEMPLATE, "replicas": 2}), "metadata": {"generateName": "n-"}}
    pods = template_pods(generated)
    assert isinstance(pods, list)
    assert [pod["metadata"]["name"] for pod in pods] == ["n-0", "n-1"]
    wrong = template_pods({**generated, "metadata": {}})
    assert isinstance(wrong, Invalid)
    assert wrong.field == "metadata.name"


def test_what_was_guessed_is_said() -> None:
    assert guess(VOLCANO) == ("its Pods are taken to be 2 of spec.tasks[0].template.spec: its operator may make others")
    assert guess(an_object({})) is None


@given(anything, st.dictionaries(st.text(), anything))
def test_any_json_is_read_or_named(spec: object, more: Json) -> None:
    keys = ("containers", "resources", "replicas", "suspend", "runPolicy", "spec", "metadata", "template", "size")
    for inner in (spec, {**more, **dict.fromkeys(keys, spec)}, {**more, **{name: [spec, more] for name in keys}}):
        obj = {"apiVersion": "a.b/v1", "kind": "K", "metadata": {"name": "n", "labels": spec}, "spec": inner}
        assert isinstance(template_pods(obj), list | Invalid)
        assert guess(obj) is None or isinstance(guess(obj), str)


def test_what_is_nested_beyond_all_measure_has_no_template() -> None:
    deep: Any = TEMPLATE
    for _ in range(100_000):
        deep = {"a": deep}
    assert pods_of(deep) == []
