"""The selector of a workload must select the Pods of its template, as an API server wants it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from aliquot.dialects.local.objects import read_objects
from aliquot.dialects.local.selectors import selector_problem
from aliquot.model.refusal import Invalid
from kit.values.anyjson import any_json

KINDS = ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"]


def a_workload(
    selector: object = None, labels: object = None, kind: str = "Deployment", api: str | None = "apps/v1"
) -> dict[str, Any]:
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "command": ["true"]}]}}
    spec = {"template": template} if selector is None else {"selector": selector, "template": template}
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "web"}, "spec": spec}


def problem(selector: object, labels: object = None, kind: str = "Deployment") -> str | None:
    found = selector_problem(a_workload(selector, labels, kind), kind)
    return None if found is None else found.sentence()


@pytest.mark.parametrize("kind", KINDS)
def test_apply_refuses_a_workload_without_selector(kind: str) -> None:
    found = read_objects([a_workload(None, {"app": "web"}, kind)])
    assert isinstance(found, Invalid)
    assert found.sentence() == (
        f"{kind} default/web: spec.selector is missing: matchLabels with labels of the template, such as app: web"
    )


def test_missing_selector_and_labels_are_explained_together() -> None:
    assert problem(None) == (
        "spec.selector is missing: matchLabels with a label that you also give to spec.template.metadata.labels, such "
        "as app: web"
    )


@pytest.mark.parametrize("api", ["extensions/v1beta1", "apps/v1beta1"])
def test_old_versions_take_the_selector_from_the_template(api: str) -> None:
    assert selector_problem(a_workload(None, {"app": "web"}, api=api), "Deployment") is None


@pytest.mark.parametrize(
    "selector",
    [
        {"matchLabels": {"app": "web"}},
        {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "api"]}]},
        {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["api"]}]},
        {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
        {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "old", "operator": "DoesNotExist", "values": []}]},
    ],
)
def test_selector_that_matches_the_template_is_accepted(selector: object) -> None:
    assert problem(selector, {"app": "web", "tier": "front"}) is None


@pytest.mark.parametrize(
    ("selector", "sentence"),
    [
        (
            {"matchLabels": {"app": "api"}},
            'spec.template.metadata.labels["app"]: "web" is not allowed: api, as in spec.selector.matchLabels["app"]',
        ),
        (
            {"matchLabels": {"tier": "front"}},
            'spec.template.metadata.labels["tier"] is missing: front, as in spec.selector.matchLabels["tier"]',
        ),
        (
            {"matchExpressions": [{"key": "app", "operator": "In", "values": ["api", "db"]}]},
            'spec.selector.matchExpressions[0]: "app In [api, db]" is not allowed: what the labels of the template '
            "meet, which are app=web",
        ),
        ({}, "such as app: web; an empty one would select every Pod"),
        ([], "spec.selector: a list of 0 is not allowed: matchLabels with labels of the template, such as app: web"),
        (
            {"app": "web"},
            'spec.selector.app: "web" is not allowed: matchLabels or matchExpressions; labels are in matchLabels',
        ),
        ({"matchLabels": "app"}, "a mapping of labels, such as app: web"),
        ({"matchLabels": {"app": 1}}, 'spec.selector.matchLabels["app"]: 1 is not allowed: text: put it in quotes'),
        ({"matchExpressions": {}}, "a list of expressions with key, operator and values"),
        ({"matchExpressions": ["app"]}, "an expression with key, operator and values"),
        ({"matchExpressions": [{"operator": "Exists"}]}, "spec.selector.matchExpressions[0].key is missing"),
        (
            {"matchExpressions": [{"key": "app", "operator": "Gt", "values": ["1"]}]},
            'matchExpressions[0].operator: "Gt" is not allowed: In, NotIn, Exists, DoesNotExist',
        ),
        (
            {"matchExpressions": [{"key": "app", "operator": "Exists", "values": ["web"]}]},
            "matchExpressions[0].values: a list of 1 is not allowed: none with Exists",
        ),
        (
            {"matchExpressions": [{"key": "app", "operator": "In"}]},
            "matchExpressions[0].values is missing: with In a list of at least one text",
        ),
    ],
)
def test_selector_that_an_api_server_refuses_is_refused(selector: object, sentence: str) -> None:
    found = problem(selector, {"app": "web"})
    assert found is not None
    assert sentence in found


def test_selector_of_a_replication_controller_is_its_labels() -> None:
    kind = "ReplicationController"
    assert problem(None, {"app": "web"}, kind) is None
    assert problem({"app": "web"}, {"app": "web"}, kind) is None
    assert problem({"app": "api"}, {"app": "web"}, kind) == (
        'spec.template.metadata.labels["app"]: "web" is not allowed: api, as in spec.selector["app"]'
    )


@pytest.mark.parametrize("kind", ["Job", "CronJob"])
def test_jobs_need_no_selector(kind: str) -> None:
    assert problem(None, {"app": "web"}, kind) is None


WORDS = ("matchLabels", "matchExpressions", "key", "operator", "values", "app")


@given(any_json(keys=WORDS), any_json(keys=WORDS))
def test_selector_of_any_shape_never_raises(selector: object, labels: object) -> None:
    for kind in ("Deployment", "ReplicationController"):
        found = selector_problem(a_workload(selector, labels), kind)
        assert found is None or found.sentence()
