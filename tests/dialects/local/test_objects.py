"""What one machine takes of Kubernetes's objects, and the Pods they want."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.dialects.local.objects import (
    Amounts,
    LocalObject,
    amounts_of,
    pod_of,
    read_objects,
    run_of,
    scheduled_of,
    template_of,
    template_pod_of,
)
from aliquot.model.refusal import Invalid

SPEC = {"containers": [{"name": "main", "command": ["true"]}]}


def a_pod(name: str = "p", **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": SPEC}


def a_workload(kind: str, **spec: Any) -> dict[str, Any]:
    policy = {"restartPolicy": "Never"} if kind == "Job" else {}
    spec = {"template": {"spec": {**SPEC, **policy}}, **spec}
    api = "batch/v1" if kind in ("Job", "CronJob") else "extensions/v1beta1"  # which needs no selector
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "web"}, "spec": spec}


def read(*objects: Any) -> list[LocalObject]:
    found = read_objects(list(objects))
    assert isinstance(found, list), found
    return found


def refused(*objects: Any) -> Invalid:
    found = read_objects(list(objects))
    assert isinstance(found, Invalid)
    return found


def test_a_list_is_all_of_its_items_in_order() -> None:
    whole = {"kind": "List", "items": [a_pod("a"), a_workload("Deployment")]}
    pods = {"kind": "PodList", "items": [{**a_pod("b"), "kind": "Pod"}]}
    assert [(item.kind, item.name) for item in read(whole, pods)] == [("Pod", "a"), ("Deployment", "web"), ("Pod", "b")]


@pytest.mark.parametrize(
    ("api", "kind"),
    [("kubeflow.org/v1", "PyTorchJob"), ("serving.knative.dev/v1", "Service"), ("batch.volcano.sh/v1alpha1", "Job")],
)
def test_what_another_operator_makes_pods_of_is_refused(api: str, kind: str) -> None:
    """It was passed over as one that creates no Pods."""
    found = refused(
        {"apiVersion": api, "kind": kind, "metadata": {"name": "x"}, "spec": {"template": {"spec": {"containers": []}}}}
    )
    assert (found.field, found.value) == (f"{kind} x: apiVersion", api)
    assert "runs on a cluster" in found.allowed


@pytest.mark.parametrize(
    ("kind", "api", "allowed"),
    [
        ("Deployment", "v1", "apps/v1 for a Deployment"),
        ("Pod", "apps/v1", "v1 for a Pod"),
        ("Job", "apps/v1", "batch/v1 for a Job"),
        ("StatefulSet", 1, "apps/v1 for a StatefulSet"),
    ],
)
def test_kind_that_an_api_version_does_not_have_is_refused(kind: str, api: object, allowed: str) -> None:
    found = refused({**(a_pod() if kind == "Pod" else a_workload(kind)), "apiVersion": api})
    assert (found.field.partition(": ")[2], found.value, found.allowed) == ("apiVersion", api, allowed)


@pytest.mark.parametrize("api", ["apps/v1", "apps/v1beta1", "extensions/v1beta1"])
def test_any_version_of_its_group_is_accepted(api: str) -> None:
    labelled = {"metadata": {"labels": {"app": "web"}}, "spec": SPEC}
    selector = {"matchLabels": {"app": "web"}}
    (found,) = read({**a_workload("Deployment", template=labelled, selector=selector), "apiVersion": api})
    assert not any("apiVersion" in note for note in found.notes)


def test_missing_api_version_is_a_note() -> None:
    (found,) = read({**a_pod(), "apiVersion": None})
    assert "apiVersion is missing: a cluster refuses the object without v1" in found.notes


def test_what_makes_no_pods_is_passed_over_and_that_is_said() -> None:
    (found,) = read({"kind": "ClusterRole", "metadata": {"name": "system:web"}})
    assert (found.makes_pods, found.notes) == (False, ("ClusterRole is skipped: it creates no Pods",))


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"kind": "Pod"}, "Pod: metadata"),
        (a_pod("Upper"), "Pod: metadata.name"),
        (a_pod("p", namespace="no/way"), "Pod p: metadata.namespace"),
        (a_workload("CronJob"), "CronJob default/web: spec.jobTemplate"),
        (a_workload("StatefulSet", replicas=-1), "StatefulSet default/web: spec.replicas"),
        (a_workload("StatefulSet", replicas=257), "StatefulSet default/web: spec.replicas"),
        (a_workload("Job", completions="many"), "Job default/web: spec.completions"),
        (a_workload("Job", template={"spec": SPEC}), "Job default/web: spec.template.spec.restartPolicy"),
        ({"kind": "Pod", "metadata": {"name": "p"}, "spec": {}}, "Pod default/p: spec.containers"),
        ("Pod", "objects[0]"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_the_object_it_is_in(value: Any, field: str) -> None:
    assert refused(value).field == field


def test_annotations_beside_metadata_are_the_reason_why_a_name_is_missing() -> None:
    """As qGPU's own page prints its Pods."""
    annotations = {"tke.cloud.tencent.com/app-class": "online", "spec": SPEC}
    for metadata in ({}, {"metadata": {"namespace": "default"}}):
        found = refused({"kind": "Pod", "annotations": annotations, **metadata})
        assert found.field == "Pod: annotations"
        assert found.allowed.startswith("annotations belong in metadata: move them to metadata.annotations, and spec")


