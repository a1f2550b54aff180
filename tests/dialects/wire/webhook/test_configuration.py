"""The webhook's configuration; that the API server takes it, and asks about our Pods only, is in tests/e2e."""

from __future__ import annotations

import base64
import copy
from dataclasses import replace

import pytest
from hypothesis import given

from aliquot.dialects import gpushare, qgpu, t9k
from aliquot.dialects.lookalikes import prefixes
from aliquot.dialects.rules import DIALECTS
from aliquot.dialects.wire.webhook.configuration import (
    FailurePolicy,
    InstallerMarks,
    ServiceRef,
    configured,
    installer_marks,
    parse_secret,
    webhook_configuration,
)
from aliquot.dialects.wire.webhook.podlimits import TEMPLATES
from kit.values.strategies import anything

SERVICE = ServiceRef("kube-system", "aliquot-webhook")


def test_service_configuration_has_ca_bundle() -> None:
    """The same in every entry, unless each slot has a Service."""
    for webhook in webhook_configuration(b"CA", SERVICE)["webhooks"]:
        assert webhook["clientConfig"] == {
            "caBundle": base64.b64encode(b"CA").decode(),
            "service": {"namespace": "kube-system", "name": "aliquot-webhook", "path": "/review", "port": 443},
        }


def test_with_slots_every_attempt_but_the_last_goes_to_one_replica() -> None:
    entries = webhook_configuration(b"CA", SERVICE, slots=True)["webhooks"]
    names = [entry["clientConfig"]["service"]["name"] for entry in entries]
    assert names == [*["aliquot-webhook-0", "aliquot-webhook-1", "aliquot-webhook"] * 2, "aliquot-webhook"]


def test_url_configuration_has_address() -> None:
    for webhook in webhook_configuration(b"CA", "https://127.0.0.1:8443/")["webhooks"]:
        assert webhook["clientConfig"]["url"] == "https://127.0.0.1:8443/review"


def policies(chosen: FailurePolicy, name: str) -> list[str]:
    entries = webhook_configuration(b"", SERVICE, failure_policy=chosen)["webhooks"]
    assert len({entry["name"] for entry in entries}) == len(entries)
    return [entry["failurePolicy"] for entry in entries if entry["name"].endswith(name)]


def test_only_the_last_attempt_refuses_a_review_without_an_answer() -> None:
    assert policies(FailurePolicy.IGNORE, "pods.aliquot.dev") == ["Ignore"] * 3
    assert policies(FailurePolicy.FAIL, "pods.aliquot.dev") == ["Ignore", "Ignore", "Fail"]
    assert policies(FailurePolicy.FAIL, "templates.aliquot.dev") == ["Ignore", "Ignore", "Fail"]


def test_advice_on_workloads_blocks_none_and_is_requested_once() -> None:
    assert policies(FailurePolicy.FAIL, "advice.aliquot.dev") == ["Ignore"]


def test_failure_policy_is_ignore_by_default() -> None:
    assert {entry["failurePolicy"] for entry in webhook_configuration(b"", SERVICE)["webhooks"]} == {"Ignore"}


def test_further_attempts_skip_reviewed_pods() -> None:
    first, *further = (
        entry["matchConditions"][0]["expression"]
        for entry in webhook_configuration(b"", SERVICE)["webhooks"]
        if entry["name"].endswith("pods.aliquot.dev")
    )
    assert "aliquot.dev/reviewed" not in first
    assert all(expression.endswith(f" && ({first})") for expression in further)
    assert all("aliquot.dev/reviewed" in expression for expression in further)


