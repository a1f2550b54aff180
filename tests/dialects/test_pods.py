"""What holds for every Pod, whatever the dialect."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.dialects import DEFAULT_RULES, PodReader, parse_pod
from aliquot.dialects.pods import read_pod, user_of
from aliquot.model.claim import Claim, Role
from aliquot.model.refusal import Invalid
from kit.clusters.watchobjects import as_pod
from kit.values.builders import claim_of as claim

MEM = "aliyun.com/gpu-mem"
QGPU = "tke.cloud.tencent.com/qgpu-memory"
T9K = "tensorstack.dev/nvidia-gpu"


def container(name: str = "c", *, limits: object = None, requests: object = None, **rest: object) -> dict[str, Any]:
    return {"name": name, "resources": {"limits": limits, "requests": requests}, **rest}


def pod(*containers: object, init: list[object] | None = None, **rest: Any) -> dict[str, Any]:
    manifest: dict[str, Any] = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": list(containers)}}
    if init is not None:
        manifest["spec"]["initContainers"] = init
    manifest["metadata"].update(rest.pop("metadata", {}))
    manifest["spec"].update(rest.pop("spec", {}))
    return manifest


GPU = {MEM: 3}


def fields(manifest: dict[str, Any]) -> list[str]:
    parsed = parse_pod(manifest)
    assert isinstance(parsed, tuple), parsed
    return [problem.field for problem in parsed]


@pytest.mark.parametrize(
    "manifest",
    [
        None,
        [],
        "Pod",
        {},
        pod(),
        pod(container()),
        pod(container(limits={"cpu": 1, "nvidia.com/gpu": 1})),
        {"spec": {"containers": "none"}},
        {"metadata": 3, "spec": []},
    ],
)
def test_pod_without_dialect_is_ignored(manifest: object) -> None:
    assert parse_pod(manifest) is None


@pytest.mark.parametrize(("first", "second"), [({QGPU: 1}, {MEM: 1}), ({QGPU: 1}, {T9K: 1}), ({T9K: 1}, {MEM: 1})])
def test_pod_with_two_dialects_is_refused(first: dict[str, int], second: dict[str, int]) -> None:
    parsed = parse_pod(pod(container("a", limits=first), container("b", limits=second)))
    assert isinstance(parsed, tuple)
    (only,) = parsed
    assert "spec.containers[0].resources.limits" in only.sentence()
    assert "spec.containers[1].resources.limits" in only.sentence()
    assert "one dialect per Pod" in only.sentence()
    assert only.value == 1  # not the dialect's name
    assert only.allowed.endswith("'s; remove one of them")


def test_container_with_two_dialects_is_refused() -> None:
    assert fields(pod(container(limits={QGPU: 1, MEM: 1}))) == [f'spec.containers[0].resources.limits["{MEM}"]']


def test_init_containers_come_first_and_those_that_always_restart_are_sidecars() -> None:
    parsed = claim(
        pod(
            container("main", limits=GPU),
            init=[
                container("plain"),
                container("init", limits=GPU),
                container("side", limits=GPU, restartPolicy="Always"),
            ],
        )
    )
    assert [(container.name, container.index, container.role) for container in parsed.containers] == [
        ("init", 1, Role.INIT),
        ("side", 2, Role.SIDECAR),
        ("main", 0, Role.MAIN),
    ]


def test_claim_has_only_requesting_containers() -> None:
    parsed = claim(pod(container("a"), container("b", limits=GPU), container("c"), container("d", limits=GPU)))
    assert [(container.name, container.index) for container in parsed.containers] == [("b", 1), ("d", 3)]


def test_ephemeral_containers_are_ignored() -> None:
    ephemeral = {"ephemeralContainers": [container("debug", limits=GPU)]}
    assert parse_pod(pod(container(), spec=ephemeral)) is None


def test_names_default_as_in_kubernetes() -> None:
    parsed = claim(pod(container(limits=GPU)))
    assert (parsed.namespace, parsed.name, parsed.uid, parsed.key) == ("default", "p", "default/p", "default/p")


def test_the_uid_is_the_pods_own() -> None:
    assert claim(pod(container(limits=GPU), metadata={"uid": "u-1", "namespace": "ml"})).uid == "u-1"


def test_pod_in_admission_has_generate_name() -> None:
    assert claim(pod(container(limits=GPU), metadata={"name": None, "generateName": "web-"})).name == "web-"


def test_the_owner_is_the_controller() -> None:
    owners = [{"kind": "X", "name": "x"}, {"kind": "ReplicaSet", "name": "web", "controller": True}]
    assert claim(pod(container(limits=GPU), metadata={"ownerReferences": owners})).owner == "ReplicaSet/default/web"
    assert claim(pod(container(limits=GPU), metadata={"ownerReferences": owners[:1]})).owner is None


@pytest.mark.parametrize(
    ("manifest", "field"),
    [
        (pod(container(limits=GPU), metadata={"uid": 7}), "metadata.uid"),
        (pod(container(limits=GPU), metadata={"name": []}), "metadata.name"),
        (pod(container(limits=GPU), metadata={"name": "\ud800"}), "metadata.name"),
        (pod(container(limits=GPU), metadata={"labels": []}), "metadata.labels"),
        (pod(container(limits=GPU), "x"), "spec.containers[1]"),
        (pod(container(limits=GPU), {"resources": 3}), "spec.containers[1].resources"),
        (pod(container(limits=GPU), container("d", limits=[])), "spec.containers[1].resources.limits"),
        (pod(container(limits=GPU), spec={"initContainers": {}}), "spec.initContainers"),
        (pod(container(limits=GPU), metadata={"ownerReferences": [3]}), "metadata.ownerReferences[0]"),
        (pod(container(limits={**GPU, "cpu": "much"})), 'spec.containers[0].resources.limits["cpu"]'),
        (pod(container(limits=GPU, requests={"cpu": "-1"})), 'spec.containers[0].resources.requests["cpu"]'),
        (pod(container("", limits=GPU)), "spec.containers[0].name"),
        (pod(container("a", limits=GPU), container("a", limits=GPU)), "spec.containers[1].name"),
    ],
)
def test_malformed_gpu_pod_names_the_field(manifest: dict[str, Any], field: str) -> None:
    assert fields(manifest) == [field]


# CPU and host memory


@pytest.mark.parametrize(
    ("manifest", "cpu", "memory"),
    [
        (pod(container(requests={"cpu": "500m", "memory": "200Mi"})), 500, 200),
        (pod(container(limits={"cpu": 2, "memory": "1Gi"})), 2000, 1024),
        (pod(container(requests={"cpu": "1"}, limits={"cpu": 2})), 1000, 0),
        (pod(container(requests={"cpu": "0.5m", "memory": "1"})), 1, 1),
        (pod(container("a", requests={"memory": "512Ki"}), container("b", requests={"memory": "512Ki"})), 0, 1),
        (pod(container("a", requests={"cpu": 1}), init=[container("i", requests={"cpu": 3})]), 3000, 0),
        (pod(container("a", requests={"cpu": 1}), container("b", requests={"cpu": 1})), 2000, 0),
        (
            pod(
                container("a", requests={"cpu": 1}),
                init=[
                    container("s", requests={"cpu": 2}, restartPolicy="Always"),
                    container("i", requests={"cpu": 3}),
                ],
            ),
            5000,
            0,
        ),
        (pod(container(requests={"cpu": 1}), spec={"overhead": {"cpu": "250m", "memory": "64Mi"}}), 1250, 64),
        (pod(container(requests={"cpu": 1}), spec={"resources": {"requests": {"cpu": 4}}}), 4000, 0),
        (pod(container(requests={"cpu": "nonsense"})), 0, 0),
    ],
)
def test_cpu_and_memory_are_the_effective_requests(manifest: dict[str, Any], cpu: int, memory: int) -> None:
    asked = PodReader(DEFAULT_RULES).read(as_pod(manifest))
    assert (asked.cpu_milli, asked.memory_mib) == (cpu, memory)


def test_claim_has_cpu_and_memory_requests() -> None:
    parsed = claim(pod(container(limits=GPU, requests={"cpu": "1500m", "memory": "2Gi"})))
    assert (parsed.cpu_milli, parsed.memory_mib) == (1500, 2048)


def test_pod_with_annotations_that_say_nothing_is_read_from_the_same_template() -> None:
    """A Pod gets annotations when it is bound: it is not parsed again for them."""
    reader = PodReader(DEFAULT_RULES)
    manifest = pod(container(limits=GPU))
    first = reader.read(as_pod(manifest)).claim
    manifest["metadata"] |= {"annotations": {"other": "1"}, "labels": {"app": "a"}}
    second = reader.read(as_pod(manifest)).claim
    assert isinstance(first, Claim)
    assert isinstance(second, Claim)
    assert second.containers is first.containers


def test_annotation_that_is_no_text_is_empty_and_a_problem() -> None:
    view = read_pod({"metadata": {"name": "p", "annotations": {"a": " x ", "b": 7}}, "spec": {}})
    assert view is not None
    problems: list[Invalid] = []
    assert [view.text(key, problems) for key in ("a", "b", "c")] == ["x", "", ""]
    assert [(problem.field, problem.value) for problem in problems] == [('metadata.annotations["b"]', 7)]


def test_group_has_no_user_in_a_user_namespace() -> None:
    view = read_pod({"metadata": {"name": "p"}, "spec": {"hostUsers": False, "securityContext": {"runAsUser": 7}}})
    assert view is not None
    problems: list[Invalid] = []
    assert user_of(view, (), problems) is None
    assert [(problem.field, problem.value) for problem in problems] == [("spec.hostUsers", False)]


@pytest.mark.parametrize(("user", "right"), [(0, False), (1, True), (2**31 - 1, True), (2**31, False), (True, False)])
def test_user_of_a_group(user: object, right: bool) -> None:
    view = read_pod({"metadata": {"name": "p"}, "spec": {"securityContext": {"runAsUser": user}}})
    assert view is not None
    problems: list[Invalid] = []
    assert (user_of(view, ("c",), problems) == user) is right
    assert bool(problems) is not right
