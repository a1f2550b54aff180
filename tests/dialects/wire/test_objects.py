"""What the API server sends, read by typed fields, says what the same JSON says read as any JSON."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from aliquot.dialects import (
    DEFAULT_RULES,
    MemoryUnit,
    NodeReader,
    PodReader,
    QgpuRules,
    Rules,
    advertised_gpushare_unit,
    parse_grant,
    parse_node,
    parse_pod,
)
from aliquot.dialects.pods import read_pod, with_requests
from aliquot.dialects.wire.objectreading import read_object
from aliquot.dialects.wire.objects import ConfigMapObject, NodeObject, PodObject
from aliquot.dialects.wire.views import pod_names
from aliquot.model.claim import Claim
from aliquot.model.node import Node
from aliquot.model.refusal import Invalid
from kit.clusters.watchobjects import as_node, as_pod
from kit.values.manifests import (
    APP_CLASS,
    COUNT,
    MEM,
    QGPU_MEMORY,
    T9K_CARDS,
    T9K_NODE,
    XGN,
    Json,
    a_container,
    a_node,
    a_pod,
    asking,
    gpushare_pod,
)
from kit.values.strategies import mutated, nodes, pods

LATER = Rules(qgpu=QgpuRules.Y2026, gpushare_unit=MemoryUnit.MIB)


rules = st.sampled_from([DEFAULT_RULES, LATER])


@given(pods(), rules)
def test_pod_struct_has_claim_of_json(pod: Json, by: Rules) -> None:
    asked = PodReader(by).read(as_pod(pod))
    assert asked.claim == parse_pod(pod, by)
    if isinstance(asked.claim, Claim):
        assert (asked.cpu_milli, asked.memory_mib) == (asked.claim.cpu_milli, asked.claim.memory_mib)
    else:
        view = read_pod(pod)
        assert view is not None
        view = with_requests(view)
        assert (asked.cpu_milli, asked.memory_mib) == (view.cpu_milli, view.memory_mib)


@given(pods())
def test_pod_struct_has_phase_and_owner_of_json(pod: Json) -> None:
    typed = as_pod(pod)
    owners = pod["metadata"].get("ownerReferences") or ()
    assert typed.daemon == any(owner["kind"] == "DaemonSet" and owner.get("controller") for owner in owners)
    assert typed.finished == ((pod["status"] or {}).get("phase") in ("Succeeded", "Failed"))


@given(nodes(), rules)
def test_node_struct_equals_json_node(node: Json, by: Rules) -> None:
    assert parse_node(as_node(node), by) == parse_node(node, by)
    assert NodeReader(by).read(as_node(node)) == parse_node(node, by)
    assert advertised_gpushare_unit([as_node(node)]) == advertised_gpushare_unit([node])


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ([], "node: a list of 0 is not allowed: a Node object"),
        ({}, "metadata is missing: every Kubernetes object has it"),
        ({"metadata": {"name": 3}}, "metadata.name: 3 is not allowed: text"),
        ({"metadata": {"labels": {"a": "x", "b.c": 3}}}, 'metadata.labels["b.c"]: 3 is not allowed: text'),
        ({"metadata": {"annotations": {4: "x"}}}, "node: a mapping of 1 is not allowed: text"),
        ({"metadata": {}, "spec": {"taints": ["x"]}}, 'spec.taints[0]: "x" is not allowed: a mapping'),
        ({"metadata": {}, "spec": {"unschedulable": "yes"}}, 'spec.unschedulable: "yes" is not allowed: true or false'),
        ({"metadata": {}, "status": {"conditions": {}}}, "status.conditions: a mapping of 0 is not allowed: a list"),
    ],
)
def test_read_object_names_the_field_of_a_wrong_type(value: object, sentence: str) -> None:
    read = read_object(value, NodeObject, "node")
    assert isinstance(read, Invalid)
    assert read.sentence() == sentence


@given(mutated(pods() | nodes()))
def test_read_object_never_raises(value: object) -> None:
    for kind in (PodObject, NodeObject, ConfigMapObject):
        read = read_object(value, kind, "object")
        assert not isinstance(read, Invalid) or read.sentence()


GRANTS: list[dict[str, str]] = [
    {},
    {"ALIYUN_COM_GPU_MEM_IDX": "1"},
    {"ALIYUN_COM_GPU_MEM_IDX": "x"},
    {"scheduler.framework.gpushare.allocation": '{"0":{"0":1}}'},
    {"scheduler.framework.gpushare.allocation": "broken"},
    {"aliquot.dev/grant": '{"v":1,"node":"n1","containers":[{"name":"main","cards":[{"index":0,"memory_mib":1024}]}]}'},
    {"aliquot.dev/grant": '{"v":2,"node":"n1","containers":[]}'},
]


@pytest.mark.parametrize("annotations", GRANTS, ids=str)
@pytest.mark.parametrize("on", [None, "n1"])
@pytest.mark.parametrize("limits", [{MEM: 1}, {T9K_NODE: 1}, {QGPU_MEMORY: 1}], ids=str)
def test_grant_struct_equals_json_grant(annotations: dict[str, str], on: str | None, limits: Json) -> None:
    pod = asking(limits, annotations=annotations, on=on)
    claim, node = parse_pod(pod), parse_node(a_node("n1", 16, 16, labels=XGN))
    assert isinstance(claim, Claim)
    assert isinstance(node, Node)
    for known in (node, None):
        assert parse_grant(as_pod(pod), claim, known) == parse_grant(pod, claim, known)


# --- each kind is read once ------------------------------------------------------------------------------------------


def test_pods_of_one_template_share_cached_claim() -> None:
    reader = PodReader(DEFAULT_RULES)
    first, second = (as_pod(gpushare_pod(name, 4, owner=f"ReplicaSet/{name}-rs")) for name in ("a", "b"))
    claims = [reader.read(pod).claim for pod in (first, second)]
    assert all(isinstance(claim, Claim) for claim in claims)
    assert [(claim.name, claim.uid, claim.owner) for claim in claims if isinstance(claim, Claim)] == [
        ("a", "default/a", "ReplicaSet/default/a-rs"),
        ("b", "default/b", "ReplicaSet/default/b-rs"),
    ]
    assert len(reader._known) == 1


def _set(path: str, value: object) -> Callable[[Json], None]:
    def change(pod: Json) -> None:
        *way, last = path.split("|")
        for step in way:
            pod = pod[int(step)] if isinstance(pod, list) else pod.setdefault(step, {})
        pod[last] = value

    return change


CHANGES = {
    "a label that spreads it": _set(f"metadata|labels|{COUNT}", "2"),
    "an annotation that spreads it": _set(f"metadata|annotations|{COUNT}", "2"),
    "a class": _set(f"metadata|annotations|{APP_CLASS}", "online"),
    "a limit": _set(f"spec|containers|0|resources|limits|{MEM}", "6"),
    "a request": _set("spec|containers|0|resources|requests|cpu", "2"),
    "another dialect": _set(f"spec|containers|0|resources|limits|{T9K_CARDS}", "1"),
    "a container's name": _set("spec|containers|0|name", "other"),
    "an init container": _set("spec|initContainers", [a_container("init", {MEM: 8})]),
    "a sidecar": _set("spec|initContainers", [{**a_container("init", {MEM: 8}), "restartPolicy": "Always"}]),
    "its own resources": _set("spec|resources", {"requests": {"cpu": "7"}}),
    "its own limits": _set("spec|resources", {"limits": {"cpu": "7"}}),
    "its overhead": _set("spec|overhead", {"memory": "64Mi"}),
    "a second container": _set("spec|containers", [a_container("main", {MEM: 4}), a_container("two", {MEM: 4})]),
    "its containers in another order": _set("spec|containers", [a_container("two"), a_container("main", {MEM: 4})]),
    "its namespace": _set("metadata|namespace", "elsewhere"),
    "its uid": _set("metadata|uid", "another"),
    "its owner": _set("metadata|ownerReferences", [{"kind": "Job", "name": "j", "controller": True}]),
    "the words of a broken rule": _set(f"spec|containers|0|resources|limits|{MEM}", "5Gi"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_reader_cache_distinguishes_pods_by(change: Callable[[Json], None]) -> None:
    pod = a_pod("p", a_container("main", {MEM: "4"}))
    changed = copy.deepcopy(pod)
    change(changed)
    for order in ((pod, changed), (changed, pod)):
        reader = PodReader(DEFAULT_RULES)
        for manifest in (*order, *order):
            assert reader.read(as_pod(manifest)).claim == parse_pod(manifest)


@settings(max_examples=40)
@given(st.lists(pods(), min_size=2, max_size=6), rules)
def test_reader_cache_does_not_change_pods(many: list[Json], by: Rules) -> None:
    reader = PodReader(by)
    for pod in (*many, *many):
        assert reader.read(as_pod(pod)) == PodReader(by).read(as_pod(pod))


@settings(max_examples=40)
@given(st.lists(nodes(), min_size=2, max_size=6), rules)
def test_reader_cache_does_not_change_nodes(many: list[Json], by: Rules) -> None:
    reader = NodeReader(by)
    for node in (*many, *many):
        assert reader.read(as_node(node)) == parse_node(node, by)


def test_reader_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PodReader, "_MOST", 10)
    monkeypatch.setattr(NodeReader, "_MOST", 10)
    reader, node_reader = PodReader(DEFAULT_RULES), NodeReader(DEFAULT_RULES)
    for memory in range(1, 100):
        assert isinstance(reader.read(as_pod(gpushare_pod("p", memory))).claim, Claim)
        assert isinstance(node_reader.read(as_node(a_node("n", capacity={MEM: str(memory)}))), Node)
    assert len(reader._known) <= 10
    assert len(node_reader._known) <= 10


def test_reader_does_not_cache_long_pods() -> None:
    reader = PodReader(DEFAULT_RULES)
    pod = gpushare_pod("p", 1)
    pod["metadata"]["annotations"] = {"aliyun.com/gpu-count": "x" * 100_000}
    assert isinstance(reader.read(as_pod(pod)).claim, tuple)
    assert reader._known == {}


def test_similar_nodes_keep_their_names() -> None:
    reader = NodeReader(DEFAULT_RULES)
    first, second = (reader.read(as_node(a_node(name, capacity={MEM: "16"}))) for name in ("a", "b"))
    assert isinstance(first, Node)
    assert second == replace(first, name="b")
    assert first.name == "a"


def test_similar_nodes_keep_the_cards_of_their_inventories() -> None:
    reader = NodeReader(DEFAULT_RULES)
    for name, sizes in (("a", (16, 24)), ("b", (24, 16))):
        node = a_node(name, *sizes, labels={"qgpu-device-enable": "enable"}, capacity={"cpu": "8"})
        read = reader.read(as_node(node))
        assert read == parse_node(node)
        assert isinstance(read, Node)
        assert [(card.memory_mib, card.max_slices) for card in read.cards] == [(gib * 1024, gib // 4) for gib in sizes]
    assert len(reader._known) == 1, "the rest of the node is read once"


def test_pod_without_name_uses_available_fields() -> None:
    pod = as_pod({"metadata": {"generateName": "web-"}})
    assert pod_names(pod) == ("default/web-", "default", "web-", None)


REFUSED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}


@pytest.mark.parametrize(
    ("conditions", "refused"),
    [
        (None, False),
        ([], False),
        ([REFUSED], True),
        ([{"type": "Ready", "status": "False", "reason": "Unschedulable"}], False),
        ([{**REFUSED, "reason": "SchedulingGated"}], False),
        ([{"type": "PodScheduled", "status": "True"}], False),
    ],
    ids=["no conditions", "none", "unschedulable", "not ready", "gated", "scheduled"],
)
def test_pod_is_refused_by_condition_unschedulable(conditions: list[Json] | None, refused: bool) -> None:
    assert as_pod(a_pod(status={"conditions": conditions})).refused is refused


def test_pod_whose_resize_was_refused_asks_for_what_its_containers_have() -> None:
    """As kube-scheduler counts: init containers that end cannot be resized."""

    def has(name: str, cpu: str) -> Json:
        return {"name": name, "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}

    asked = {"cpu": "64", MEM: 1}
    names = ("main", "silent", "side")
    main, silent, side = (a_container(name, asked if name == "main" else {"cpu": "64"}) for name in names)
    init = a_container("init", {"cpu": "2500m"})
    status = {
        "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}],
        "containerStatuses": [has("main", "1"), {"name": "silent"}],
        "initContainerStatuses": [has("side", "500m"), has("init", "64")],
    }
    pod = a_pod("p", main, silent, init=[{**side, "restartPolicy": "Always"}, init], status=status, on="n1")
    read = PodReader(DEFAULT_RULES).read(as_pod(pod))
    assert (read.cpu_milli, read.memory_mib) == (3000, 2048)
    assert isinstance(read.claim, Claim)
    assert (read.claim.cpu_milli, read.claim.memory_mib) == (3000, 2048)
