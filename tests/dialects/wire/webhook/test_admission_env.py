"""The webhook makes containers read their environment from annotations, where the runtime has no CDI."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from msgspec import convert

from aliquot.dialects import Rules, parse_pod, render_env, render_pod
from aliquot.dialects.registry import MOST_CONTAINERS
from aliquot.dialects.wire.objects import PodObject
from aliquot.dialects.wire.webhook.admission import (
    env_annotation,
    reads_environment,
    render_env_annotations,
)
from aliquot.model.claim import Claim
from aliquot.model.grant import ContainerGrant, Grant, Share
from kit.running.counting import steps
from kit.values.claims import NODE, grants
from kit.values.manifests import (
    MEM,
    QGPU_MEMORY,
    T9K_PERCENT,
    a_container,
    a_pod,
    asking,
)
from kit.values.reviews import BY_ENV, Json, admitted, answer, asked, patched


def env_of(container: Json) -> Json:
    return {variable["name"]: variable["valueFrom"]["fieldRef"]["fieldPath"] for variable in container["env"]}


def test_env_by_field_ref_is_off_by_default() -> None:
    assert "env" not in admitted(asking({QGPU_MEMORY: 4}))["spec"]["containers"][0]


def test_env_by_field_ref_uses_annotations_per_container() -> None:
    pod = a_pod("p", a_container("a", {MEM: 2}), a_container("plain"), a_container("b", {MEM: 1}))
    first, plain, second = admitted(pod, BY_ENV)["spec"]["containers"]
    assert list(env_of(first)) == [
        "NVIDIA_VISIBLE_DEVICES",
        "ALIYUN_COM_GPU_MEM_IDX",
        "ALIYUN_COM_GPU_MEM_DEV",
        "ALIYUN_COM_GPU_MEM_POD",
        "ALIYUN_COM_GPU_MEM_CONTAINER",
    ]
    assert "env" not in plain
    visible = "metadata.annotations['env.aliquot.dev/b.NVIDIA_VISIBLE_DEVICES']"
    assert env_of(second)["NVIDIA_VISIBLE_DEVICES"] == visible


def test_env_by_field_ref_overrides_user_variables() -> None:
    container = a_container("main", {QGPU_MEMORY: 4})
    mine = {"name": "MINE", "value": "$(NVIDIA_VISIBLE_DEVICES)"}
    container["env"] = [mine, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    response = answer(asked(a_pod("p", container)), BY_ENV)
    env = patched(a_pod("p", container), response)["spec"]["containers"][0]["env"]
    assert [variable["name"] for variable in env] == ["NVIDIA_VISIBLE_DEVICES", "MINE"]
    assert "value" not in env[0]
    assert response["warnings"] == [
        "env NVIDIA_VISIBLE_DEVICES of container main was replaced: aliquot sets it",
    ]


def test_env_annotation_keys_are_short_and_unique() -> None:
    one, other = "a" * 62 + "b", "a" * 62 + "c"
    keys = {env_annotation(name, "ALIYUN_COM_GPU_MEM_CONTAINER") for name in (one, other)}
    assert len(keys) == 2
    assert all(len(key.partition("/")[2]) <= 63 for key in keys)


@settings(max_examples=100)
@given(grants())
def test_env_annotations_of_binding_match_field_refs(case: tuple[Claim, Rules, Grant]) -> None:
    claim, rules, grant = case
    pod = render_pod(claim, rules)
    response = answer(asked(pod), BY_ENV, rules)
    spec = patched(pod, response)["spec"]
    containers = [*spec.get("initContainers", ()), *spec["containers"]]
    read = {path for container in containers if "env" in container for path in env_of(container).values()}
    written = render_env_annotations(claim, grant, NODE, rules)
    assert read == {f"metadata.annotations['{key}']" for key in written}


@settings(max_examples=100)
@given(grants())
def test_bound_pod_shows_whether_webhook_reviewed_it(case: tuple[Claim, Rules, Grant]) -> None:
    """If the webhook was away, the annotations are there all the same, and no container reads them."""
    claim, rules, grant = case
    pod = render_pod(claim, rules)
    written = {"metadata": {"annotations": render_env_annotations(claim, grant, NODE, rules)}}
    seen = patched(pod, answer(asked(pod), BY_ENV, rules)) | written
    for container in claim.containers:
        variables = render_env(claim, grant, NODE, container.name, rules)
        assert reads_environment(convert(seen, PodObject), container.name, variables)
        assert not reads_environment(convert(seen | {"metadata": {}}, PodObject), container.name, variables)
        assert not reads_environment(convert(pod | written, PodObject), container.name, variables)


@pytest.mark.parametrize("resource", [MEM, QGPU_MEMORY, T9K_PERCENT])
def test_time_for_a_pod_grows_with_its_containers_and_not_with_their_square(resource: str) -> None:
    """The environment of each was made of all the others: of 2,000 containers, when so many were let in, in 30 s."""
    pod = a_pod("p", *(a_container(f"c{at}", {resource: 1}) for at in range(MOST_CONTAINERS)))
    claim = parse_pod(pod, Rules())
    assert isinstance(claim, Claim)
    shares = (Share(0, 1),)
    granted = tuple(ContainerGrant(item.name, item.index, item.role, shares) for item in claim.containers)
    grant = Grant(claim.uid, NODE.name, granted)
    assert len(patched(pod, answer(asked(pod), BY_ENV))["spec"]["containers"][-1]["env"]) > 0
    assert len(render_env_annotations(claim, grant, NODE, Rules())) >= MOST_CONTAINERS
    taken = steps(lambda: (answer(asked(pod), BY_ENV), render_env_annotations(claim, grant, NODE, Rules())))
    assert taken < 1600 * MOST_CONTAINERS  # half as many


def test_only_the_forged_one_of_several_variables_is_named() -> None:
    container = admitted(a_pod("p", a_container("main", {MEM: 2})), BY_ENV)["spec"]["containers"][0]
    container["env"][1] = {"name": container["env"][1]["name"], "value": "9"}
    response = answer(asked(a_pod("p", container)), BY_ENV)
    env = patched(a_pod("p", container), response)["spec"]["containers"][0]["env"]
    assert all("valueFrom" in variable for variable in env)
    assert len(response["warnings"]) == 1
    assert container["env"][1]["name"] in response["warnings"][0]
