"""A Pod of any dialect as runs of one machine."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from aliquot.dialects import QgpuRules, Rules
from aliquot.dialects.podruns import Ask, PodRuns, makes_pods, runs_of
from aliquot.model.claim import Role
from kit.values.anyjson import any_json
from kit.values.manifests import APP_CLASS, MEM, QGPU_CORE, QGPU_GREEDY, QGPU_MEMORY, T9K_CARDS, T9K_NODE, T9K_PERCENT

CARDS = "nvidia.com/gpu"
Json = dict[str, Any]


def a_container(limits: Json | None = None, name: str = "main") -> Json:
    return {"name": name, "command": ["x"], "resources": {"limits": limits or {}}}


def a_pod(*containers: Json, annotations: Json | None = None, labels: Json | None = None, **spec: Any) -> Json:
    metadata = {"name": "p", "annotations": annotations or {}, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [*containers], **spec}}


def read(pod: Json, name: str | None = None, rules: Rules | None = None) -> PodRuns:
    found = runs_of(pod, name, "host", rules or Rules())
    assert isinstance(found, PodRuns), found
    return found


def refused(pod: Json) -> str:
    found = runs_of(pod, None, "host")
    assert isinstance(found, tuple)
    return "; ".join(broken.sentence() for broken in found)


@pytest.mark.parametrize(
    ("limits", "annotations", "ask"),
    [
        ({QGPU_MEMORY: 8}, {APP_CLASS: "online"}, Ask("online", memory_mib=8192)),
        ({QGPU_MEMORY: 8, QGPU_CORE: 30}, {}, Ask("normal", memory_mib=8192, core=30)),
        ({QGPU_MEMORY: 8, QGPU_GREEDY: 50}, {APP_CLASS: "offline"}, Ask("offline", memory_mib=8192, core=50)),
        ({T9K_PERCENT: 25}, {}, Ask("normal", memory_percent=25)),
        ({T9K_CARDS: 2}, {}, Ask("normal", gpus=2)),
        ({T9K_NODE: 1}, {}, Ask("normal", gpus=None)),
        ({MEM: 3}, {}, Ask("normal", memory_mib=3072)),
        ({CARDS: 2}, {}, Ask("normal", gpus=2)),
        ({CARDS: 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}, {}, Ask("normal", memory_mib=3000, core=30)),
        ({CARDS: 1, "nvidia.com/gpumem-percentage": 50}, {}, Ask("normal", memory_percent=50)),
        ({CARDS: 1, "nvidia.com/gpumem": 3000, "nvidia.com/priority": 0}, {}, Ask("online", memory_mib=3000)),
        ({}, {"gpu-fraction": "0.5"}, Ask("normal", memory_percent=50)),
        ({}, {"gpu-memory": "2048"}, Ask("normal", memory_mib=2048)),
        ({MEM: 3}, {"aliquot.dev/park": "30s"}, Ask("normal", memory_mib=3072, park_after=30.0)),
        (
            {QGPU_MEMORY: 8},
            {APP_CLASS: "online", "aliquot.dev/latency": "2ms"},
            Ask("online", memory_mib=8192, latency=0.002),
        ),
        ({MEM: 3}, {"aliquot.dev/together": "team"}, Ask("normal", memory_mib=3072, group="team")),
    ],
)
def test_request_of_every_dialect(limits: Json, annotations: Json, ask: Ask) -> None:
    (run,) = read(a_pod(a_container(limits), annotations=annotations)).runs
    assert (run.name, run.ask) == ("p", ask)


def test_qgpu_core_of_several_cards_needs_the_rules_of_2026() -> None:
    pod = a_pod(a_container({QGPU_MEMORY: 8, QGPU_CORE: 150}))
    assert "rules of 2026" in refused(pod)
    (run,) = read(pod, rules=Rules(QgpuRules.Y2026)).runs
    assert run.ask == Ask("normal", gpus=2, memory_mib=4096, core=75)


def test_containers_of_a_pod_are_named_after_it() -> None:
    first, side = ({"name": name, "command": ["x"]} for name in ("first", "side"))
    pod = a_pod(
        a_container({MEM: 3}, "a"), a_container(name="b"), initContainers=[first, {**side, "restartPolicy": "Always"}]
    )
    runs = read(pod).runs
    assert [(run.name, run.role, run.ask is None) for run in runs] == [
        ("p-first", Role.INIT, True),
        ("p-side", Role.SIDECAR, True),
        ("p-a", Role.MAIN, False),
        ("p-b", Role.MAIN, True),
    ]


def test_only_main_container_has_the_name_of_the_pod() -> None:
    pod = a_pod(a_container({MEM: 3}, "a"), initContainers=[{"name": "first", "command": ["x"]}])
    assert [run.name for run in read(pod).runs] == ["p-first", "p"]
    assert [run.name for run in read(pod, "other").runs] == ["other-first", "other"]


def test_command_environment_and_folder() -> None:
    container = {
        **a_container({MEM: 3}),
        "command": ["sh", "-c"],
        "args": ["$(A)"],
        "env": [{"name": "A", "value": "1"}, {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "workingDir": "/data",
    }
    (run,) = read(a_pod(container)).runs
    assert (run.command, run.env, run.folder) == (("sh", "-c", "1"), {"A": "1", "N": "host"}, "/data")


@pytest.mark.parametrize(
    ("pod", "sentence"),
    [
        (a_pod({"name": "a", "image": "x", "resources": {"limits": {MEM: 3}}}),
         "spec.containers[0].command is missing: the image is not used here"),
        (a_pod(a_container()), "the Pod requests no card"),
        (a_pod(a_container({"amd.com/gpu": 1})), '"amd.com/gpu" is not allowed: a resource of qGPU'),
        (a_pod(a_container({MEM: 3}), annotations={"aliquot.dev/card-models": "H200"}),
         "aliquot run` chooses among all cards"),
        (a_pod(a_container({CARDS: 1}), annotations={"nvidia.com/use-gpuuuid": "GPU-0"}),
         'metadata.annotations["nvidia.com/use-gpuuuid"]: "GPU-0" is not allowed'),
        (a_pod(a_container({QGPU_MEMORY: 8, QGPU_CORE: 101})), "1 to 99"),
        ({"kind": "Pod", "spec": {"containers": [a_container({MEM: 3})]}}, "metadata.name is missing"),
    ],
)  # fmt: skip
def test_refused_pod(pod: Json, sentence: str) -> None:
    assert sentence in refused(pod)


def test_notes_name_what_is_not_used() -> None:
    container = {**a_container({MEM: 3}), "ports": [{}], "livenessProbe": {"x": 1}}
    pod = a_pod(container, a_container({MEM: 1}, "b"), volumes=[{}], restartPolicy="Always", nodeNmae="x")
    assert list(read(pod).notes) == [
        "spec.nodeNmae is not a field of a Pod's spec: did you mean nodeName?",
        "not used on one machine: livenessProbe, ports, volumes",
        "restartPolicy is not used: a run that has ended is not started again",
        "its containers are separate runs here, and may get different cards",
    ]
    assert read(a_pod(a_container({MEM: 3}))).notes == ()


@pytest.mark.parametrize(
    ("obj", "makes"),
    [
        ({"kind": "Deployment", "spec": {"template": {"spec": {"containers": [{"name": "x"}]}}}}, True),
        ({"kind": "Anything", "spec": {"a": [{"podTemplate": {"spec": {"containers": [{"name": "x"}]}}}]}}, True),
        ({"kind": "Service", "spec": {"ports": [{"name": "x"}]}}, False),
        ({"kind": "ConfigMap", "data": {"a": "b"}}, False),
    ],
)
def test_objects_that_make_pods(obj: Json, makes: bool) -> None:
    assert makes_pods(obj) is makes


@given(any_json(keys=("kind", "metadata", "name", "spec", "containers", "resources", "limits", MEM), most=5, leaves=20))
def test_any_json_is_read_or_refused(value: Any) -> None:
    for pod in ({"kind": "Pod", "metadata": {"name": "p"}, "spec": value}, value):
        if isinstance(pod, dict):
            makes_pods(pod)
            assert isinstance(runs_of(pod, None, "host"), PodRuns | tuple)
