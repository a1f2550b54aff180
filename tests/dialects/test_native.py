"""Our own grant annotation: the same for every dialect, and it knows cards by UUID."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects import parse_grant, parse_node, parse_pod, render_env, render_grant, render_inventory
from aliquot.model.claim import Claim, Role
from aliquot.model.device import Card
from aliquot.model.grant import ContainerGrant, Grant, Share
from aliquot.model.node import Node
from kit.values.manifests import asking

GRANT = "aliquot.dev/grant"
CORE, MEM = "tke.cloud.tencent.com/qgpu-core", "tke.cloud.tencent.com/qgpu-memory"
NODE = Node("n1", (Card(0, 16384, "GPU-a"), Card(1, 16384, "GPU-b")))


def pod(grant: object = None, node_name: object = "n1") -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": {CORE: 30, MEM: 5}}}
    return {
        "metadata": {"name": "p", "uid": "u", "annotations": {} if grant is None else {GRANT: grant}},
        "spec": {"nodeName": node_name, "containers": [container]},
    }


def the_claim() -> Claim:
    parsed = parse_pod(pod())
    assert isinstance(parsed, Claim)
    return parsed


CLAIM = the_claim()
ON_CARD_1 = Grant("u", "n1", (ContainerGrant("main", 0, Role.MAIN, (Share(1, 5120, core_milli=300, uuid="GPU-b"),)),))
WRITTEN = (
    '{"v":1,"node":"n1","containers":[{"name":"main",'
    '"cards":[{"index":1,"uuid":"GPU-b","memory_mib":5120,"core_milli":300}]}]}'
)


def test_a_grant_is_compact_versioned_json() -> None:
    assert render_grant(CLAIM, ON_CARD_1, NODE, 0) == {GRANT: WRITTEN}


def test_a_grant_is_read_back() -> None:
    assert parse_grant(pod(WRITTEN), CLAIM, NODE) == ON_CARD_1


def test_grant_follows_card_uuid_when_index_changes() -> None:
    swapped = Node("n1", (Card(0, 16384, "GPU-b"), Card(1, 16384, "GPU-a")))
    parsed = parse_grant(pod(WRITTEN), CLAIM, swapped)
    assert isinstance(parsed, Grant)
    assert parsed.containers[0].shares[0].card == 0


@pytest.mark.parametrize("node", [None, Node("n1"), Node("n1", (Card(1, 16384),))])
def test_grant_on_missing_card_keeps_index(node: Node | None) -> None:
    assert parse_grant(pod(WRITTEN), CLAIM, node) == ON_CARD_1


def test_the_cards_are_visible_to_the_container_by_uuid() -> None:
    assert render_env(CLAIM, ON_CARD_1, NODE, "main") == {"NVIDIA_VISIBLE_DEVICES": "GPU-b"}
    assert render_env(CLAIM, ON_CARD_1, NODE, "other") == {}


def test_grant_of_unbound_pod_is_none() -> None:
    assert parse_grant(pod(WRITTEN, node_name=None), CLAIM, NODE) is None
    assert parse_grant("no Pod", CLAIM, NODE) is None


def test_grant_without_annotation_is_none() -> None:
    assert parse_grant(pod(), CLAIM, NODE) is None


def changed(**parts: object) -> str:
    return json.dumps({**json.loads(WRITTEN), **parts})


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (changed(node="n2"), "this one is stale"),
        (changed(v=9), "version 9"),
        (changed(containers=[]), "one entry for each container that requests a GPU: main"),
        (changed(containers=[{"name": "x", "cards": []}]), "one entry for each container that requests a GPU: main"),
        (changed(containers=json.loads(WRITTEN)["containers"] * 2), "one entry for each container"),
        (changed(containers=[{"name": "main", "cards": [{"index": 0, "memory_mib": -1}]}]), "memory_mib"),
        (changed(containers=[{"name": "main", "cards": [{"index": 10**6, "memory_mib": 1}]}]), "index"),
        ("nonsense", "what aliquot writes there"),
        (5, "text"),
    ],
)
def test_a_grant_that_cannot_be_read_is_an_error(written: object, said: str) -> None:
    parsed = parse_grant(pod(written), CLAIM, NODE)
    assert isinstance(parsed, tuple)
    assert parsed[0].field == f'metadata.annotations["{GRANT}"]'
    assert said in parsed[0].sentence()


@pytest.mark.parametrize(
    ("cards", "message"),
    [
        ([], "as many cards"),
        ([{"index": 0, "memory_mib": 3072}, {"index": 1, "memory_mib": 3072}], "as many cards"),
        ([{"index": 0, "memory_mib": 3071}], "as much memory"),
        ([{"index": 0, "memory_mib": 3072, "core_milli": 10}], "the compute"),
        ([{"index": 0, "memory_mib": 3072, "exclusive": True}], "the compute"),
    ],
)
def test_grant_that_differs_from_request_is_refused(cards: list[object], message: str) -> None:
    """A user who can write annotations could otherwise use a card and book nothing of it."""
    wire = {"v": 1, "node": "n1", "containers": [{"name": "main", "cards": cards}]}
    pod = {
        "metadata": {"name": "p", "annotations": {"aliquot.dev/grant": json.dumps(wire)}},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "main", "resources": {"limits": {"aliyun.com/gpu-mem": 3}}}],
        },
    }
    claim = parse_pod(pod)
    assert isinstance(claim, Claim)
    refused = parse_grant(pod, claim, None)
    assert isinstance(refused, tuple)
    assert message in refused[0].sentence()


def percent_pod(percent: int, memory_mib: int) -> dict[str, Any]:
    wire = {"v": 1, "node": "n1", "containers": [{"name": "m", "cards": [{"index": 0, "memory_mib": memory_mib}]}]}
    return {
        "metadata": {"name": "p", "annotations": {GRANT: json.dumps(wire)}},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "m", "resources": {"limits": {"tensorstack.dev/nvidia-gpu-percent": percent}}}],
        },
    }


def percent_granted(memory_mib: int, node: Node | None) -> object:
    pod = percent_pod(30, memory_mib)
    claim = parse_pod(pod)
    assert isinstance(claim, Claim)
    return parse_grant(pod, claim, node)


UNEQUAL = Node("n1", (Card(0, 10_000), Card(1, 20_000)))


def test_percentage_grant_is_bounded_by_largest_card() -> None:
    """A user who can patch the Pod could otherwise raise its limit."""
    refused = percent_granted(6301, UNEQUAL)
    assert isinstance(refused, tuple)
    assert "as much memory as m requests" in refused[0].sentence()


@pytest.mark.parametrize("memory_mib", [1, 3000, 6000, 6300])
def test_percentage_grant_tolerates_driver_update(memory_mib: int) -> None:
    assert isinstance(percent_granted(memory_mib, UNEQUAL), Grant)


@pytest.mark.parametrize("node", [None, Node("n1")])
def test_percentage_grant_is_accepted_without_known_cards(node: Node | None) -> None:
    assert isinstance(percent_granted(6301, node), Grant)


def test_whole_node_grant_needs_whole_node_request() -> None:
    wire = {
        "v": 1,
        "node": "n1",
        "whole_node": True,
        "containers": [{"name": "m", "cards": [{"index": 0, "memory_mib": 1}]}],
    }
    pod = {
        "metadata": {"name": "p", "annotations": {"aliquot.dev/grant": json.dumps(wire)}},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "m", "resources": {"limits": {"tensorstack.dev/nvidia-gpu-percent": 30}}}],
        },
    }
    claim = parse_pod(pod)
    assert isinstance(claim, Claim)
    assert isinstance(parse_grant(pod, claim, None), tuple)


# --- from release to release -----------------------------------------------------------------------------------------

_UNKNOWN = st.dictionaries(
    st.text(min_size=1, max_size=8).map(lambda key: f"x-{key}"),
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8), st.lists, max_leaves=4),
    max_size=3,
)


def _with_more(value: object, draw: Callable[[], dict[str, Any]]) -> object:
    """The same JSON with fields that a later release may add, in whatever object of it."""
    if isinstance(value, dict):
        return {**{key: _with_more(inner, draw) for key, inner in value.items()}, **draw()}
    return [_with_more(inner, draw) for inner in value] if isinstance(value, list) else value


@given(st.data())
def test_unknown_grant_fields_are_ignored(data: st.DataObject) -> None:
    later = json.dumps(_with_more(json.loads(WRITTEN), lambda: data.draw(_UNKNOWN)))
    assert parse_grant(pod(later), CLAIM, NODE) == ON_CARD_1


@given(st.data())
def test_unknown_inventory_fields_are_ignored(data: st.DataObject) -> None:
    (written,) = render_inventory(NODE.cards).values()
    later = json.dumps(_with_more(json.loads(written), lambda: data.draw(_UNKNOWN)))
    node = {"metadata": {"name": "n1", "annotations": {"aliquot.dev/inventory": later}}}
    parsed = parse_node(node)
    assert isinstance(parsed, Node)
    assert parsed.cards == NODE.cards


@pytest.mark.parametrize(
    "later",
    [
        changed(v=2),
        changed(v=2, containers={"main": {"GPU-b": 5120}}),
        '{"v":2,"whole":"other"}',
    ],
)
def test_grant_of_another_version_is_refused_with_advice(later: str) -> None:
    refused = parse_grant(pod(later), CLAIM, NODE)
    assert isinstance(refused, tuple)
    (problem,) = refused
    assert "version 2 is from another release of aliquot: use that release" in problem.allowed


def test_gpushare_grant_is_read_if_ours_is_of_another_version() -> None:
    said = asking({"aliyun.com/gpu-mem": 4}, on="n1", annotations={GRANT: '{"v":2}', "ALIYUN_COM_GPU_MEM_IDX": "1"})
    claim = parse_pod(said)
    assert isinstance(claim, Claim)
    parsed = parse_grant(said, claim, NODE)
    assert isinstance(parsed, Grant)
    assert sorted(parsed.usage()) == [1]


def test_gpushare_grant_is_not_read_if_ours_is_invalid() -> None:
    said = asking({"aliyun.com/gpu-mem": 4}, on="n1", annotations={GRANT: "{", "ALIYUN_COM_GPU_MEM_IDX": "1"})
    claim = parse_pod(said)
    assert isinstance(claim, Claim)
    assert isinstance(parse_grant(said, claim, NODE), tuple)
