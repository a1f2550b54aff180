"""The commands of a Pod's containers, with their environment."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects.kube.commands import ContainerPlan, _expanded_length, expand, plan_of
from aliquot.model.claim import Role
from aliquot.model.refusal import Invalid
from kit.values.anyjson import any_json

METADATA = {"name": "p", "namespace": "ns", "labels": {"app": "web"}}


def a_pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": list(containers), **spec}}


def planned(*containers: dict[str, Any], **spec: Any) -> tuple[ContainerPlan, ...]:
    found = plan_of(a_pod(*containers, **spec))
    assert not isinstance(found, Invalid), found
    return found


def command(**container: Any) -> tuple[str, ...]:
    (planned_container,) = planned({"name": "a", "command": ["x"], **container})
    return expand(planned_container, METADATA, "node-0")[0]


def environment(*env: dict[str, Any]) -> dict[str, str]:
    (planned_container,) = planned({"name": "a", "command": ["x"], "env": list(env)})
    return expand(planned_container, METADATA, "node-0")[1]


def test_command_and_args_are_one_command() -> None:
    assert command(command=["sh", "-c"], args=["true"]) == ("sh", "-c", "true")


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
        ("metadata.name", "p"), ("metadata.namespace", "ns"), ("spec.nodeName", "node-0"),
        ("metadata.labels['app']", "web"), ("metadata.labels['other']", ""),
    ],
)  # fmt: skip
def test_pod_sees_its_own_fields(field: str, expected: str) -> None:
    assert environment({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": field}}}) == {"A": expected}


def test_what_is_not_here_is_left_out_where_it_is_optional_and_refused_where_it_is_not() -> None:
    reference = {"name": "m", "key": "k"}
    assert environment({"name": "A", "valueFrom": {"configMapKeyRef": {**reference, "optional": True}}}) == {}
    found = plan_of(
        a_pod({"name": "a", "command": ["x"], "env": [{"name": "A", "valueFrom": {"secretKeyRef": reference}}]})
    )
    assert isinstance(found, Invalid)
    assert found.field == "spec.containers[0].env[0].valueFrom"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({}, "spec.containers"),
        ({"containers": [{"name": "A_b"}]}, "spec.containers[0].name"),
        ({"containers": [{"name": "a"}]}, "spec.containers[0].command"),
        ({"containers": [{"name": "a", "args": ["x"]}]}, "spec.containers[0].command"),
        ({"containers": [{"name": "a", "command": ["x"]}, {"name": "a", "command": ["x"]}]}, "spec.containers"),
        ({"containers": [{"name": "a", "command": "true"}]}, "spec.containers[0].command"),
        ({"containers": [{"name": "a", "command": ["/x\udc80"]}]}, "spec.containers[0].command[0]"),
        ({"containers": [{"name": "a", "command": ["x\0"]}]}, "spec.containers[0].command[0]"),
        ({"containers": [{"name": "a", "command": ["x"], "args": [1]}]}, "spec.containers[0].args[0]"),
        ({"containers": [{"name": "a", "env": [{"name": 1}], "command": ["x"]}]}, "spec.containers[0].env[0].name"),
        ({"containers": [{"name": "a", "envFrom": [{"secretRef": {}}]}]}, "spec.containers[0].envFrom[0].secretRef"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_named(spec: dict[str, Any], field: str) -> None:
    found = plan_of({"spec": spec})
    assert isinstance(found, Invalid)
    assert found.field == field


def test_variables_that_grow_with_each_other_are_counted_and_not_written_out() -> None:
    first = {"name": "A0", "value": "x" * 10}
    others = [{"name": f"A{at}", "value": f"$(A{at - 1})" * 10} for at in range(1, 20)]
    found = plan_of({"spec": {"containers": [{"name": "main", "command": ["x"], "env": [first, *others]}]}})
    assert isinstance(found, Invalid)
    assert found.allowed == "at most 262144 in a Pod, once every $(VARIABLE) is expanded"


def test_requests_of_the_pod_count_as_often_as_they_are_named() -> None:
    field = {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['a']"}}}
    main = {"name": "main", "command": ["x"], "env": [field], "args": ["$(A)" * 1000]}
    spec = {"containers": [main]}
    assert isinstance(plan_of({"metadata": {"annotations": {"a": "x" * 100}}, "spec": spec}), tuple)
    assert isinstance(plan_of({"metadata": {"annotations": {"a": "x" * 1000}}, "spec": spec}), Invalid)


def test_a_pod_of_very_many_containers_is_refused() -> None:
    found = plan_of({"spec": {"containers": [{"name": f"c{at}", "command": ["x"]} for at in range(33)]}})
    assert isinstance(found, Invalid)
    assert found.sentence() == "spec.containers: 33 is not allowed: at most 32 containers in a Pod"


def test_pod_of_the_most_containers_is_taken() -> None:
    most = [{"name": f"c{at}", "command": ["x"]} for at in range(32)]
    assert len(planned(*most)) == 32
    assert isinstance(plan_of(a_pod(*most, {"name": "more", "command": ["x"]})), Invalid)


@pytest.mark.parametrize(("written", "folder"), [(None, None), ("", None), ("/data", "/data")])
def test_folder_of_a_container(written: str | None, folder: str | None) -> None:
    (container,) = planned({"name": "c", "command": ["x"], "workingDir": written})
    assert container.folder == folder


@pytest.mark.parametrize(("policy", "role"), [(None, Role.INIT), ("Always", Role.SIDECAR), ("OnFailure", Role.INIT)])
def test_only_an_init_container_that_restarts_always_is_a_sidecar(policy: str | None, role: Role) -> None:
    container = {"name": "a", "command": ["x"], "restartPolicy": policy}
    first, main = planned({**container, "name": "b"}, initContainers=[container])
    assert (first.role, main.role) == (role, Role.MAIN)


@given(any_json(keys=("containers", "name", "command", "env", "valueFrom"), most=5, leaves=20))
def test_plan_of_accepts_any_json(value: Any) -> None:
    plan_of({"spec": value})
    plan_of({"spec": {"containers": [value], "initContainers": value}})
