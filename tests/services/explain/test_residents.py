"""What kube-scheduler decides by the Pods that are on the nodes, which `aliquot explain` decides in its place."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects import Rules
from aliquot.dialects.kube.podterms import PodTerms, terms_of
from aliquot.dialects.native import PLACE
from aliquot.dialects.pods import read_pod
from aliquot.dialects.wire.objectreading import read_object
from aliquot.dialects.wire.objects import NodeObject
from aliquot.model.refusal import Reason
from aliquot.services.explain.residents import Residents
from aliquot.services.explain.snapshot import Snapshot, take_snapshot
from aliquot.services.explain.verdicts import Verdict
from kit.values.anyjson import any_json
from kit.values.manifests import QGPU, QGPU_CORE, QGPU_MEMORY, Json, asking, gpushare_node, gpushare_pod
from kit.values.manifests import a_node as cards_node

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
FPGA = "example.com/fpga"


def a_node(name: str, zone: str = "a", **allocatable: str) -> Json:
    node = gpushare_node(name, 64)
    node["metadata"].setdefault("labels", {}).update({HOST: name, ZONE: zone})
    node["status"]["allocatable"] = {**node["status"].get("capacity", {}), **allocatable}
    return node


def a_pod(name: str, on: str | None = None, labels: dict[str, str] | None = None, **spec: Any) -> Json:
    pod = gpushare_pod(name, 1, on=on, **spec)
    pod["metadata"]["labels"] = {"app": "web"} if labels is None else labels
    return pod


def with_resource(pod: Json, **amounts: int) -> Json:
    pod["spec"]["containers"][0]["resources"]["limits"][FPGA] = amounts["fpga"]
    return pod


def near(kind: str, key: str, app: str = "web", **more: Any) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key, **more}
    return {kind: {REQUIRED: [term]}}


def place(pod: Json, *objects: Json) -> Verdict:
    return snapshot(*objects).place(pod)


def snapshot(*objects: Json) -> Snapshot:
    return take_snapshot(objects, policy="binpack", rules=Rules())


def reasons(verdict: Verdict) -> list[tuple[str, Reason, object, object, bool]]:
    return [
        (refusal.node, refusal.reason, refusal.wanted, refusal.had, refusal.never)
        for refusal in verdict.refusals
        if refusal.card is None
    ]


# --- resources and ports ---------------------------------------------------------------------------------------------


def test_another_extended_resource_must_be_free() -> None:
    there = snapshot(a_node("n1", **{FPGA: "2"}), a_node("n2"), with_resource(a_pod("r", on="n1"), fpga=1))
    first = there.place(with_resource(a_pod("p"), fpga=1))
    assert first.grant is not None
    assert first.grant.node == "n1"
    second = there.place(with_resource(a_pod("q"), fpga=1))
    assert reasons(second) == [
        ("n1", Reason.RESOURCE, f"1 {FPGA}", "0", False),
        ("n2", Reason.RESOURCE, f"1 {FPGA}", "0", True),
    ]


def qgpu_node(**allocatable: str) -> Json:
    """Two cards of 16 GiB, and what the kubelet counts of them."""
    node = cards_node("n1", 16, 16, labels=QGPU, capacity={QGPU_MEMORY: "32", QGPU_CORE: "200"})
    node["status"]["allocatable"] = allocatable
    return node


def test_cards_that_the_kubelet_does_not_hand_out_are_refused_by_the_resource() -> None:
    """The kubelet counts none when the agent has crashed."""
    verdict = place(asking({QGPU_MEMORY: 3}), qgpu_node(**{QGPU_MEMORY: "0", QGPU_CORE: "0"}))
    assert reasons(verdict) == [("n1", Reason.RESOURCE, f"3 {QGPU_MEMORY}", "0", True)]


@pytest.mark.parametrize("allocatable", [{}, {QGPU_MEMORY: "32"}], ids=["not named", "named"])
def test_cards_whose_resource_is_not_counted_or_free_are_no_reason(allocatable: dict[str, str]) -> None:
    assert place(asking({QGPU_MEMORY: 3}), qgpu_node(**allocatable)).fits


def test_pods_on_the_node_hold_the_resources_of_its_cards() -> None:
    there = snapshot(qgpu_node(**{QGPU_MEMORY: "8"}))
    assert there.place(asking({QGPU_MEMORY: 6}, "p")).fits
    assert reasons(there.place(asking({QGPU_MEMORY: 6}, "q"))) == [
        ("n1", Reason.RESOURCE, f"6 {QGPU_MEMORY}", "2", False)
    ]


def test_what_the_cards_themselves_lack_is_said_once() -> None:
    verdict = place(asking({QGPU_MEMORY: 40}), qgpu_node(**{QGPU_MEMORY: "32"}))
    assert {refusal.reason for refusal in verdict.refusals} == {Reason.MEMORY}


def test_the_place_that_the_webhook_will_add_must_be_free() -> None:
    pod = {"metadata": {"name": "p", "annotations": {"gpu-fraction": "0.5"}}, "spec": {"containers": [{"name": "c"}]}}
    for places, wanted in (("0", [("n1", Reason.RESOURCE, f"1 {PLACE}", "0", True)]), ("100", [])):
        node = cards_node("n1", 16, labels={"aliquot.dev/serve-kai": "true"})
        node["status"]["allocatable"] = {PLACE: places}
        verdict = take_snapshot([node], policy="binpack", rules=Rules(served=frozenset({"kai"}))).place(pod)
        assert reasons(verdict) == wanted
        assert verdict.fits is not bool(wanted)


def test_a_request_of_0_of_another_resource_needs_none() -> None:
    assert place(with_resource(a_pod("p"), fpga=0), a_node("n1")).fits


def test_a_node_takes_no_more_pods_than_its_limit() -> None:
    verdict = place(a_pod("p"), a_node("n1", pods="1"), a_pod("r", on="n1"))
    assert reasons(verdict) == [("n1", Reason.PODS, 1, 1, False)]
    ended = a_pod("r", on="n1")
    ended["status"] = {"phase": "Succeeded"}
    assert place(a_pod("p"), a_node("n1", pods="1"), ended).fits


@pytest.mark.parametrize(
    ("theirs", "fits"),
    [
        ({"hostPort": 80}, False),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, False),
        ({"hostPort": 80, "protocol": "UDP"}, True),
        ({"hostPort": 81}, True),
        ({"containerPort": 80}, True),
    ],
)
def test_a_host_port_is_used_once(theirs: dict[str, Any], fits: bool) -> None:
    running, pod = a_pod("r", on="n1"), a_pod("p")
    running["spec"]["containers"][0]["ports"] = [theirs]
    pod["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 80}]
    verdict = place(pod, a_node("n1"), running)
    assert verdict.fits is fits
    assert reasons(verdict) == ([] if fits else [("n1", Reason.HOST_PORT, "80/TCP", None, False)])


# --- which Pods are near ---------------------------------------------------------------------------------------------


def test_anti_affinity_keeps_replicas_on_different_nodes() -> None:
    there = snapshot(a_node("n1"), a_node("n2"))
    pods = [a_pod(f"p{at}", affinity=near("podAntiAffinity", HOST)) for at in range(3)]
    verdicts = [there.place(pod) for pod in pods]
    assert sorted(verdict.grant.node for verdict in verdicts if verdict.grant) == ["n1", "n2"]
    text = f"no Pod with app=web in the same {HOST}"
    # Both ways: the third does not want them, and they do not want it.
    assert {entry[2] for entry in reasons(verdicts[2])} == {
        text,
        f"another {HOST}: a Pod there allows none like it near",
    }


def test_anti_affinity_of_a_pod_that_runs_keeps_others_away() -> None:
    running = a_pod("r", on="n1", labels={}, affinity=near("podAntiAffinity", ZONE))
    nodes = [a_node("n1", "a"), a_node("n2", "a"), a_node("n3", "b")]
    verdict = place(a_pod("p"), *nodes, running)
    assert verdict.grant is not None
    assert verdict.grant.node == "n3"
    assert place(a_pod("p", labels={"app": "db"}), nodes[0], running).fits


def test_affinity_follows_another_pod_within_its_zone() -> None:
    nodes = [a_node("n1", "a"), a_node("n2", "b")]
    pod = a_pod("p", labels={}, affinity=near("podAffinity", ZONE, "db"))
    assert reasons(place(pod, *nodes)) == [
        (name, Reason.POD_AFFINITY, f"a Pod with app=db in the same {ZONE}", None, False) for name in ("n1", "n2")
    ]
    verdict = place(pod, *nodes, a_pod("db", on="n2", labels={"app": "db"}))
    assert verdict.grant is not None
    assert verdict.grant.node == "n2"


def test_the_first_pod_of_a_group_that_stays_together_goes_anywhere() -> None:
    there = snapshot(a_node("n1", "a"), a_node("n2", "b"))
    pods = [a_pod(f"p{at}", affinity=near("podAffinity", ZONE)) for at in range(3)]
    assert len({verdict.grant.node for pod in pods if (verdict := there.place(pod)).grant}) == 1


@pytest.mark.parametrize(
    ("more", "fits"),
    [
        ({}, True),  # its own namespace only
        ({"namespaces": ["other"]}, False),
        ({"namespaceSelector": {}}, False),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}}, False),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "third"}}}, True),
    ],
)
def test_terms_are_about_pods_of_their_namespaces(more: dict[str, Any], fits: bool) -> None:
    running = a_pod("r", on="n1")
    running["metadata"]["namespace"] = "other"
    assert place(a_pod("p", affinity=near("podAntiAffinity", HOST, **more)), a_node("n1"), running).fits is fits


def spread_over(key: str, **more: Any) -> list[dict[str, Any]]:
    term = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule"}
    return [{**term, "labelSelector": {"matchLabels": {"app": "web"}}, **more}]


def test_topology_spread_fills_zones_evenly() -> None:
    there = snapshot(a_node("n1", "a"), a_node("n2", "a"), a_node("n3", "b"))
    verdicts = [there.place(a_pod(f"p{at}", topologySpreadConstraints=spread_over(ZONE))) for at in range(4)]
    zones = Counter("b" if verdict.grant.node == "n3" else "a" for verdict in verdicts if verdict.grant)
    assert zones == {"a": 2, "b": 2}


def test_topology_spread_that_may_be_missed_refuses_nothing() -> None:
    soft = spread_over(HOST, whenUnsatisfiable="ScheduleAnyway")
    running = [a_pod(f"r{at}", on="n1") for at in range(3)]
    assert place(a_pod("p", topologySpreadConstraints=soft), a_node("n1"), *running).fits


def test_topology_spread_counts_only_nodes_that_the_pod_selects() -> None:
    nodes = [a_node("n1", "a"), a_node("n2", "b")]
    running = a_pod("r", on="n1")
    one: dict[str, Any] = {"nodeSelector": {ZONE: "a"}}
    assert place(a_pod("p", topologySpreadConstraints=spread_over(ZONE), **one), *nodes, running).fits
    ignore = spread_over(ZONE, nodeAffinityPolicy="Ignore")
    verdict = place(a_pod("p", topologySpreadConstraints=ignore, **one), *nodes, running)
    text = f"at most 1 more Pod with app=web in one {ZONE} than in another"
    assert ("n1", Reason.SPREAD, text, None, False) in reasons(verdict)


def test_a_pod_with_scheduling_gates_is_held_back() -> None:
    verdict = place(a_pod("p", schedulingGates=[{"name": "example.com/quota"}]), a_node("n1"))
    assert verdict.fits is False
    assert verdict.gates == ("example.com/quota",)


# --- any Pods --------------------------------------------------------------------------------------------------------

_apps = st.sampled_from(["web", "db"])
_keys = st.sampled_from([HOST, ZONE, "rack"])
_terms = st.builds(
    lambda app, key, kind: near(kind, key, app), _apps, _keys, st.sampled_from(["podAffinity", "podAntiAffinity"])
)


@st.composite
def pods(draw: st.DrawFn) -> PodTerms:
    spec: dict[str, Any] = {}
    if draw(st.booleans()):
        spec["affinity"] = draw(_terms)
    if draw(st.booleans()):
        spec["topologySpreadConstraints"] = spread_over(draw(_keys), maxSkew=draw(st.integers(1, 2)))
    view = read_pod(with_resource(a_pod("p", labels={"app": draw(_apps)}, **spec), fpga=draw(st.integers(0, 2))))
    assert view is not None
    return terms_of(view, view.spec)


@given(st.lists(st.tuples(st.sampled_from(["n1", "n2", "n3", "gone"]), pods(), st.booleans()), max_size=8), pods())
def test_what_is_known_of_a_kind_of_pod_does_not_depend_on_when_it_was_asked(
    residents: list[tuple[str, PodTerms, bool]], asked: PodTerms
) -> None:
    read = [read_object(node, NodeObject, "node") for node in (a_node("n1", "a"), a_node("n2", "a"), a_node("n3", "b"))]
    nodes = {node.metadata.name: node for node in read if isinstance(node, NodeObject)}
    asked_often, asked_once = Residents(nodes), Residents(nodes)
    for node, terms, ending in residents:
        asked_often.refusals("kind", asked, {})
        asked_often.add(node, terms, ending=ending)
        asked_once.add(node, terms, ending=ending)
    first = asked_often.refusals("kind", asked, {})
    assert first == asked_once.refusals("kind", asked, {})
    assert asked_often.refusals("kind", asked, {}) is first


_JSON = any_json(
    st.none() | st.booleans() | st.integers(-1, 3) | st.sampled_from(["", "web", HOST]),
    [
        "podAffinity", "podAntiAffinity", REQUIRED, "labelSelector", "matchLabels", "matchExpressions", "key",
        "operator", "values", "topologyKey", "namespaces", "namespaceSelector", "maxSkew", "ports", "hostPort",
    ],
)  # fmt: skip


@given(_JSON, _JSON, _JSON)
def test_terms_of_any_json_never_raise(affinity: object, spread: object, gates: object) -> None:
    pod = a_pod("p", affinity=affinity, topologySpreadConstraints=spread, schedulingGates=gates)
    there = snapshot(a_node("n1"), a_pod("r", on="n1", affinity=affinity, topologySpreadConstraints=spread))
    there.place(pod)
