"""A Pod's containers as commands with an environment; what cannot be done here is named, what is left out is said."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects.local.objects import read_objects
from aliquot.dialects.local.pods import SAMPLE, PodPlan, _expanded_length, expand, notes_of, plan_of, restart_policy_of
from aliquot.model.refusal import Invalid
from kit.values.anyjson import any_json

METADATA = {"name": "p", "namespace": "ns", "uid": "u1", "labels": {"app": "web"}}


def a_pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": list(containers), **spec}}


def planned(*containers: dict[str, Any], **spec: Any) -> PodPlan:
    found = plan_of(a_pod(*containers, **spec))
    assert isinstance(found, PodPlan), found
    return found


def command(**container: Any) -> tuple[str, ...]:
    (planned_container,) = planned({"name": "a", **container}).containers
    return expand(planned_container, METADATA, "node-0", has_card=True)[0]


def environment(*env: dict[str, Any]) -> dict[str, str]:
    (planned_container,) = planned({"name": "a", "env": list(env)}).containers
    return expand(planned_container, METADATA, "node-0", has_card=True)[1]


def test_command_and_args_are_one_command() -> None:
    assert command(command=["sh", "-c"], args=["true"]) == ("sh", "-c", "true")


@pytest.mark.parametrize("policy", [None, "Always", "OnFailure"])
def test_only_an_init_container_that_restarts_always_is_a_sidecar(policy: str | None) -> None:
    container = {"name": "a", "restartPolicy": policy}
    first, main = planned({**container, "name": "b"}, initContainers=[container]).containers
    assert (first.init, first.sidecar) == (True, policy == "Always")
    assert (main.init, main.sidecar) == (False, False)


def test_without_a_command_the_sample_workload_runs_in_its_place() -> None:
    assert command(image="x") == SAMPLE
    assert SAMPLE[:3] == ("aliquot", "burn", "load")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"), ("x$(A)$(B)y", "x12y"), ("$(NONE)", "$(NONE)"), ("$$(A)", "$(A)"), ("$$$(A)", "$1"),
        ("$A", "$A"), ("$(A", "$(A"), ("100%", "100%"), ("$$", "$"),
    ],
)  # fmt: skip
def test_variables_are_expanded_as_kubernetes_does(text: str, expected: str) -> None:
    given_ = ({"name": "A", "value": "1"}, {"name": "B", "value": "2"}, {"name": "C", "value": text})
    assert environment(*given_)["C"] == expected
    assert command(command=["echo", text], env=[*given_[:2]]) == ("echo", expected)


@given(st.lists(st.sampled_from(["$(A)", "$(B)", "$", "(A)", "x"])).map("".join), st.text("x", max_size=9))
def test_expanded_text_is_no_longer_than_was_checked(text: str, value: str) -> None:
    """As long, where no dollar is escaped."""
    expanded = command(command=["echo", text], env=[{"name": "A", "value": value}])[1]
    checked = _expanded_length(text, {"A": len(value)})
    assert len(expanded) <= checked
    assert "$$" in text or len(expanded) == checked


def test_a_variable_knows_only_those_before_it() -> None:
    assert environment({"name": "A", "value": "$(B)"}, {"name": "B", "value": "2"}) == {"A": "$(B)", "B": "2"}


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("metadata.name", "p"), ("metadata.namespace", "ns"), ("metadata.uid", "u1"), ("spec.nodeName", "node-0"),
        ("metadata.labels['app']", "web"), ("metadata.labels['other']", ""),
    ],
)  # fmt: skip
def test_pod_sees_its_own_fields(field: str, expected: str) -> None:
    assert environment({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": field}}}) == {"A": expected}


def test_what_is_not_here_is_left_out_where_it_is_optional_and_refused_where_it_is_not() -> None:
    reference = {"name": "m", "key": "k"}
    assert environment({"name": "A", "valueFrom": {"configMapKeyRef": {**reference, "optional": True}}}) == {}
    found = plan_of(a_pod({"name": "a", "env": [{"name": "A", "valueFrom": {"secretKeyRef": reference}}]}))
    assert isinstance(found, Invalid)
    assert found.field == "spec.containers[0].env[0].valueFrom"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({}, "spec.containers"),
        ({"containers": [{"name": "A_b"}]}, "spec.containers[0].name"),
        ({"containers": [{"name": "a"}, {"name": "a"}]}, "spec.containers"),
        ({"containers": [{"name": "a", "command": "true"}]}, "spec.containers[0].command"),
        ({"containers": [{"name": "a", "args": [1]}]}, "spec.containers[0].args[0]"),
        ({"containers": [{"name": "a", "env": [{"name": "A", "value": 1}]}]}, "spec.containers[0].env[0].value"),
        ({"containers": [{"name": "a", "envFrom": [{"secretRef": {}}]}]}, "spec.containers[0].envFrom[0].secretRef"),
        ({"containers": [{"name": "a"}], "restartPolicy": "Sometimes"}, "spec.restartPolicy"),
        ({"containers": [{"name": "a"}], "terminationGracePeriodSeconds": -1}, "spec.terminationGracePeriodSeconds"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_named(spec: dict[str, Any], field: str) -> None:
    found = plan_of({"spec": spec})
    assert isinstance(found, Invalid)
    assert found.field == field


def test_each_thing_that_means_nothing_here_is_said_once() -> None:
    probed = {"livenessProbe": {}, "readinessProbe": {"x": 1}, "startupProbe": {"x": 1}}
    pod = a_pod(
        {"name": "a", "image": "i", "command": ["x"], **probed},
        {"name": "b", "image": "i", "args": ["y"]},
        volumes=[{}],
    )
    plan = plan_of(pod)
    assert isinstance(plan, PodPlan)
    assert notes_of(pod, plan, frozenset()) == [
        "image i is not used: containers are local processes",
        "volumes is ignored: containers use the files of this machine",
        "probes are ignored: a container is ready while it runs",
        "args without a command are used as the command: images are not used",
        "no card requested",
    ]


def test_an_unknown_resource_is_named() -> None:
    """A slip in the name would else read like a Pod that wants no card."""
    pod = a_pod({"name": "a", "command": ["x"], "resources": {"limits": {"cpu": 1, "amd.com/gpu": 1}}})
    plan = plan_of(pod)
    assert isinstance(plan, PodPlan)
    assert notes_of(pod, plan, frozenset()) == [
        "no card requested: amd.com/gpu is not a resource of qGPU, T9k, gpushare or HAMi"
    ]
    assert notes_of(pod, plan, frozenset({"a"})) == ["amd.com/gpu: not served on one machine, and ignored"]
    limits = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 3000}
    pod = a_pod({"name": "a", "command": ["x"], "resources": {"limits": limits}})
    names = "volcano.sh/vgpu-memory, volcano.sh/vgpu-number"
    assert notes_of(pod, plan, frozenset()) == [
        f"no card requested: {names} are no resources of qGPU, T9k, gpushare or HAMi"
    ]


@pytest.mark.parametrize("side", ["limits", "requests"])
def test_a_resource_of_0_is_not_called_unknown(side: str) -> None:
    pod = a_pod({"name": "a", "command": ["x"], "resources": {side: {"nvidia.com/gpu": 0}}})
    plan = plan_of(pod)
    assert isinstance(plan, PodPlan)
    assert notes_of(pod, plan, frozenset()) == ["no card requested: nvidia.com/gpu of 0 asks for nothing"]


def test_resource_claims_and_runtime_classes_mean_nothing_here() -> None:
    pod = a_pod({"name": "a", "command": ["x"]}, resourceClaims=[{"name": "gpu"}], runtimeClassName="nvidia")
    plan = plan_of(pod)
    assert isinstance(plan, PodPlan)
    assert notes_of(pod, plan, frozenset()) == [
        "runtimeClassName is ignored: containers are local processes",
        "resourceClaims is ignored: claims need a cluster; here a container's resources ask for cards",
        "no card requested",
    ]


def test_variables_that_grow_with_each_other_are_counted_and_not_written_out() -> None:
    first = {"name": "A0", "value": "x" * 10}
    others = [{"name": f"A{at}", "value": f"$(A{at - 1})" * 10} for at in range(1, 20)]
    found = plan_of({"spec": {"containers": [{"name": "main", "env": [first, *others]}]}})
    assert isinstance(found, Invalid)
    assert found.allowed == "at most 262144 in a Pod, once every $(VARIABLE) is expanded"


def test_requests_of_the_pod_count_as_often_as_they_are_named() -> None:
    field = {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['a']"}}}
    main = {"name": "main", "env": [field], "args": ["$(A)" * 1000]}
    spec = {"containers": [main]}
    assert isinstance(plan_of({"metadata": {"annotations": {"a": "x" * 100}}, "spec": spec}), PodPlan)
    assert isinstance(plan_of({"metadata": {"annotations": {"a": "x" * 1000}}, "spec": spec}), Invalid)


def test_a_pod_of_very_many_containers_is_refused() -> None:
    found = plan_of({"spec": {"containers": [{"name": f"c{at}"} for at in range(33)]}})
    assert isinstance(found, Invalid)
    assert found.sentence() == "spec.containers: 33 is not allowed: at most 32 containers in a Pod"


_WORDS = (
    "kind",
    "metadata",
    "name",
    "namespace",
    "spec",
    "template",
    "containers",
    "env",
    "valueFrom",
    "items",
    "limits",
)


@given(
    any_json(keys=_WORDS, most=5, leaves=20),
    st.sampled_from(["Pod", "Deployment", "StatefulSet", "Job", "List", "PodList", "Service"]),
)
def test_no_json_is_more_than_it_can_bear(value: Any, kind: str) -> None:
    plan_of({"spec": value})
    whole = {"kind": kind, "metadata": {"name": "x"}, "items": [value], "spec": value}
    read_objects([whole, value])
    read_objects(
        [{"kind": kind, "metadata": {"name": "x"}, "spec": {"template": {"spec": value}, "containers": [value]}}]
    )


def test_policy_of_a_valid_pod_is_always_unless_it_is_written() -> None:
    assert restart_policy_of(a_pod({})) == "Always"
    assert restart_policy_of(a_pod({}, restartPolicy="Never")) == "Never"


def test_pod_of_the_most_containers_is_taken() -> None:
    most = [{"name": f"c{at}", "command": ["x"]} for at in range(32)]
    assert len(planned(*most).containers) == 32
    assert isinstance(plan_of(a_pod(*most, {"name": "more", "command": ["x"]})), Invalid)


@pytest.mark.parametrize(("written", "folder"), [(None, None), ("", None), ("/data", "/data")])
def test_folder_of_a_container(written: str | None, folder: str | None) -> None:
    (container,) = planned({"name": "c", "command": ["x"], "workingDir": written}).containers
    assert container.folder == folder
