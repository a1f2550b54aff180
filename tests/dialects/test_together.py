"""The annotation that puts Pods into a group: on one machine, and on a cluster, where a group has one user."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.dialects import Rules, parse_node, parse_pod, render_inventory
from aliquot.dialects.native import render_together
from aliquot.dialects.nodereading import NodeReader
from aliquot.dialects.registry import PodReader
from aliquot.dialects.wire.objectreading import read_object
from aliquot.dialects.wire.objects import Metadata, NodeObject, PodObject
from aliquot.model.claim import Claim
from aliquot.model.device import Card
from aliquot.model.node import Node

LIMITS = {
    "qgpu": {"tke.cloud.tencent.com/qgpu-memory": 8},
    "t9k": {"tensorstack.dev/nvidia-gpu-percent": 25},
    "gpushare": {"aliyun.com/gpu-mem": 8},
}


def together(limits: dict[str, int], group: object, park: str | None = None, **spec: Any) -> dict[str, Any]:
    annotations = {"aliquot.dev/together": group} | ({} if park is None else {"aliquot.dev/park": park})
    container = {"name": "main", "image": "x", "resources": {"limits": limits}}
    metadata = {"name": "p", "namespace": "ml", "uid": "u", "annotations": annotations}
    return {"metadata": metadata, "spec": {"containers": [container], **spec}}


def as_user(user: object) -> dict[str, Any]:
    return {"securityContext": {"runAsUser": user}}


@pytest.mark.parametrize("dialect", sorted(LIMITS))
def test_together_annotation_names_the_group_on_one_machine(dialect: str) -> None:
    claim = parse_pod(together(LIMITS[dialect], "team"), Rules(one_user=True))
    assert isinstance(claim, Claim)
    assert (claim.group, claim.user, claim.parkable) == ("team", None, False)


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (together(LIMITS["qgpu"], "a b"), "at most 63 characters"),
        (together(LIMITS["qgpu"], ""), "at most 63 characters"),
        (together(LIMITS["qgpu"], 7), "at most 63 characters"),
        (together(LIMITS["qgpu"], "team", park="30s"), "not beside aliquot.dev/park"),
        (together({"tensorstack.dev/nvidia-gpu": 1}, "team"), "whole cards"),
    ],
)
def test_bad_together_annotation_is_refused(pod: dict[str, Any], why: str) -> None:
    for broken in (parse_pod(pod, Rules(one_user=True)), parse_pod({**pod, "spec": {**pod["spec"], **as_user(1000)}})):
        assert isinstance(broken, tuple)
        assert any(one.field.endswith('together"]') and why in one.allowed for one in broken), broken


@pytest.mark.parametrize("dialect", sorted(LIMITS))
def test_member_on_a_cluster_has_the_user_that_its_pod_says(dialect: str) -> None:
    pod = together(LIMITS[dialect], "team", **as_user(1000))
    claim = parse_pod(pod)
    assert isinstance(claim, Claim)
    assert (claim.group, claim.user, claim.group_key) == ("team", 1000, "ml/team/normal/1000")
    assert _read(PodReader(Rules()), pod) == claim


def test_container_s_own_user_wins() -> None:
    pod = together(LIMITS["qgpu"], "team", **as_user(1000))
    pod["spec"]["containers"][0] |= as_user(2000)
    claim = parse_pod(pod)
    assert isinstance(claim, Claim)
    assert claim.user == 2000
    assert _read(PodReader(Rules()), pod) == claim


@pytest.mark.parametrize(
    ("spec", "field", "why"),
    [
        ({}, "spec.securityContext.runAsUser", "other than root"),
        (as_user(0), "spec.securityContext.runAsUser", "other than root"),
        (as_user(True), "spec.securityContext.runAsUser", "other than root"),
        (as_user("1000"), "spec.securityContext.runAsUser", "other than root"),
        (as_user(1000) | {"hostUsers": False}, "spec.hostUsers", "true, or omit it"),
    ],
)
def test_member_on_a_cluster_must_say_one_user(spec: dict[str, Any], field: str, why: str) -> None:
    broken = parse_pod(together(LIMITS["qgpu"], "team", **spec))
    assert isinstance(broken, tuple)
    assert [one.field for one in broken] == [field]
    assert why in broken[0].allowed


def test_containers_of_two_users_are_refused_with_both_fields() -> None:
    pod = together(LIMITS["qgpu"], "team", **as_user(1000))
    pod["spec"]["containers"].append({**pod["spec"]["containers"][0], "name": "other", **as_user(7)})
    broken = parse_pod(pod)
    assert isinstance(broken, tuple)
    assert [one.field for one in broken] == ["spec.containers[1].securityContext.runAsUser"]
    assert "the same user as spec.securityContext.runAsUser, 1000" in broken[0].allowed


def test_reader_does_not_take_one_user_s_pod_for_another_s() -> None:
    reader = PodReader(Rules())
    users = [_read(reader, together(LIMITS["qgpu"], "team", **as_user(user))) for user in (1, 2, 1)]
    assert [claim.user for claim in users if isinstance(claim, Claim)] == [1, 2, 1]


def test_pod_in_no_group_may_have_any_user() -> None:
    pod = together(LIMITS["qgpu"], "team", **as_user(0), hostUsers=False)
    del pod["metadata"]["annotations"]["aliquot.dev/together"]
    claim = parse_pod(pod)
    assert isinstance(claim, Claim)
    assert (claim.user, claim.group_key) == (None, "")


@pytest.mark.parametrize("said", [None, True, False])
def test_node_runs_groups_if_its_agent_says_so(said: bool | None) -> None:
    annotations = render_inventory((Card(0, 16 * 1024, "GPU-0"),))
    annotations |= {} if said is None else render_together(said)
    node = NodeObject(Metadata(name="n1", labels={"gpushare": "true"}, annotations=annotations))
    reader = NodeReader(Rules())
    for found in (parse_node(node), reader.read(node), reader.read(node)):
        assert isinstance(found, Node)
        assert found.together is (said is True)


def _read(reader: PodReader, pod: dict[str, Any]) -> object:
    read = read_object(pod, PodObject, "pod")
    assert isinstance(read, PodObject)
    return reader.read(read).claim