def test_label_that_is_no_text_is_refused_as_kubernetes_does() -> None:
    labelled = {"labels": {"example.com/shard": 4}}
    made = refused(a_workload("Deployment", template={"metadata": labelled, "spec": SPEC}))
    assert made.sentence() == (
        'Deployment default/web: spec.template.metadata.labels["example.com/shard"]: 4 is not allowed: text: put it'
        ' in quotes, "4"'
    )


def test_every_broken_rule_of_an_object_is_said_with_its_path() -> None:
    limits = {"tke.cloud.tencent.com/qgpu-memory": "1.5", "tke.cloud.tencent.com/qgpu-core": 130}
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "resources": {"limits": limits}}]}}
    spec = {"schedule": "@daily", "jobTemplate": {"spec": {"template": template}}}
    sentence = refused({"kind": "CronJob", "metadata": {"name": "c"}, "spec": spec}).sentence()
    path = "spec.jobTemplate.spec.template.spec.containers[0].resources.limits"
    core, memory = (f'{path}["tke.cloud.tencent.com/qgpu-{name}"]' for name in ("core", "memory"))
    assert sentence.startswith(f"CronJob default/c: {core}: 130 is not allowed: ")
    assert f'; {memory}: "1.5" is not allowed: ' in sentence


def test_an_object_with_very_many_broken_rules_says_how_many() -> None:
    many = [{"name": f"c{at}", "resources": {"limits": {"aliyun.com/gpu-mem": "x"}}} for at in range(20)]
    assert refused({**a_pod(), "spec": {"containers": many}}).allowed.endswith("; and 15 more")


def test_two_of_one_name_are_refused() -> None:
    assert refused(a_pod(), a_pod(namespace="default")).allowed == "a unique name"
    assert len(read(a_pod(), a_pod(namespace="other"))) == 2


def test_a_workloads_pod_is_made_of_its_template_and_owned_by_it() -> None:
    (found,) = read(a_workload("StatefulSet"))
    pod = pod_of(found.manifest, "web-0")
    assert (pod["kind"], pod["metadata"]["name"], pod["metadata"]["namespace"]) == ("Pod", "web-0", "default")
    assert pod["metadata"]["ownerReferences"][0]["name"] == "web"
    assert pod["spec"] == SPEC


def test_only_what_pods_are_made_of_changes_the_template() -> None:
    one, more = a_workload("StatefulSet", replicas=1), a_workload("StatefulSet", replicas=2)
    other = a_workload("StatefulSet", template={"spec": {**SPEC, "hostNetwork": True}})
    assert template_of(one) == template_of(more) != template_of(other)


def test_a_field_that_kubernetes_does_not_know_is_noted_where_it_stands_in_the_template() -> None:
    spec = {"containers": [{"name": "main", "comand": ["true"]}]}
    (found,) = read(a_workload("Deployment", template={"spec": spec}))
    assert (
        found.notes[0] == "spec.template.spec.containers[0].comand is not a field of a container: did you mean command?"
    )


def test_annotation_that_is_written_as_a_label_of_the_template_is_noted() -> None:
    resources = {"limits": {"tke.cloud.tencent.com/qgpu-memory": 2}}
    labels = {"tke.cloud.tencent.com/app-class": "online"}
    spec = {"containers": [{"name": "main", "command": ["true"], "resources": resources}]}
    (found,) = read(a_workload("Deployment", template={"metadata": {"labels": labels}, "spec": spec}))
    said = "has no effect: it is an annotation: move it to metadata.annotations"
    assert found.notes == (f'spec.template.metadata.labels["tke.cloud.tencent.com/app-class"] {said}',)


