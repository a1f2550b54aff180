"""The Pods that a manifest makes."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.dialects import parse_pod
from aliquot.dialects.kube import manifests
from aliquot.dialects.kube.manifests import expand
from aliquot.model.claim import Claim
from aliquot.model.refusal import Invalid
from dialects.kube.test_conditions import node, pod
from kit.clusters.watchobjects import as_node


def workload(kind: str, template: object = None, **spec: object) -> dict[str, Any]:
    made = {"metadata": {"labels": {"app": "web"}}, "spec": pod()["spec"]} if template is None else template
    return {"apiVersion": "apps/v1beta1", "kind": kind, "metadata": {"name": "web"}, "spec": {"template": made, **spec}}


def pods_of(manifest: object) -> list[dict[str, Any]]:
    made = expand(manifest)
    assert isinstance(made, list), made
    return made


def only(manifest: object) -> dict[str, Any]:
    (made,) = pods_of(manifest)
    return made


def names(manifest: object) -> list[str]:
    return [pod["metadata"]["name"] for pod in pods_of(manifest)]


def test_manifest_of_a_pod_is_one_pod() -> None:
    assert expand(pod()) == [pod()]


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "StatefulSet", "ReplicationController"])
def test_workload_expands_to_replicas(kind: str) -> None:
    assert names(workload(kind, replicas=3)) == ["web-0", "web-1", "web-2"]
    assert names(workload(kind)) == ["web-0"]
    assert names(workload(kind, replicas=0)) == []


def test_daemon_set_expands_to_the_nodes_that_it_selects_and_tolerates() -> None:
    taint = {"key": "a", "effect": "NoSchedule"}
    nodes = [
        node(labels={"disk": "ssd"}),
        node(labels={"disk": "ssd"}, taints=[taint]),
        node(labels={"disk": "ssd"}, unschedulable=True),
        node(labels={"disk": "ssd"}, taints=[{**taint, "effect": "PreferNoSchedule"}]),
        node(labels={"disk": "hdd"}),
    ]
    for at, made in enumerate(nodes):
        made["metadata"]["name"] = f"n{at}"

    def on(**spec: object) -> list[str]:
        template = {"spec": {**pod()["spec"], **spec}}
        made = expand(workload("DaemonSet", template), [as_node(node) for node in nodes])
        assert isinstance(made, list)
        return [made["metadata"]["name"] for made in made]

    assert on() == ["web-n0", "web-n2", "web-n3", "web-n4"]
    assert on(nodeSelector={"disk": "ssd"}) == ["web-n0", "web-n2", "web-n3"]
    assert on(nodeSelector={"disk": "ssd"}, tolerations=[{"key": "a"}]) == ["web-n0", "web-n1", "web-n2", "web-n3"]
    assert on(nodeSelector={"disk": "hdd"}, tolerations=[{"operator": "Exists"}]) == ["web-n4"]


def test_job_expands_to_parallelism() -> None:
    assert names(workload("Job", parallelism=2)) == ["web-0", "web-1"]
    assert names(workload("Job", parallelism=4, completions=3)) == ["web-0", "web-1", "web-2"]
    assert names(workload("Job", completions=3)) == ["web-0"]


def test_replicas_know_their_owner_and_namespace() -> None:
    claim = parse_pod(only(workload("StatefulSet")))
    assert isinstance(claim, Claim)
    assert (claim.key, claim.uid, claim.owner) == ("default/web-0", "default/web-0", "StatefulSet/default/web")


def test_invalid_pod_template_is_reported() -> None:
    template = {"annotations": {"aliyun.com/gpu-count": "2"}, "spec": pod()["spec"]}
    assert isinstance(parse_pod(only(workload("Deployment", template))), tuple)


def test_list_expands_to_its_items() -> None:
    inner = {"kind": "List", "items": [workload("Job"), {"kind": "Service"}]}
    assert names({"kind": "List", "items": [workload("Deployment", replicas=2), inner, pod()]}) == [
        "web-0",
        "web-1",
        "web-0",
        "p",
    ]


def test_the_items_of_a_pod_list_need_not_repeat_their_kind() -> None:
    assert names({"kind": "PodList", "items": [{"metadata": {"name": "a"}}]}) == ["a"]


@pytest.mark.parametrize("kind", ["Service", "Node", "ConfigMap"])
def test_other_kinds_make_no_pods_to_place(kind: str) -> None:
    assert expand(workload(kind)) == []


def test_empty_document_has_no_pods() -> None:
    assert expand(None) == []


@pytest.mark.parametrize(
    ("manifest", "field"),
    [
        ([], "manifest"),
        ("Pod", "manifest"),
        ({}, "kind"),
        ({"kind": 3}, "kind"),
        ({"kind": "List", "items": 3}, "items"),
        ({"kind": "List", "items": [pod(), 3]}, "items[1]"),
        ({"kind": "List", "items": [{"kind": "Job"}]}, "items[0].metadata"),
        ({"kind": "Job", "metadata": {"name": "j"}}, "spec"),
        ({"kind": "Job", "metadata": {}, "spec": {}}, "metadata.name"),
        (workload("Job", "x"), "spec.template"),
        (workload("Job", {"metadata": {}}), "spec.template"),
        (workload("Deployment", replicas="3"), "spec.replicas"),
        (workload("Deployment", replicas=-1), "spec.replicas"),
        (workload("Deployment", replicas=True), "spec.replicas"),
        (workload("Deployment", replicas=10**9), "spec.replicas"),
    ],
)
def test_a_manifest_of_the_wrong_shape_is_an_error_that_names_the_field(manifest: object, field: str) -> None:
    made = expand(manifest)
    assert isinstance(made, Invalid)
    assert made.field == field


@pytest.mark.parametrize("kind", ["PodList", "List"])
@pytest.mark.parametrize("item", [5, "Pod", [1]])
def test_item_of_a_list_that_is_no_object_is_invalid(kind: str, item: object) -> None:
    assert isinstance(expand({"kind": kind, "items": [pod(), item]}), Invalid)


def cron(suspend: object = None, **job: object) -> dict[str, Any]:
    template = {"metadata": {"labels": {"l": "x"}}, "spec": {**workload("Job")["spec"], **job}}
    return {"kind": "CronJob", "metadata": {"name": "c"}, "spec": {"suspend": suspend, "jobTemplate": template}}


def test_cron_job_has_the_pods_of_one_run() -> None:
    assert names(cron()) == ["c-0"]
    assert names(cron(parallelism=2)) == ["c-0", "c-1"]
    assert names(cron(suspend=True)) == []
    assert names(cron(suspend=False)) == ["c-0"]


@pytest.mark.parametrize(
    ("manifest", "field"),
    [
        ({**cron(), "metadata": {}}, "metadata.name"),
        ({**cron(), "metadata": {"name": ""}}, "metadata.name"),
        (cron(suspend="yes"), "spec.suspend"),
        ({**cron(), "spec": {"jobTemplate": {"spec": None}}}, "spec.jobTemplate"),
        (cron(suspend=True, parallelism=-1), "spec.jobTemplate.spec.parallelism"),
        (workload("Job", suspend="yes"), "spec.suspend"),
        (workload("Deployment", replicas=150_001), "spec.replicas"),
        ({**workload("Deployment"), "metadata": {"name": 7}}, "metadata.name"),
        ({**workload("Deployment"), "spec": []}, "spec"),
    ],
)
def test_wrong_field_of_a_workload_is_named(manifest: dict[str, Any], field: str) -> None:
    wrong = expand(manifest)
    assert isinstance(wrong, Invalid)
    assert wrong.field == field
    inner = expand({"kind": "List", "items": [pod(), manifest]})
    assert isinstance(inner, Invalid)
    assert inner.field == f"items[1].{field}"


@pytest.mark.parametrize(
    ("spec", "number"),
    [
        ({}, 1),
        ({"parallelism": 3}, 3),
        ({"parallelism": 3, "completions": 2}, 2),
        ({"parallelism": 2, "completions": 3}, 2),
        ({"completions": -1}, 0),
        ({"suspend": True}, 0),
        ({"suspend": False}, 1),
        ({"suspend": None}, 1),
    ],
)
def test_job_has_as_many_pods_as_run_at_once(spec: dict[str, Any], number: int) -> None:
    assert len(pods_of(workload("Job", **spec))) == number


def test_too_many_pods_in_all_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "MOST_PODS", 5)
    assert len(pods_of({"kind": "List", "items": [workload("Deployment", replicas=5)]})) == 5
    wrong = expand({"kind": "List", "items": [workload("Deployment", replicas=3)] * 2})
    assert isinstance(wrong, Invalid)
    assert (wrong.field, wrong.value) == ("items[1]", 6)
    several = workload("Deployment", replicas=6)
    assert isinstance(expand(several), Invalid)
