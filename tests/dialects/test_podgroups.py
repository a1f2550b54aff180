"""PodGroups of four APIs: what a Pod names, and what a group asks for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aliquot.dialects.podgroups import (
    COSCHEDULING,
    GROUP_NAME,
    KUBERNETES,
    OLDER,
    OLDER_POD_GROUP,
    POD_GROUP,
    ROLE,
    T9K,
    GroupObject,
    api_of,
    group_key,
    membership,
    parse_group,
)
from aliquot.dialects.wire.objects import PodObject
from aliquot.model.group import Group, Membership
from aliquot.model.refusal import Invalid

NATIVE = "spec.schedulingGroup.podGroupName"


def _pod(labels: dict[str, str] | None = None, native: str | None = None, namespace: str | None = "ns") -> PodObject:
    metadata = {"name": "pod", "labels": labels} | ({"namespace": namespace} if namespace else {})
    spec = {} if native is None else {"schedulingGroup": {"podGroupName": native}}
    return msgspec.convert({"metadata": metadata, "spec": spec}, PodObject)


def _label(name: str) -> str:
    return f'metadata.labels["{name}"]'


@pytest.mark.parametrize(
    ("pod", "found"),
    [
        (_pod(), None),
        (_pod({}), None),
        (_pod({"app": "a"}), None),
        (_pod({POD_GROUP: ""}), None),
        (_pod(native=""), None),
        (_pod(native="g"), Membership((f"{KUBERNETES}/ns/g",), NATIVE, "g")),
        (_pod({POD_GROUP: "other"}, native="g"), Membership((f"{KUBERNETES}/ns/g",), NATIVE, "g")),
        (
            _pod({POD_GROUP: "g"}, native=""),
            Membership((f"{COSCHEDULING}/ns/g", f"{OLDER}/ns/g"), _label(POD_GROUP), "g"),
        ),
        (_pod({GROUP_NAME: "g", ROLE: "ps"}), Membership((f"{T9K}/ns/g",), _label(GROUP_NAME), "g", "ps")),
        (_pod({GROUP_NAME: "g"}, namespace=None), Membership((f"{T9K}/default/g",), _label(GROUP_NAME), "g")),
        (
            _pod({POD_GROUP: "g", ROLE: "ps"}),  # roles are the other API's
            Membership((f"{COSCHEDULING}/ns/g", f"{OLDER}/ns/g"), _label(POD_GROUP), "g"),
        ),
        (
            _pod({OLDER_POD_GROUP: "g"}),
            Membership((f"{OLDER}/ns/g", f"{COSCHEDULING}/ns/g"), _label(OLDER_POD_GROUP), "g"),
        ),
    ],
)
def test_group_that_a_pod_names(pod: PodObject, found: Membership | None) -> None:
    assert membership(pod) == found


def _group(spec: object, namespace: str | None = "ns") -> GroupObject:
    metadata = {"name": "g", "creationTimestamp": "then"} | ({"namespace": namespace} if namespace else {})
    return msgspec.convert({"metadata": metadata, "spec": spec}, GroupObject)


@pytest.mark.parametrize(
    ("api", "spec", "asked"),
    [
        (KUBERNETES, None, {"needed": 0}),
        (KUBERNETES, {"schedulingPolicy": {"basic": {}}, "minMember": 3}, {"needed": 0}),
        (KUBERNETES, {"schedulingPolicy": "gang"}, {"needed": 0}),
        (KUBERNETES, {"schedulingPolicy": {"gang": {}}}, {"needed": 0}),
        (KUBERNETES, {"schedulingPolicy": {"gang": {"minCount": 3}}}, {"needed": 3}),
        (T9K, {}, {"needed": 0}),
        (T9K, {"minMember": 2, "priority": -(2**31), "scheduleTimeoutSeconds": 5}, {"needed": 2, "priority": -(2**31)}),
        (T9K, {"priority": 2**31}, {"needed": 0, "priority": 2**31}),
        (T9K, {"finished": True}, {"needed": 0, "finished": True}),
        (T9K, {"finished": "true"}, {"needed": 0}),
        (T9K, {"roles": [{"name": "a", "minMember": 1}, {"name": "b"}]}, {"needed": 0, "roles": (("a", 1), ("b", 0))}),
        (COSCHEDULING, {"minMember": 4, "scheduleTimeoutSeconds": 5}, {"needed": 4, "patience": 5.0}),
        (COSCHEDULING, {"scheduleTimeoutSeconds": 0}, {"needed": 0}),
        (OLDER, {"minMember": 1, "priority": 7, "roles": 7, "finished": True}, {"needed": 1}),
    ],
)
def test_what_a_group_asks_for(api: str, spec: object, asked: dict[str, Any]) -> None:
    assert parse_group(api, _group(spec)) == Group(f"{api}/ns/g", created="then", **asked)


@pytest.mark.parametrize(
    ("api", "spec", "field"),
    [
        (T9K, [], "spec"),
        (KUBERNETES, "gang", "spec"),
        (KUBERNETES, {"schedulingPolicy": {"gang": {"minCount": -1}}}, "spec.schedulingPolicy.gang.minCount"),
        (T9K, {"minMember": -1}, "spec.minMember"),
        (T9K, {"minMember": True}, "spec.minMember"),
        (T9K, {"minMember": "1"}, "spec.minMember"),
        (T9K, {"minMember": 2**31 + 1}, "spec.minMember"),
        (T9K, {"priority": -(2**31) - 1}, "spec.priority"),
        (T9K, {"roles": {}}, "spec.roles"),
        (T9K, {"roles": [{"name": "a"}, {"name": ""}]}, "spec.roles[1].name"),
        (T9K, {"roles": ["a"]}, "spec.roles[0].name"),
        (T9K, {"roles": [{"name": "a", "minMember": -1}]}, "spec.roles[0].minMember"),
        (COSCHEDULING, {"scheduleTimeoutSeconds": -1}, "spec.scheduleTimeoutSeconds"),
    ],
)
def test_first_rule_that_a_group_breaks(api: str, spec: object, field: str) -> None:
    found = parse_group(api, _group(spec))
    assert isinstance(found, Invalid)
    assert found.field == field


@pytest.mark.parametrize(
    ("manifest", "api"),
    [
        ({"kind": "PodGroup", "apiVersion": f"{T9K}/v1beta1"}, T9K),
        ({"kind": "PodGroup", "apiVersion": "v1"}, None),
        ({"kind": "PodGroup"}, None),
        ({"kind": "Pod", "apiVersion": f"{T9K}/v1beta1"}, None),
    ],
)
def test_api_of_a_manifest(manifest: dict[str, Any], api: str | None) -> None:
    assert api_of(manifest) == api


def test_group_without_a_namespace_is_in_the_default_one() -> None:
    assert group_key(T9K, _group({}, None)) == f"{T9K}/default/g"
    assert group_key(T9K, _group({})) == f"{T9K}/ns/g"