def test_how_many_pods_are_wanted() -> None:
    assert amounts_of(a_workload("Deployment")) == Amounts(1)
    assert amounts_of(a_workload("Deployment", replicas=0)) == Amounts(0)
    assert amounts_of(a_workload("Job", parallelism=2, completions=5, backoffLimit=0)) == Amounts(2, 5, 0)
    assert amounts_of(a_workload("Job")) == Amounts(1, 1, 6)
    assert amounts_of(a_workload("Job", parallelism=3)) == Amounts(3, 1, 6, workers=True)


@pytest.mark.parametrize("field", ["successfulJobsHistoryLimit", "failedJobsHistoryLimit", "startingDeadlineSeconds"])
@pytest.mark.parametrize(
    ("value", "allowed"),
    [
        (0, True),
        (2**31 - 1, True),
        (None, True),
        (-1, False),
        (2**31, False),
        (True, False),
        ("1", False),
        (1.0, False),
    ],
)
def test_whole_numbers_of_a_cron_job(field: str, value: object, allowed: bool) -> None:
    template = {"spec": {"template": {"spec": {**SPEC, "restartPolicy": "Never"}}}}
    job = a_workload("CronJob", schedule="@hourly", jobTemplate=template, **{field: value})
    if allowed:
        assert [item.name for item in read(job)] == ["web"]
    else:
        assert refused(job).field == f"CronJob default/web: spec.{field}"


def a_cron_job(name: str = "c", **spec: Any) -> dict[str, Any]:
    job = {"spec": a_workload("Job")["spec"]}
    metadata = {"name": name, "namespace": "team"}
    return {"kind": "CronJob", "metadata": metadata, "spec": {"schedule": "* * * * *", "jobTemplate": job, **spec}}


def test_run_of_a_cron_job_is_known_by_its_owner_and_name() -> None:
    (cron,) = read(a_cron_job("c"))
    run = run_of(cron.manifest, 29_000_000)
    assert (run["kind"], run["metadata"]["name"], run["metadata"]["namespace"]) == ("Job", "c-29000000", "team")
    assert scheduled_of(run, "c") == 29_000_000
    assert scheduled_of(run, "other") is None


OWNER = {"kind": "CronJob", "name": "c"}
POLICY = "spec.template.spec.restartPolicy"


@pytest.mark.parametrize(
    ("name", "owners", "at"),
    [
        ("c-7", [OWNER], 7),
        ("c-7", [{"kind": "Job", "name": "c"}, OWNER], 7),
        ("c-7", [7, OWNER], 7),
        ("c-12345678901", [OWNER], 12_345_678_901),
        ("c-123456789012", [OWNER], None),
        ("c-x", [OWNER], None),
        ("c-7", [{"kind": "Job", "name": "c"}], None),
        ("c-7", [{"kind": "CronJob", "name": "d"}], None),
        ("c-7", [], None),
        ("c-7", None, None),
        ("c-7", OWNER, None),
    ],
)
def test_job_of_a_cron_job(name: str, owners: object, at: int | None) -> None:
    assert scheduled_of({"metadata": {"name": name, "ownerReferences": owners}}, "c") == at


def test_pod_that_an_object_makes() -> None:
    (pod,) = read(a_pod("p"))
    assert template_pod_of(pod.manifest) == pod.manifest
    for manifest in (a_workload("Deployment"), a_cron_job("web")):
        (found,) = read(manifest)
        made = template_pod_of(found.manifest)
        assert (made["kind"], made["metadata"]["name"], made["spec"]["containers"]) == (
            "Pod",
            "web",
            SPEC["containers"],
        )


def test_digest_of_the_template_is_of_what_pods_are_made_of() -> None:
    cron, (pod,) = a_cron_job(), read(a_pod("p"))
    assert template_of(cron) == template_of({**cron, "spec": {**cron["spec"], "schedule": "0 * * * *"}})
    assert template_of(cron) != template_of({**cron, "spec": {**cron["spec"], "jobTemplate": {"spec": {}}}})
    on_node = {**pod.manifest, "spec": {**pod.manifest["spec"], "nodeName": "n1"}}
    labelled = {**pod.manifest, "metadata": {**pod.manifest["metadata"], "labels": {"a": "b"}}}
    annotated = {**pod.manifest, "metadata": {**pod.manifest["metadata"], "annotations": {"a": "b"}}}
    other = {**pod.manifest, "spec": {**pod.manifest["spec"], "hostNetwork": True}}
    assert template_of(on_node) == template_of(pod.manifest)
    assert len({template_of(manifest) for manifest in (pod.manifest, labelled, annotated, other)}) == 4
    assert len(template_of(cron)) == 10


