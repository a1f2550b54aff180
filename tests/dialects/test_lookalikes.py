"""Misspelled names of resources, labels and annotations are refused; other programs' names are not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects import Rules, lookalikes, native, parse_pod
from aliquot.dialects.lookalikes import others, outside_template, prefixes
from aliquot.dialects.registry import PodReader, remarks
from aliquot.dialects.rules import DIALECTS
from aliquot.dialects.wire import schedulerconfig
from aliquot.dialects.wire.objectreading import read_object
from aliquot.dialects.wire.objects import PodObject
from aliquot.dialects.wire.webhook.configuration import webhook_configuration
from aliquot.model.claim import Claim
from kit.values.strategies import anything

Json = dict[str, Any]
EVERY = frozenset(DIALECTS)
# Without HAMi's, because NVIDIA's domain is not ours to judge, and without what only the webhook writes.
KNOWN = sorted(schedulerconfig.RESOURCES - {native.PLACE})


def pod(limits: dict[str, object], metadata: dict[str, object] | None = None, side: str = "limits") -> dict[str, Any]:
    container = {"name": "main", "image": "i", "resources": {side: limits}}
    return {"kind": "Pod", "metadata": {"name": "p", **(metadata or {})}, "spec": {"containers": [container]}}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("aliyun.com/gpumem", "aliyun.com/gpu-mem"),
        ("aliyun.com/gpu-memory", "aliyun.com/gpu-mem"),
        ("aliyun.com/gpu_count", "aliyun.com/gpu-count"),
        ("aliyun.com/GPU-MEM", "aliyun.com/gpu-mem"),
        ("tke.cloud.tencent.com/qgpu-mem", "tke.cloud.tencent.com/qgpu-memory"),
        ("tke.cloud.tencent.com/qgpu-cores", "tke.cloud.tencent.com/qgpu-core"),
        ("tke.cloud.tencent.com/gpu-memory", "tke.cloud.tencent.com/qgpu-memory"),
        ("tke.cloud.tencent.com/qgpu-core-gredy", "tke.cloud.tencent.com/qgpu-core-greedy"),
        ("tensorstack.dev/nvidia-gpus", "tensorstack.dev/nvidia-gpu"),
        ("tensorstack.dev/nvidia-gpu-percentage", "tensorstack.dev/nvidia-gpu-percent"),
    ],
)
@pytest.mark.parametrize("side", ["limits", "requests"])
def test_a_misspelled_resource_is_refused_with_the_name_that_was_meant(written: str, meant: str, side: str) -> None:
    found = parse_pod(pod({written: 4}, side=side))
    assert isinstance(found, tuple)
    assert found[0].field == f'spec.containers[0].resources.{side}["{written}"]'
    assert found[0].value == 4
    assert found[0].allowed == f"no such resource; did you mean {meant}?"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("nvidia.com/gpu-mem", "nvidia.com/gpumem"),
        ("nvidia.com/gpumem-percent", "nvidia.com/gpumem-percentage"),
        ("nvidia.com/gpucore", "nvidia.com/gpucores"),
        ("nvidia.com/prioritty", "nvidia.com/priority"),
        ("nvidia.com/mig-1g.5gb", None),
        ("nvidia.com/vgpu", None),
        ("nvidia.com/hostdev", None),
    ],
)
def test_a_misspelled_resource_of_hami_is_refused_where_hami_is_served(written: str, meant: str | None) -> None:
    manifest = pod({written: 1})
    assert parse_pod(manifest) is None
    found = parse_pod(manifest, Rules(served=EVERY | {"hami"}))
    if meant is None:
        assert found is None
    else:
        assert isinstance(found, tuple)
        assert found[0].allowed == f"no such resource; did you mean {meant}?"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("qgpu-memory", "tke.cloud.tencent.com/qgpu-memory"),
        ("gpu-mem", "aliyun.com/gpu-mem"),
        ("GPU_MEM", "aliyun.com/gpu-mem"),
        ("nvidia-gpu", "tensorstack.dev/nvidia-gpu"),
    ],
)
def test_a_resource_without_its_domain_is_refused_with_the_whole_name(written: str, meant: str) -> None:
    found = parse_pod(pod({written: 4}))
    assert isinstance(found, tuple)
    assert found[0].allowed == f"no such resource; did you mean {meant}?"


def test_a_very_long_name_under_a_prefix_of_ours_is_refused() -> None:
    found = parse_pod(pod({"aliyun.com/gpu-" + "x" * 300: 1}))
    assert isinstance(found, tuple)
    assert found[0].allowed.startswith("no such resource; known are aliyun.com/gpu-core.percentage")


@pytest.mark.parametrize("side", ["limits", "requests"])
@pytest.mark.parametrize("name", ["aliyun.com/gpu-mem", "aliyun.com/gpumem"])
def test_resources_of_the_pod_itself_are_refused_with_where_they_belong(name: str, side: str) -> None:
    manifest = pod({})
    manifest["spec"]["resources"] = {side: {"cpu": "1", name: 3}}
    read = read_object(manifest, PodObject, "pod")
    assert isinstance(read, PodObject)
    for found in (parse_pod(manifest), PodReader(Rules()).read(read).claim):
        assert isinstance(found, tuple)
        assert found[0].field == f'spec.resources.{side}["{name}"]'
        assert found[0].allowed == f"a container asks for cards: move it to spec.containers[0].resources.{side}"


def test_an_unknown_resource_under_a_prefix_of_ours_names_the_known_ones() -> None:
    found = parse_pod(pod({"tke.cloud.tencent.com/qgpu-bandwidth-x": 1}))
    assert isinstance(found, tuple)
    assert "tke.cloud.tencent.com/qgpu-memory" in found[0].allowed
    own = parse_pod(pod({"aliquot.dev/memory": 1}))
    assert isinstance(own, tuple)
    assert own[0].allowed == "no resource begins with aliquot.dev/; remove it"


@pytest.mark.parametrize(
    "name",
    [
        "aliyun.com/gpu",  # whole cards by topology, ACK
        "aliyun.com/eni",
        "tke.cloud.tencent.com/eni-ip",
        "tke.cloud.tencent.com/direct-eni",
        "tensorstack.dev/amd-gpu",
        "example.com/gpu-mem",
        "nvidia.com/gpu",
        "nvidia.com/gpumem",
        "cpu",
        "hugepages-2Mi",
    ],
)
def test_names_of_other_programs_are_not_ours_to_judge(name: str) -> None:
    assert parse_pod(pod({name: 1})) is None
    assert isinstance(parse_pod(pod({name: 1, "aliyun.com/gpu-mem": 2})), Claim)


def test_a_dialect_that_the_cluster_does_not_serve_has_no_misspelled_names() -> None:
    assert parse_pod(pod({"aliyun.com/gpumem": 1}), Rules(served=frozenset({"qgpu"}))) is None


@pytest.mark.parametrize(
    ("kind", "written", "meant"),
    [
        ("annotations", "tke.cloud.tencent.com/appclass", "tke.cloud.tencent.com/app-class"),
        ("annotations", "tke.cloud.tencent.com/app-clas", "tke.cloud.tencent.com/app-class"),
        ("labels", "aliyun.com/gpu-counts", "aliyun.com/gpu-count"),
    ],
)
def test_a_misspelled_mark_of_a_gpu_pod_is_refused(kind: str, written: str, meant: str) -> None:
    found = parse_pod(pod({"aliyun.com/gpu-mem": 2}, {kind: {written: "2"}}))
    assert isinstance(found, tuple)
    assert found[0].field == f'metadata.{kind}["{written}"]'
    assert found[0].allowed == f"unknown; did you mean {meant}?"
    assert parse_pod(pod({}, {kind: {written: "2"}})) is None


def test_other_annotations_under_the_same_domain_pass() -> None:
    marks: dict[str, object] = {"annotations": {"tke.cloud.tencent.com/networks-status": "x", "aliyun.com/eci": "y"}}
    assert isinstance(parse_pod(pod({"tke.cloud.tencent.com/qgpu-memory": 2}, marks)), Claim)


def test_the_scheduler_reads_a_misspelled_resource_as_the_webhook_does() -> None:
    manifest = pod({"aliyun.com/gpumem": 4})
    read = read_object(manifest, PodObject, "pod")
    assert isinstance(read, PodObject)
    assert PodReader(Rules()).read(read).claim == parse_pod(manifest)


def test_the_webhook_is_called_for_misspelled_names_and_not_for_those_of_others() -> None:
    assert all(name.startswith(prefixes(EVERY)) for name in KNOWN)
    webhook = webhook_configuration(b"", "https://x")["webhooks"][0]
    (condition,) = webhook["matchConditions"]
    for prefix in prefixes(EVERY):
        assert f"r.lowerAscii().startsWith('{prefix}')" in condition["expression"]
    for name in others(EVERY):
        assert f"'{name}'" in condition["expression"]


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("zero", [0, "0", "0.0", 0.0, "0k"])
def test_a_request_of_0_asks_for_nothing(name: str, zero: object) -> None:
    assert parse_pod(pod({name: zero})) is None
    assert parse_pod(pod({name: zero}, side="requests")) is None


def test_a_request_of_0_beside_another_asks_for_the_other() -> None:
    claim = parse_pod(pod({"tke.cloud.tencent.com/qgpu-memory": 4, "tke.cloud.tencent.com/qgpu-core": 0}))
    assert isinstance(claim, Claim)
    assert claim.containers[0].slice.core_milli is None
    cards = parse_pod(pod({"tensorstack.dev/nvidia-gpu": 2, "tensorstack.dev/nvidia-gpu-percent": "0"}))
    assert isinstance(cards, Claim)
    assert cards.containers[0].count == 2


def test_limits_of_0_beside_requests_are_refused() -> None:
    manifest = pod({"aliyun.com/gpu-mem": 0})
    manifest["spec"]["containers"][0]["resources"]["requests"] = {"aliyun.com/gpu-mem": 2}
    assert isinstance(parse_pod(manifest), tuple)


@given(st.sampled_from(KNOWN), st.data())
def test_one_slip_of_the_keyboard_never_passes_unnoticed(name: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(name.index("/") + 1, len(name) - 1))
    letter = data.draw(st.sampled_from("abcdefghijklmnopqrstuvwxyz0123456789-_."))
    kind = data.draw(st.sampled_from(["drop", "replace", "insert"]))
    rest = name[at + (kind != "insert") :]
    written = name[:at] + ("" if kind == "drop" else letter) + rest
    if written in KNOWN or written in others(EVERY):
        return
    found = parse_pod(pod({written: 1}))
    assert isinstance(found, tuple), written
    assert any("no such resource" in problem.allowed for problem in found)


@pytest.mark.parametrize(
    ("annotation", "named"),
    [
        ("gpu-fraction", True),
        ("nvidia.com/container.main.gpu-memory.limit", True),
        ("nvidia.com/use-gputype", True),
        ("tke.cloud.tencent.com/app-class", True),
        ("deployment.kubernetes.io/revision", False),
        ("mps", False),
    ],
)
def test_annotation_of_a_workload_that_its_pods_do_not_get_is_named(annotation: str, named: bool) -> None:
    served = EVERY | {"hami", "kai"}
    workload: Json = {"metadata": {"annotations": {annotation: "x"}}, "spec": {"template": {"spec": {}}}}
    found = outside_template(workload, served)
    assert [problem.field for problem in found] == [f'metadata.annotations["{annotation}"]'] * named
    assert all("spec.template.metadata.annotations" in problem.allowed for problem in found)
    cron = {**workload, "spec": {"jobTemplate": {"spec": workload["spec"]}}}
    assert all("spec.jobTemplate.spec.template.metadata" in slip.allowed for slip in outside_template(cron, served))
    workload["spec"]["template"]["metadata"] = {"annotations": {annotation: "x"}}
    assert outside_template(workload, served) == []


def test_label_of_a_group_that_is_an_annotation_is_remarked_on_pods_with_cards() -> None:
    name = "scheduler.tensorstack.dev/group-name"
    said = f'metadata.annotations["{name}"] has no effect: it is a label: move it to metadata.labels'
    limits: dict[str, object] = {"tensorstack.dev/nvidia-gpu-percent": 25}
    group: dict[str, object] = {name: "g"}
    assert remarks(pod(limits, {"annotations": group})) == [said]
    assert remarks(pod(limits, {"annotations": group, "labels": group})) == []
    assert remarks(pod({}, {"annotations": group})) == []


def test_annotation_that_an_operator_may_give_to_its_pods_is_named_as_that() -> None:
    notebook = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "Notebook",
        "metadata": {"annotations": {"gpu-fraction": "0.5"}},
        "spec": {"template": {"spec": {}}},
    }
    (may,) = outside_template(notebook, EVERY | {"kai"})
    (never,) = outside_template({**notebook, "apiVersion": "apps/v1"}, EVERY | {"kai"})
    assert may.allowed.startswith("Pods may not get it: move it to spec.template.")
    assert never.allowed.startswith("Pods do not get it: move it to spec.template.")


@given(anything)
def test_anything_is_a_workload_or_none(value: object) -> None:
    outside_template(value, EVERY | {"hami", "kai"})
    outside_template({"metadata": value, "spec": {"template": value, "jobTemplate": value}}, EVERY)


MEMORY: Json = {"tke.cloud.tencent.com/qgpu-memory": 2}
CLASS = "tke.cloud.tencent.com/app-class"
SERVED = Rules(served=EVERY | {"hami", "kai"})


@pytest.mark.parametrize(
    ("limits", "metadata", "named"),
    [
        (MEMORY, {"labels": {CLASS: "online"}}, [CLASS]),
        (MEMORY, {"labels": {CLASS: "online"}, "annotations": {CLASS: "online"}}, []),
        (MEMORY, {"labels": {"aliquot.dev/card-models": "A100"}}, ["aliquot.dev/card-models"]),
        ({"nvidia.com/gpu": 1}, {"labels": {"nvidia.com/use-gputype": "A100"}}, ["nvidia.com/use-gputype"]),
        ({}, {"labels": {"gpu-fraction": "0.5"}}, ["gpu-fraction"]),
        ({}, {"labels": {CLASS: "online"}}, []),
        ({"aliyun.com/gpu-mem": 4}, {"labels": {"aliyun.com/gpu-count": "2"}}, []),
    ],
)
def test_annotation_that_is_written_as_a_label_is_named(limits: Json, metadata: Json, named: list[str]) -> None:
    said = "has no effect: it is an annotation: move it to metadata.annotations"
    assert remarks(pod(limits, metadata), SERVED) == [f'metadata.labels["{key}"] {said}' for key in named]


@pytest.mark.parametrize("kind", ["labels", "annotations"])
@pytest.mark.parametrize("name", ["gpu-mem", "gpu-memory-gb", "gpu"])
def test_name_without_a_domain_that_resembles_one_of_kai_is_the_owners_own(kind: str, name: str) -> None:
    """Teams label their Pods by what a card has; KAI's annotations have no domain either."""
    limits: dict[str, object] = {"aliyun.com/gpu-mem": 4}
    assert isinstance(parse_pod(pod(limits, {kind: {name: "24"}}), SERVED), Claim)


