"""Our own grant annotation: the same for every dialect, and it knows cards by UUID."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects import native, parse_grant, parse_node, parse_pod, render_env, render_grant, render_inventory
from aliquot.model.claim import AppClass, Claim, Role, Slice
from aliquot.model.device import Card
from aliquot.model.grant import ContainerGrant, Grant, Share
from aliquot.model.node import Node
from aliquot.model.refusal import Invalid
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


def refused_grant(limits: dict[str, Any], cards: list[dict[str, Any]], *, whole_node: bool = False) -> str | None:
    """Why a grant of these cards is none of a Pod with these limits."""
    wire = {"v": 1, "node": "n1", "whole_node": whole_node, "containers": [{"name": "m", "cards": cards}]}
    made = pod(json.dumps(wire))
    made["spec"]["containers"] = [{"name": "m", "resources": {"limits": limits}}]
    claim = parse_pod(made)
    assert isinstance(claim, Claim)
    found = parse_grant(made, claim, UNEQUAL)
    assert found is not None
    return found[0].allowed if isinstance(found, tuple) else None


CARD = {"index": 0, "memory_mib": 16384, "exclusive": True}
PART = {"index": 0, "memory_mib": 3072}
THREE_GIB = {"aliyun.com/gpu-mem": 3}
TEN_PERCENT = {"tensorstack.dev/nvidia-gpu-percent": 10}
WHOLE_NODE = {"tensorstack.dev/nvidia-gpu-node": 1}
TWO_CARDS = {"tensorstack.dev/nvidia-gpu": 2}


@pytest.mark.parametrize(
    ("limits", "cards", "whole_node", "why"),
    [
        (THREE_GIB, [PART], False, None),
        (THREE_GIB, [{**PART, "memory_mib": 3073}], False, "as much memory as m requests"),
        (THREE_GIB, [{**PART, "greedy_milli": 1}], False, "the compute that m requests"),
        (THREE_GIB, [PART], True, "the whole node if the Pod requests one, and only then"),
        (TEN_PERCENT, [{**PART, "memory_mib": 1}], False, None),
        (TEN_PERCENT, [{**PART, "memory_mib": 0}], False, "as much memory as m requests"),
        (TEN_PERCENT, [{**PART, "memory_mib": 2100}], False, None),
        (TEN_PERCENT, [{**PART, "memory_mib": 2101}], False, "as much memory as m requests"),
        (TWO_CARDS, [CARD, {**CARD, "index": 1}], False, None),
        (TWO_CARDS, [CARD, CARD], False, "every card of m once"),
        (TWO_CARDS, [CARD], False, "as many cards as m requests"),
        (WHOLE_NODE, [CARD, {**CARD, "index": 1}], True, None),
        (WHOLE_NODE, [CARD], True, None),
        (WHOLE_NODE, [], True, "as many cards as m requests"),
        (WHOLE_NODE, [CARD], False, "the whole node if the Pod requests one, and only then"),
    ],
)
def test_grant_is_what_the_pod_requests(limits: Any, cards: Any, whole_node: bool, why: str | None) -> None:
    assert refused_grant(limits, cards, whole_node=whole_node) == why


@pytest.mark.parametrize(
    ("cards", "part", "app_class"),
    [
        ([PART], Slice(3072), AppClass.NORMAL),
        ([PART, {**PART, "index": 1}], Slice(3072), AppClass.NORMAL),
        ([PART, {"index": 1, "memory_mib": 1}], Slice(memory_percent=100), AppClass.NORMAL),
        ([{**PART, "greedy_milli": 200}], Slice(3072, greedy_milli=200), AppClass.OFFLINE),
        ([{**PART, "core_milli": 200}], Slice(3072, core_milli=200), AppClass.NORMAL),
    ],
)
def test_claim_of_a_grant_whose_request_cannot_be_read(cards: Any, part: Slice, app_class: AppClass) -> None:
    wire = {"v": 1, "node": "n1", "containers": [{"name": "m", "cards": cards}, {"name": "i", "cards": [PART]}]}
    claim = native.claim_of_grant({GRANT: json.dumps(wire)}, "u", "team", "p", {"i": Role.INIT})
    assert claim is not None
    first, second = claim.containers
    assert (first.slice, first.count, first.role, claim.app_class) == (part, len(cards), Role.MAIN, app_class)
    assert (second.name, second.index, second.role, claim.whole_node) == ("i", 1, Role.INIT, False)
    empty = {**wire, "containers": [{"name": "m", "cards": cards}, {"name": "i", "cards": []}]}
    assert native.claim_of_grant({GRANT: json.dumps(empty)}, "u", "team", "p", {}) is None
    assert native.claim_of_grant({}, "u", "team", "p", {}) is None


def test_claim_of_a_grant_of_a_whole_node_has_every_card() -> None:
    wire = {"v": 1, "node": "n1", "whole_node": True, "containers": [{"name": "m", "cards": [CARD]}]}
    claim = native.claim_of_grant({GRANT: json.dumps(wire)}, "u", "team", "p", {})
    assert claim is not None
    assert (claim.whole_node, claim.containers[0].count) == (True, None)


@pytest.mark.parametrize(
    ("cards", "value", "what"),
    [
        ([{"index": 1}, {"index": 0}, {"index": 0}], 0, "a unique index for every card"),
        ([{"index": 0, "uuid": "a"}, {"index": 1, "uuid": "b"}, {"index": 2, "uuid": "b"}], "b", "a unique uuid"),
    ],
)
def test_card_that_an_inventory_has_twice_is_named(cards: Any, value: object, what: str) -> None:
    problems: list[Invalid] = []
    text = json.dumps({"v": 1, "cards": [{"memory_mib": 1, **card} for card in cards]})
    assert native.parse_inventory({native.INVENTORY: text}, problems) is None
    assert [(problem.value, what in problem.allowed) for problem in problems] == [(value, True)]


@pytest.mark.parametrize(
    ("value", "another"),
    [
        (None, False),
        (7, False),
        ("x", False),
        ('{"v": 1}', False),
        ('{"v": 2}', True),
        ('{"v": 0}', True),
        ("{}", False),
    ],
)
def test_grant_of_another_version(value: object, another: bool) -> None:
    assert native.is_of_another_version({GRANT: value}) is another


def test_inventory_that_is_no_text_is_refused() -> None:
    problems: list[Invalid] = []
    assert native.parse_inventory({native.INVENTORY: 7}, problems) is None
    assert [problem.allowed for problem in problems] == ["JSON text"]
