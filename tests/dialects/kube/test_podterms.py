"""Terms about other Pods: which of them a selector means."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.dialects.kube.podterms import OF_CARDS, PodTerms, conflicting, scheduling_gates, terms_of
from aliquot.dialects.pods import read_pod
from aliquot.dialects.rules import EVERY
from aliquot.dialects.wire.schedulerconfig import KubeSchedulerSettings, render_config
from dialects.kube.test_conditions import pod

RULE = "requiredDuringSchedulingIgnoredDuringExecution"


def terms(labels: dict[str, str], **spec: Any) -> PodTerms:
    made = pod(**spec)
    made["metadata"]["labels"] = labels
    view = read_pod(made)
    assert view is not None
    return terms_of(view, view.spec)


@pytest.mark.parametrize(
    ("keys", "conditions"),
    [
        ({"matchLabelKeys": ["hash"]}, [{"key": "hash", "operator": "In", "values": ["7f"]}]),
        ({"mismatchLabelKeys": ["hash"]}, [{"key": "hash", "operator": "NotIn", "values": ["7f"]}]),
        ({"matchLabelKeys": ["not there", 5, None]}, []),
        ({"matchLabelKeys": "hash"}, []),
        ({}, []),
    ],
    ids=["the same", "another", "without the label", "no list", "none"],
)
def test_label_keys_stand_for_the_pods_own_values(keys: dict[str, Any], conditions: list[dict[str, Any]]) -> None:
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}, **keys}
    own = {"key": "app", "operator": "In", "values": ["web"]}
    found = terms({"hash": "7f"}, affinity={"podAntiAffinity": {RULE: [term]}})
    assert [term.selector.conditions for term in found.anti_affinity] == [(own, *conditions)]


@pytest.mark.parametrize(
    ("selector", "labels", "selected", "text"),
    [
        (None, {}, False, "no labels that a selector names"),
        ("app=web", {"app": "web"}, False, "no labels that a selector names"),
        ({}, {}, True, "any labels"),
        ({"matchLabels": {"app": "web"}}, {"app": "web", "more": "x"}, True, "app=web"),
        ({"matchLabels": {"app": "web"}}, {"app": "db"}, False, "app=web"),
        ({"matchLabels": {"app": "web", "tier": "a"}}, {"app": "web"}, False, "app=web and tier=a"),
        (
            {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "db"]}]},
            {"app": "db"},
            True,
            "app In [web, db]",
        ),
        (
            {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]},
            {"app": "db"},
            True,
            "app NotIn [web]",
        ),
    ],
)
def test_selector_selects_by_all_of_its_conditions(selector: object, labels: Any, selected: bool, text: str) -> None:
    term = {"topologyKey": "zone", "labelSelector": selector}
    (found,) = terms({}, affinity={"podAffinity": {RULE: [term]}}).affinity
    assert found.selector.matches(labels) is selected
    assert str(found.selector) == text


@pytest.mark.parametrize(
    ("term", "namespaces"),
    [
        ({}, {"team"}),
        ({"namespaces": ["a", "b"]}, {"a", "b"}),
        ({"namespaceSelector": {}}, {"a", "b", "team"}),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "a"}}}, {"a"}),
        ({"namespaces": ["b"], "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "a"}}}, {"a", "b"}),
    ],
)
def test_term_is_about_the_pods_of_some_namespaces(term: dict[str, Any], namespaces: set[str]) -> None:
    whole = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}, **term}
    made = pod(affinity={"podAffinity": {RULE: [whole]}})
    made["metadata"]["namespace"] = "team"
    view = read_pod(made)
    assert view is not None
    (found,) = terms_of(view, view.spec).affinity
    assert {name for name in ("a", "b", "team") if found.matches(name, {"app": "web"})} == namespaces
    assert not any(found.matches(name, {"app": "db"}) for name in namespaces)
    assert found.topology_key == "zone"


@pytest.mark.parametrize(
    ("port", "host_network", "taken"),
    [
        ({"hostPort": 80}, False, ("0.0.0.0", "TCP", 80)),
        ({"hostPort": 80, "hostIP": "10.0.0.1", "protocol": "UDP"}, False, ("10.0.0.1", "UDP", 80)),
        ({"containerPort": 80}, False, None),
        ({"containerPort": 80}, True, ("0.0.0.0", "TCP", 80)),
        ({"containerPort": 80}, "yes", None),
        ({"hostPort": 81, "containerPort": 80}, True, ("0.0.0.0", "TCP", 81)),
        ({"hostPort": "80"}, False, None),
        ("80", False, None),
    ],
)
def test_ports_that_a_pod_takes_of_its_node(port: object, host_network: object, taken: object) -> None:
    containers = {"containers": [{"ports": [port]}], "hostNetwork": host_network}
    sidecar = {"initContainers": [{"restartPolicy": "Always", "ports": [port]}], "hostNetwork": host_network}
    before = {"initContainers": [{"ports": [port]}], "hostNetwork": host_network}
    wanted = [] if taken is None else [taken]
    assert list(terms({}, **containers).ports) == wanted
    assert list(terms({}, **sidecar).ports) == wanted
    assert not terms({}, **before).ports


@pytest.mark.parametrize(
    ("port", "taken", "conflict"),
    [
        (("0.0.0.0", "TCP", 80), [], False),
        (("0.0.0.0", "TCP", 80), [("0.0.0.0", "TCP", 80)], True),
        (("0.0.0.0", "TCP", 80), [("10.0.0.1", "TCP", 80)], True),
        (("10.0.0.1", "TCP", 80), [("0.0.0.0", "TCP", 80)], True),
        (("10.0.0.1", "TCP", 80), [("10.0.0.1", "TCP", 80)], True),
        (("10.0.0.1", "TCP", 80), [("10.0.0.2", "TCP", 80)], False),
        (("0.0.0.0", "TCP", 80), [("0.0.0.0", "UDP", 80), ("0.0.0.0", "TCP", 81)], False),
        (("0.0.0.0", "TCP", 80), [("0.0.0.0", "TCP", 81), ("0.0.0.0", "TCP", 80)], True),
    ],
)
def test_port_is_taken_on_its_address_or_on_every_address(port: Any, taken: list[Any], conflict: bool) -> None:
    assert conflicting(port, taken) is conflict


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({}, (1, 1, False)),
        ({"maxSkew": 2, "minDomains": 3, "nodeAffinityPolicy": "Ignore"}, (2, 3, True)),
        ({"maxSkew": 1, "minDomains": 1, "nodeAffinityPolicy": "Honor"}, (1, 1, False)),
        ({"maxSkew": 0, "minDomains": -1}, (1, 1, False)),
        ({"maxSkew": True, "minDomains": "3"}, (1, 1, False)),
    ],
)
def test_spread_that_must_hold(more: dict[str, Any], wanted: tuple[int, int, bool]) -> None:
    must = {"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}, **more}
    may = {**must, "whenUnsatisfiable": "ScheduleAnyway"}
    (found,) = terms({}, topologySpreadConstraints=[may, must]).spread
    assert (found.max_skew, found.min_domains, found.all_nodes) == wanted
    assert (found.topology_key, found.selector.conditions) == ("zone", ())


def test_gates_that_hold_a_pod_back() -> None:
    assert scheduling_gates({"schedulingGates": [{"name": "a"}, {"name": "b"}, 7]}) == ("a", "b", "nothing")
    assert scheduling_gates({}) == ()


def test_amounts_are_of_extended_resources_that_kube_scheduler_counts() -> None:
    limits = {"cpu": "1", "memory": "1Gi", "aliyun.com/gpu-mem": 2, "rdma/hca": 2, "none.of/it": 0}
    limits["nvidia.com/gpumem"] = 1000
    containers = [{"name": name, "resources": {"limits": limits}} for name in ("a", "b")]
    assert terms({}, containers=containers).amounts == {"aliyun.com/gpu-mem": 4, "rdma/hca": 4}


def test_resources_of_cards_are_those_that_our_configuration_does_not_have_ignored() -> None:
    settings = KubeSchedulerSettings((1, 36), "http://a", dialects=EVERY)
    (extender,) = render_config(settings)["extenders"]
    counted = {managed["name"] for managed in extender["managedResources"] if not managed["ignoredByScheduler"]}
    assert counted == OF_CARDS
