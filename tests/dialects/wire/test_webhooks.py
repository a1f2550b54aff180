"""The webhook's configuration; that the API server takes it, and asks about our Pods only, is in tests/e2e."""

from __future__ import annotations

import base64
import copy

from aliquot.dialects import gpushare, qgpu, t9k
from aliquot.dialects.lookalikes import prefixes
from aliquot.dialects.rules import DIALECTS
from aliquot.dialects.wire.webhooks import FailurePolicy, ServiceRef, configured, webhook_configuration

SERVICE = ServiceRef("kube-system", "aliquot-webhook")


def test_service_configuration_has_ca_bundle() -> None:
    (webhook,) = webhook_configuration(b"CA", SERVICE)["webhooks"]
    assert webhook["clientConfig"] == {
        "caBundle": base64.b64encode(b"CA").decode(),
        "service": {"namespace": "kube-system", "name": "aliquot-webhook", "path": "/review", "port": 443},
    }


def test_url_configuration_has_address() -> None:
    (webhook,) = webhook_configuration(b"CA", "https://127.0.0.1:8443/")["webhooks"]
    assert webhook["clientConfig"]["url"] == "https://127.0.0.1:8443/review"


def test_failure_policy_is_ignore_by_default() -> None:
    policies = [
        webhook_configuration(b"", SERVICE)["webhooks"][0]["failurePolicy"],
        webhook_configuration(b"", SERVICE, failure_policy=FailurePolicy.FAIL)["webhooks"][0]["failurePolicy"],
    ]
    assert policies == ["Ignore", "Fail"]


def test_match_condition_names_all_resources() -> None:
    (webhook,) = webhook_configuration(b"", SERVICE)["webhooks"]
    (condition,) = webhook["matchConditions"]
    for resource in (*qgpu.RESOURCES, *t9k.RESOURCES, *gpushare.RESOURCES):
        (prefix,) = (prefix for prefix in prefixes(frozenset(DIALECTS)) if resource.startswith(prefix))
        # limits and requests, of two kinds of containers
        assert condition["expression"].count(f"r.startsWith('{prefix}')") == 4


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