@pytest.mark.parametrize(
    ("manifest", "amounts"),
    [
        (a_cron_job(), Amounts(0)),
        (a_cron_job(suspend=True), Amounts(0, suspended=True)),
        (a_workload("Job"), Amounts(1, 1)),
        (a_workload("Job", parallelism=2), Amounts(2, 1, workers=True)),
        (a_workload("Job", parallelism=2, completions=5, backoffLimit=0), Amounts(2, 5, 0)),
        (a_workload("Job", suspend=True), Amounts(1, 1, suspended=True)),
        (a_workload("Deployment", replicas=0), Amounts(0)),
        (a_workload("StatefulSet"), Amounts(1)),
        (a_workload("DaemonSet"), Amounts(1)),
    ],
)
def test_pods_that_a_workload_wants(manifest: dict[str, Any], amounts: Amounts) -> None:
    assert amounts_of(manifest) == amounts


@pytest.mark.parametrize(
    ("manifest", "field"),
    [
        (a_cron_job("c" * 53), "metadata.name"),
        (a_cron_job(schedule="* * * *"), "spec.schedule"),
        (a_cron_job(concurrencyPolicy="Never"), "spec.concurrencyPolicy"),
        (a_cron_job(jobTemplate={"spec": {"template": {"spec": SPEC}}}), f"spec.jobTemplate.{POLICY}"),
        (a_workload("Job", template={"spec": {**SPEC, "restartPolicy": "Always"}}), POLICY),
        (a_workload("Deployment", template={"spec": {**SPEC, "restartPolicy": "Never"}}), POLICY),
        (a_workload("Deployment", replicas=257), "spec.replicas"),
        (a_workload("Job", completions=-1), "spec.completions"),
        (a_workload("Job", completions=True), "spec.completions"),
        (a_workload("Job", completions=1001), "spec.completions"),
        (a_workload("Job", backoffLimit="3"), "spec.backoffLimit"),
    ],
)
def test_wrong_field_of_a_workload_is_named(manifest: dict[str, Any], field: str) -> None:
    assert refused(manifest).field.partition(": ")[2] == field


@pytest.mark.parametrize(
    "manifest",
    [
        a_cron_job("c" * 52),
        *(a_cron_job(concurrencyPolicy=policy) for policy in (None, "Allow", "Forbid", "Replace")),
        a_workload("Job", template={"spec": {**SPEC, "restartPolicy": "OnFailure"}}, completions=0, backoffLimit=0),
        a_workload("Deployment", template={"spec": {**SPEC, "restartPolicy": "Always"}}, replicas=256),
        a_workload("Job", completions=1000, backoffLimit=1000),
    ],
)
def test_workload_is_taken_at_the_limits(manifest: dict[str, Any]) -> None:
    assert read(manifest)[0].makes_pods


def test_text_that_utf8_cannot_spell_is_refused() -> None:
    assert "surrogate" in refused(a_pod("p", annotations={"a": "\ud800"})).allowed


def test_256_objects_are_read_at_once() -> None:
    many = [{"kind": "Other", "metadata": {"name": f"o{at}"}} for at in range(257)]
    assert len(read(*many[:256])) == 256
    assert (refused(*many).field, refused(*many).value) == ("objects", 257)


def test_objects_are_a_list() -> None:
    found = read_objects({"kind": "Pod"})
    assert isinstance(found, Invalid)
    assert (found.field, found.allowed) == ("objects", "a list of Kubernetes objects")


def test_items_of_a_list_have_its_kind_unless_they_name_one() -> None:
    nameless = {key: value for key, value in a_pod("a").items() if key != "kind"}
    (found,) = read({"kind": "PodList", "items": [nameless]})
    assert (found.kind, found.name) == ("Pod", "a")
    assert isinstance(read_objects([{"kind": "List", "items": [nameless]}]), Invalid)
    assert isinstance(read_objects([{"kind": "PodList", "items": [7]}]), Invalid)