def test_label_of_a_dialect_that_is_not_served_is_not_named() -> None:
    labels = {"gpu-fraction": "0.5", "nvidia.com/use-gputype": "A100"}
    assert remarks(pod(MEMORY, {"labels": labels})) == []


@pytest.mark.parametrize("where", ["limits", "annotations", "labels", "resources"])
def test_a_pod_has_only_so_many_names_compared(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each comparison takes some 20 us, and a Pod may have tens of thousands of names."""
    compared: list[str] = []
    closest = lookalikes._closest

    def counted(name: str, *more: Any) -> str | None:
        compared.append(name)
        return closest(name, *more)

    monkeypatch.setattr(lookalikes, "_closest", counted)
    names = {f"aliyun.com/gpu-coun{at}": "1" for at in range(5000)}
    limits = {"aliyun.com/gpu-mem": "4"}
    container = {"name": "a", "resources": {"limits": names if where == "limits" else limits}}
    pod: Any = {"metadata": {}, "spec": {"containers": [container]}}
    if where == "resources":
        pod["spec"]["resources"] = {"limits": names}
    elif where != "limits":
        pod["metadata"][where] = names
    found = parse_pod(pod)
    assert isinstance(found, tuple)
    assert 0 < len(found) <= 1000
    assert len(compared) <= 2000
