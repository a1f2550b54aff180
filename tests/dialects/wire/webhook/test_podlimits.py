"""Limits from requests: for Pods and for templates, and never over what a user wrote."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects import Rules, parse_pod
from aliquot.dialects.wire.webhook.admission import AdmissionSettings, review
from aliquot.dialects.wire.webhook.podlimits import TEMPLATES, complete_limits
from aliquot.model.claim import Claim
from kit.values.manifests import (
    APP_CLASS,
    COUNT,
    MEM,
    QGPU_CORE,
    QGPU_GREEDY,
    QGPU_MEMORY,
    T9K_CARDS,
    T9K_NODE,
    T9K_PERCENT,
    a_container,
    a_pod,
)
from kit.values.reviews import patched
from kit.values.strategies import anything

Json = dict[str, Any]
OURS = (MEM, COUNT, QGPU_CORE, QGPU_GREEDY, QGPU_MEMORY, T9K_CARDS, T9K_NODE, T9K_PERCENT)


def reviewed(obj: Json, group: str, kind: str, before: Json | None = None, rules: Rules | None = None) -> Json:
    """The object as the API server stores it."""
    request = {
        "uid": "u-1",
        "kind": {"group": group, "version": "v1", "kind": kind},
        "operation": "CREATE" if before is None else "UPDATE",
        "object": obj,
        "oldObject": before,
    }
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    answer = review(body, rules or Rules(), AdmissionSettings())
    assert isinstance(answer, dict)
    assert answer["response"]["allowed"], answer
    return patched(obj, answer["response"])


def workload(path: tuple[str, ...], spec: Json) -> Json:
    inner: Json = spec
    for key in reversed(path):
        inner = {key: inner}
    return {"metadata": {"name": "w"}, **inner}


def spec_of(obj: Json, path: tuple[str, ...]) -> Json:
    for key in path:
        obj = obj[key]
    return obj


@pytest.mark.parametrize(
    ("requests", "annotations"),
    [
        ({QGPU_GREEDY: 50, QGPU_MEMORY: 4}, {APP_CLASS: "offline"}),
        ({QGPU_MEMORY: 4}, {APP_CLASS: "online"}),
        ({QGPU_CORE: 30, QGPU_MEMORY: 5}, {}),
        ({T9K_PERCENT: 30}, {}),
        ({MEM: 12, COUNT: 4}, {}),
    ],
    ids=["offline", "online", "common", "t9k", "gpushare"],
)
def test_a_pod_with_requests_gets_limits(requests: Json, annotations: dict[str, str]) -> None:
    pod = a_pod("p", a_container("main", requests=requests), annotations=annotations)
    stored = reviewed(pod, "", "Pod")
    assert stored["spec"]["containers"][0]["resources"] == {"requests": requests, "limits": requests}
    claim = parse_pod(stored)
    assert isinstance(claim, Claim)
    assert claim == parse_pod(pod)


@pytest.mark.parametrize(("group", "kind"), TEMPLATES)
def test_templates_get_limits_of_all_containers(group: str, kind: str) -> None:
    path = TEMPLATES[group, kind]
    requests = {QGPU_MEMORY: 4, "cpu": "1"}
    spec = {
        "initContainers": [a_container("first", requests={MEM: 2})],
        "containers": [a_container("plain", {"cpu": "2"}), a_container("main", {"cpu": "3"}, requests=requests)],
    }
    stored = spec_of(reviewed(workload(path, spec), group, kind), path)
    assert stored["initContainers"][0]["resources"]["limits"] == {MEM: 2}
    assert stored["containers"][0] == spec["containers"][0]
    assert stored["containers"][1]["resources"]["limits"] == {"cpu": "3", QGPU_MEMORY: 4}
    assert stored["containers"][1]["resources"]["requests"] == requests


def test_limits_that_a_user_wrote_stay_even_if_they_differ() -> None:
    spec = {"containers": [a_container("main", {QGPU_MEMORY: 5}, requests={QGPU_MEMORY: 4})]}
    deployment = workload(TEMPLATES["apps", "Deployment"], spec)
    assert reviewed(deployment, "apps", "Deployment") == deployment


def test_limits_follow_a_request_that_an_update_changes() -> None:
    """As `kubectl apply` does: it leaves the limits, which it has not written."""
    path = TEMPLATES["apps", "Deployment"]

    def deployment(request: int, limit: int) -> Json:
        return workload(path, {"containers": [a_container("main", {MEM: limit}, requests={MEM: request})]})

    updated = reviewed(deployment(5, 4), "apps", "Deployment", before=deployment(4, 4))
    assert updated == deployment(5, 5)
    both = reviewed(deployment(5, 6), "apps", "Deployment", before=deployment(4, 4))
    assert both == deployment(5, 6), "the user changed both, and the API server says what is wrong"


def test_resources_that_are_not_served_get_no_limits() -> None:
    deployment = workload(TEMPLATES["apps", "Deployment"], {"containers": [a_container("main", requests={MEM: 4})]})
    assert reviewed(deployment, "apps", "Deployment", rules=Rules(served=frozenset({"t9k"}))) == deployment
    other = workload(
        TEMPLATES["apps", "Deployment"], {"containers": [a_container("main", requests={"nvidia.com/gpu": 1})]}
    )
    assert reviewed(other, "apps", "Deployment") == other


amounts = st.dictionaries(st.sampled_from([*OURS[:4], "cpu", "example.com/a~b"]), st.integers(0, 3), max_size=4)
containers = st.lists(
    st.builds(
        lambda name, sides: {"name": name, "resources": sides},
        st.sampled_from("abc"),
        st.fixed_dictionaries({}, optional={"limits": amounts | st.none(), "requests": amounts | st.none()}),
    ),
    max_size=3,
)
specs = st.fixed_dictionaries({"containers": containers}, optional={"initContainers": containers})


@given(specs, specs | st.none())
def test_the_patch_completes_and_changes_nothing_else(spec: Json, old: Json | None) -> None:
    obj, before = {"spec": spec}, None if old is None else {"spec": old}
    untouched = copy.deepcopy(obj)
    patch = complete_limits(obj, ("spec",), OURS, before)
    encoded = base64.b64encode(json.dumps(patch).encode()).decode()
    stored = patched(obj, {"patch": encoded, "patchType": "JSONPatch"} if patch else {})
    assert obj == untouched
    assert complete_limits(stored, ("spec",), OURS) == []
    for siblings in ("containers", "initContainers"):
        for given_one, made in zip(spec.get(siblings, ()), stored["spec"].get(siblings, ()), strict=True):
            limits, requests = (given_one["resources"].get(side) or {} for side in ("limits", "requests"))
            assert made["resources"].get("requests") == given_one["resources"].get("requests")
            after = made["resources"].get("limits") or {}
            assert all(after[name] == requests[name] for name in requests if name in OURS and name not in limits)
            assert limits.keys() <= after.keys()
            if old is None:
                assert limits.items() <= after.items()
            assert all(name in OURS for name in after.keys() - limits.keys())


@given(anything, anything)
def test_any_json_is_taken(obj: object, before: object) -> None:
    for path in (("spec",), *TEMPLATES.values()):
        complete_limits(obj, path, OURS, before)
        complete_limits(workload(path, obj), path, OURS, workload(path, before))  # type: ignore[arg-type]
