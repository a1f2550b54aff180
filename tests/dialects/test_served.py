"""`--dialects`: a cluster that serves some of the dialects leaves Pods and nodes of the others alone."""

from __future__ import annotations

import msgspec
import pytest

from aliquot.dialects import Rules, parse_node, parse_pod
from aliquot.dialects.lookalikes import prefixes
from aliquot.dialects.wire.leases import LeaseObject, render_lease
from aliquot.dialects.wire.upkeep import may_need_upkeep, upkeep
from aliquot.dialects.wire.webhook.admission import AdmissionSettings, review
from aliquot.dialects.wire.webhook.configuration import ServiceRef, webhook_configuration
from aliquot.model.claim import Claim
from aliquot.model.node import Node, Offer
from kit.values.manifests import (
    COUNT,
    MEM,
    QGPU,
    QGPU_CORE,
    QGPU_MEMORY,
    SGN,
    T9K_PERCENT,
    XGN,
    Json,
    a_container,
    a_node,
    a_pod,
)

NOW = "2026-01-01T00:00:00Z"
PODS = {
    "qgpu": a_pod("q", a_container(limits={QGPU_MEMORY: 4, QGPU_CORE: 20})),
    "t9k": a_pod("t", a_container(limits={T9K_PERCENT: 20})),
    "gpushare": a_pod("g", a_container(limits={MEM: 4})),
}


def only(*served: str) -> Rules:
    return Rules(served=frozenset(served))


@pytest.mark.parametrize("dialect", PODS)
def test_a_pod_is_ours_where_its_dialect_is_served(dialect: str) -> None:
    assert isinstance(parse_pod(PODS[dialect], only(dialect)), Claim)
    assert [parse_pod(PODS[dialect], only(other)) for other in PODS if other != dialect] == [None, None]


def test_rules_of_unserved_dialects_do_not_apply() -> None:
    broken = a_pod("q", a_container(limits={QGPU_CORE: 20}))
    assert isinstance(parse_pod(broken, only("qgpu")), tuple)
    assert parse_pod(broken, only("t9k", "gpushare")) is None


def test_a_pod_speaks_two_dialects_only_where_both_are_served() -> None:
    both = a_pod("b", a_container(limits={QGPU_MEMORY: 4, MEM: 4}))
    assert isinstance(parse_pod(both), tuple)
    assert isinstance(parse_pod(both, only("gpushare")), Claim)


@pytest.mark.parametrize(
    ("served", "offers"),
    [
        (("qgpu",), {Offer.QGPU}),
        (("t9k",), {Offer.T9K_SHARED}),
        (("gpushare",), {Offer.GPUSHARE, Offer.GPUSHARE_WHOLE}),
        (("qgpu", "gpushare"), {Offer.QGPU, Offer.GPUSHARE, Offer.GPUSHARE_WHOLE}),
    ],
)
def test_a_node_offers_what_is_served_of_what_its_labels_say(served: tuple[str, ...], offers: set[Offer]) -> None:
    node = parse_node(a_node("n", 16, labels={**QGPU, **SGN, "gpushare": "true"}), only(*served))
    assert isinstance(node, Node)
    assert node.offers == offers
    assert len(node.cards) == 1, "which cards there are is no matter of dialects"


def test_labels_of_unserved_dialects_are_not_checked() -> None:
    odd = a_node("n", 16, labels={**QGPU, "sched.tensorstack.dev/node-alloc-mode": "both"})
    assert isinstance(parse_node(odd), tuple)
    assert isinstance(parse_node(odd, only("qgpu")), Node)


def test_taints_and_labels_of_unserved_dialects_are_kept() -> None:
    exclusive, unlabelled = a_node("n", 16, labels=XGN), a_node("n", 16)
    assert upkeep(exclusive, NOW).needed
    assert upkeep(unlabelled, NOW).needed
    for node in (exclusive, unlabelled):
        metadata = node["metadata"]
        assert not may_need_upkeep(metadata["labels"], metadata["annotations"], (), (), rules=only("gpushare"))
        assert not upkeep(node, NOW, rules=only("gpushare")).needed


def test_the_webhook_answers_for_what_is_served() -> None:
    def said(dialect: str, *served: str) -> Json:
        request = {"uid": "u", "kind": {"group": "", "kind": "Pod"}, "operation": "CREATE", "object": PODS[dialect]}
        body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        answer = review(body, only(*served), AdmissionSettings("aliquot-scheduler"))
        assert isinstance(answer, dict)
        response: Json = answer["response"]
        return response

    assert "patch" in said("qgpu", "qgpu")
    assert said("gpushare", "qgpu") == {"uid": "u", "allowed": True}


@pytest.mark.parametrize("served", PODS)
def test_the_api_server_asks_about_what_is_served(served: str) -> None:
    made = webhook_configuration(b"CA", ServiceRef("gpu", "webhook"), served=frozenset({served}), spared=("gpu",))
    hooks = [hook for hook in made["webhooks"] if hook["name"].endswith("pods.aliquot.dev")]
    assert hooks
    for hook in hooks:
        asked = hook["matchConditions"][0]["expression"]
        assert {prefix for name in PODS for prefix in prefixes(frozenset({name})) if f"'{prefix}'" in asked} == set(
            prefixes(frozenset({served}))
        )
        assert (COUNT in asked) == (served == "gpushare"), hook["name"]


def test_the_api_server_never_asks_about_pods_of_kube_system_and_of_our_own_namespace() -> None:
    """Our own Pods, and the cluster's, must start while no webhook answers."""
    made = webhook_configuration(b"CA", ServiceRef("gpu", "webhook"), spared=("gpu",))
    (rule,) = made["webhooks"][0]["namespaceSelector"]["matchExpressions"]
    assert (rule["operator"], rule["values"]) == ("NotIn", ["gpu", "kube-system"])


def test_a_lease_that_a_chart_made_keeps_its_labels_and_annotations() -> None:
    made = {"name": "l", "resourceVersion": "7", "labels": {"a": "b"}, "annotations": {"helm": "yes", "x": "old"}}
    before = msgspec.convert({"metadata": made}, type=LeaseObject)
    after = render_lease(
        "gpu", "l", before, holder="me", anew=True, seconds=15, at="2026-01-01T00:00:00Z", annotations={"x": "new"}
    )
    assert after["metadata"]["labels"] == {"a": "b"}
    assert after["metadata"]["annotations"] == {"helm": "yes", "x": "new"}