def test_match_conditions_name_all_resources() -> None:
    """Of Pods also misspelled ones, which are refused."""
    for webhook in webhook_configuration(b"", SERVICE)["webhooks"]:
        (condition,) = webhook["matchConditions"]
        for resource in (*qgpu.RESOURCES, *t9k.RESOURCES, *gpushare.RESOURCES):
            (prefix,) = (prefix for prefix in prefixes(frozenset(DIALECTS)) if resource.startswith(prefix))
            if "templates" in webhook["name"]:  # requests, of two kinds of containers
                assert condition["expression"].count(f"'{resource}'") == 2
            else:  # limits and requests, of two kinds of containers
                assert condition["expression"].count(f"r.lowerAscii().startsWith('{prefix}')") == 4
    (one, *_) = webhook_configuration(b"", SERVICE, served=frozenset({"t9k"}))["webhooks"]
    assert "aliyun" not in one["matchConditions"][0]["expression"]


@pytest.mark.parametrize("name", ["templates.aliquot.dev", "advice.aliquot.dev"])
def test_every_workload_with_a_template_is_selected(name: str) -> None:
    entry = next(entry for entry in webhook_configuration(b"", SERVICE)["webhooks"] if entry["name"] == name)
    selected = {(group, name) for rule in entry["rules"] for group in rule["apiGroups"] for name in rule["resources"]}
    assert selected == {(group, f"{kind.lower()}s") for group, kind in TEMPLATES}


def test_installer_marks_are_those_of_helm_or_kubectl() -> None:
    metadata = {
        "labels": {"app.kubernetes.io/managed-by": "Helm"},
        "annotations": {"meta.helm.sh/release-name": "a", "other": "x"},
        "managedFields": [
            {"manager": "aliquot", "operation": "Apply"},
            {"manager": "someone", "operation": "Update"},
            {"manager": "helm", "operation": "Apply"},
        ],
    }
    marks = installer_marks({"metadata": metadata})
    assert marks == InstallerMarks(metadata["labels"], {"meta.helm.sh/release-name": "a"}, "helm")  # type: ignore[arg-type]  # mypy sees lists
    del metadata["managedFields"]
    assert installer_marks({"metadata": metadata}) == replace(marks, manager="aliquot")
    assert installer_marks({"metadata": {"name": "bare"}}) is None


@given(anything)
def test_installer_marks_accept_any_json(value: object) -> None:
    for obj in (value, {"metadata": value}, {"metadata": {"labels": {"a": "b"}, "managedFields": value}}):
        marks = installer_marks(obj)
        assert marks is None or marks.labels


def test_configured_ignores_api_server_defaults() -> None:
    wanted = webhook_configuration(b"CA", SERVICE)
    present = copy.deepcopy(wanted)
    present["webhooks"][0]["objectSelector"] = {}
    present["metadata"]["uid"] = "u"
    assert configured(present, wanted)


def test_configured_detects_changes() -> None:
    wanted = webhook_configuration(b"CA", SERVICE)
    changes: tuple[dict[str, object], ...]
    changes = ({"failurePolicy": "Fail"}, {"matchConditions": []}, {"clientConfig": {}}, {"rules": None})
    for change in changes:
        present = copy.deepcopy(wanted)
        present["webhooks"][0] |= change
        assert not configured(present, wanted)
    assert not configured({}, wanted)
    assert not configured([], wanted)


def test_secret_is_read_without_entries_that_are_no_base64() -> None:
    assert parse_secret({"data": {"tls.crt": "YQ==", "tls.key": "", "bad": "?", "number": 7}}) == {
        "tls.crt": b"a",
        "tls.key": b"",
    }
    nothings: list[object] = [None, {}, {"data": None}, {"data": []}, []]
    for nothing in nothings:
        assert parse_secret(nothing) == {}


@given(anything)
def test_anything_instead_of_a_secret_is_read(value: object) -> None:
    assert isinstance(parse_secret({"data": value}), dict)


def test_api_server_waits_longer_only_for_the_last_attempt() -> None:
    entries = webhook_configuration(b"", SERVICE)["webhooks"]
    waits = [entry["timeoutSeconds"] for entry in entries if entry["name"].endswith("pods.aliquot.dev")]
    assert waits[0] == waits[1] < waits[2]
    assert sum(waits) < 30, "what the API server waits for all webhooks of a request"
