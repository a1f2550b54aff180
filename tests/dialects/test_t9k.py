"""T9k: whole cards, a percentage of one, or the whole node; labels, taints, tolerations, environment."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.dialects import (
    Rules,
    missing_tolerations,
    parse_grant,
    parse_node,
    parse_pod,
    render_env,
    t9k,
    taints,
    tolerations,
)
from aliquot.dialects.t9k import Taints
from aliquot.model.claim import Claim, Slice
from aliquot.model.device import Card
from aliquot.model.grant import ContainerGrant, Grant, Share
from aliquot.model.node import Node, Offer
from aliquot.wording import nodes as words
from kit.values.builders import claim_of as claim

CARDS, PERCENT, NODE = (f"tensorstack.dev/nvidia-gpu{end}" for end in ("", "-percent", "-node"))
WHOLE = Slice(memory_percent=100, exclusive=True)
TAINT = {"key": "sched.tensorstack.dev/xgn-mode", "value": "true", "effect": "NoSchedule"}


def pod(*limits: dict[str, object], **spec: object) -> dict[str, Any]:
    containers = [{"name": f"c{index}", "resources": {"limits": amounts}} for index, amounts in enumerate(limits)]
    return {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": containers, **spec}}


def sentences(manifest: dict[str, Any]) -> list[str]:
    parsed = parse_pod(manifest)
    assert isinstance(parsed, tuple), parsed
    return [problem.sentence() for problem in parsed]


def test_nvidia_gpu_is_that_many_exclusive_cards() -> None:
    parsed = claim(pod({CARDS: 2}))
    assert [(container.slice, container.count) for container in parsed.containers] == [(WHOLE, 2)]
    assert (parsed.offer, parsed.whole_node, parsed.dialect) == (Offer.T9K_EXCLUSIVE, False, "t9k")


@pytest.mark.parametrize("percent", [1, "30", 100])
def test_percent_is_of_one_cards_memory(percent: object) -> None:
    parsed = claim(pod({PERCENT: percent}))
    assert [(container.slice, container.count) for container in parsed.containers] == [
        (Slice(memory_percent=int(str(percent))), 1)
    ]
    assert (parsed.offer, parsed.together) == (Offer.T9K_SHARED, False)


def test_nvidia_gpu_node_is_every_card_of_a_node_for_itself() -> None:
    parsed = claim(pod({NODE: 1}, {}))
    assert [(container.slice, container.count) for container in parsed.containers] == [(WHOLE, None)]
    assert (parsed.offer, parsed.whole_node) == (Offer.T9K_EXCLUSIVE, True)


@pytest.mark.parametrize(
    ("limits", "allowed"),
    [
        ({CARDS: "1.5"}, "at least 1"),
        ({CARDS: -1}, "at least 1"),
        ({PERCENT: 101}, "1 to 100"),
        ({PERCENT: "30%"}, "1 to 100"),
        ({NODE: 2}, "one whole node"),
    ],
)
def test_amounts_out_of_range_are_errors_that_report_the_range(limits: dict[str, object], allowed: str) -> None:
    (said,) = sentences(pod(limits))
    assert allowed in said
    assert said.startswith("spec.containers[0].resources.limits")


def test_only_one_container_of_a_pod_may_ask_for_the_node() -> None:
    (said,) = sentences(pod({NODE: 1}, {NODE: 1}))
    assert said.startswith("spec.containers[1]")
    assert "only one container" in said


@pytest.mark.parametrize(
    "limits",
    [[{CARDS: 1, PERCENT: 30}], [{CARDS: 1}, {PERCENT: 30}], [{NODE: 1}, {CARDS: 1}], [{PERCENT: 1}, {NODE: 1}]],
)
def test_pod_uses_one_t9k_resource(limits: list[dict[str, object]]) -> None:
    (said,) = sentences(pod(*limits))
    assert "one kind of request per Pod" in said
    assert "spec.containers[0]" in said


def test_t9k_requests_must_equal_limits() -> None:
    manifest = pod({CARDS: 2})
    manifest["spec"]["containers"][0]["resources"]["requests"] = {CARDS: 1}
    assert "the same as in limits (2)" in sentences(manifest)[0]


# nodes


def labelled(mode: object = None, accelerator: object = "nvidia-gpu", *present: dict[str, str]) -> dict[str, Any]:
    labels = {} if accelerator is None else {"sched.tensorstack.dev/accelerator": accelerator}
    if mode is not None:
        labels["sched.tensorstack.dev/node-alloc-mode"] = mode
    return {"metadata": {"name": "n1", "labels": labels}, "spec": {"taints": list(present)}}


def change(manifest: dict[str, Any]) -> Taints:
    return taints(manifest["metadata"]["labels"], manifest["spec"]["taints"])


def parsed_node(manifest: dict[str, Any]) -> Node:
    parsed = parse_node(manifest)
    assert isinstance(parsed, Node), parsed
    return parsed


@pytest.mark.parametrize(
    ("mode", "accelerator", "offers"),
    [
        ("xgn", "nvidia-gpu", {Offer.T9K_EXCLUSIVE}),
        ("sgn", "nvidia-gpu", {Offer.T9K_SHARED}),
        (None, "nvidia-gpu", set()),
        ("xgn", "amd-gpu", set()),
        ("sgn", "huawei-npu", set()),
        ("xgn", None, set()),
    ],
)
def test_a_node_offers_by_accelerator_and_mode(mode: object, accelerator: object, offers: set[Offer]) -> None:
    assert parsed_node(labelled(mode, accelerator)).offers == offers


MIX = "aliquot.dev/mix-qgpu-and-whole-cards"


@pytest.mark.parametrize(
    ("mode", "more", "offers"),
    [
        ("xgn", {}, {Offer.QGPU}),
        ("xgn", {MIX: "false"}, {Offer.QGPU}),
        ("xgn", {MIX: "true"}, {Offer.QGPU, Offer.T9K_EXCLUSIVE}),
        ("xgn", {"qgpu-device-enable": "disable"}, {Offer.T9K_EXCLUSIVE}),
        ("sgn", {}, {Offer.QGPU, Offer.T9K_SHARED}),
    ],
)
def test_a_node_of_qgpu_offers_no_whole_cards_unless_its_owner_mixes(
    mode: str, more: dict[str, str], offers: set[Offer]
) -> None:
    """Seed 001."""
    node = labelled(mode)
    node["metadata"]["labels"] |= {"qgpu-device-enable": "enable", **more}
    assert parsed_node(node).offers == offers


def test_where_qgpu_is_not_served_its_label_does_not_keep_whole_cards_away() -> None:
    node = labelled("xgn")
    node["metadata"]["labels"]["qgpu-device-enable"] = "enable"
    parsed = parse_node(node, Rules(served=frozenset({"t9k"})))
    assert isinstance(parsed, Node)
    assert parsed.offers == {Offer.T9K_EXCLUSIVE}


def test_a_value_of_the_label_to_mix_that_is_neither_true_nor_false_is_an_error() -> None:
    node = labelled("xgn")
    node["metadata"]["labels"][MIX] = "yes"
    [problem] = parse_node(node)  # type: ignore[misc]
    assert (problem.field, problem.value) == (f'metadata.labels["{MIX}"]', "yes")


@pytest.mark.parametrize("mode", ["XGN", "", "shared", 1, {}])
def test_an_unknown_mode_is_an_error(mode: object) -> None:
    parsed = parse_node(labelled(mode))
    assert isinstance(parsed, tuple)
    assert parsed[0].field == 'metadata.labels["sched.tensorstack.dev/node-alloc-mode"]'
    assert parsed[0].allowed == ("xgn (exclusive) or sgn (shared)" if isinstance(mode, str) else "text")


@pytest.mark.parametrize(
    ("capacity", "cards"), [({CARDS: "4"}, 4), ({PERCENT: "200"}, 2), ({CARDS: 0, PERCENT: 300}, 3)]
)
def test_cards_are_counted_by_capacity_with_16_gib_assumed_and_said(capacity: dict[str, object], cards: int) -> None:
    node = parsed_node({**labelled("xgn"), "status": {"capacity": capacity}})
    assert [card.memory_mib for card in node.cards] == [16384] * cards
    assert tuple(map(words.note, node.notes)) == ("the memory of the cards is not known: 16 GiB each is assumed",)


# taints


def test_an_xgn_node_should_have_the_taint() -> None:
    assert change(labelled("xgn")) == Taints(add=(TAINT,))


def test_a_node_that_has_the_taint_needs_no_change() -> None:
    assert change(labelled("xgn", "nvidia-gpu", TAINT)) == Taints()


@pytest.mark.parametrize(("mode", "accelerator"), [(None, "nvidia-gpu"), ("sgn", "nvidia-gpu"), ("xgn", "amd-gpu")])
def test_a_node_loses_the_taint_with_the_label(mode: object, accelerator: object) -> None:
    assert change(labelled(mode, accelerator, TAINT)) == Taints(remove=(TAINT,))


def test_other_taints_are_left_alone() -> None:
    others = [{"key": "a", "effect": "NoSchedule"}, {**TAINT, "effect": "NoExecute"}]
    assert change(labelled(None, "nvidia-gpu", *others)) == Taints()


def test_the_taint_with_another_value_is_replaced() -> None:
    wrong = {**TAINT, "value": "yes"}
    assert change(labelled("xgn", "nvidia-gpu", wrong)) == Taints(add=(TAINT,), remove=(wrong,))


def test_a_mode_that_cannot_be_read_changes_nothing() -> None:
    assert change(labelled("oops", "nvidia-gpu", TAINT)) == Taints()


# tolerations

TOLERATION = {**TAINT, "operator": "Equal"}


@pytest.mark.parametrize(
    ("limits", "needed"), [({CARDS: 1}, [TOLERATION]), ({NODE: 1}, [TOLERATION]), ({PERCENT: 30}, [])]
)
def test_pods_that_need_an_xgn_node_need_the_toleration(
    limits: dict[str, object], needed: list[dict[str, str]]
) -> None:
    assert tolerations(claim(pod(limits))) == needed


@pytest.mark.parametrize(
    "present",
    [
        TOLERATION,
        {"operator": "Exists"},
        {"key": TAINT["key"], "operator": "Exists"},
        {"key": TAINT["key"], "value": "true"},
    ],
)
def test_a_toleration_that_is_there_in_any_form_is_not_missing(present: dict[str, str]) -> None:
    manifest = pod({CARDS: 1}, tolerations=[present])
    assert missing_tolerations(manifest, claim(manifest)) == []


@pytest.mark.parametrize(
    "present",
    [
        {**TOLERATION, "value": "false"},
        {**TOLERATION, "effect": "NoExecute"},
        {"key": "a", "operator": "Exists"},
        "nonsense",
    ],
)
def test_a_toleration_of_something_else_does_not_help(present: object) -> None:
    manifest = pod({CARDS: 1}, tolerations=[present])
    assert missing_tolerations(manifest, claim(manifest)) == [TOLERATION]


def test_adding_what_is_missing_leaves_nothing_missing() -> None:
    manifest = pod({CARDS: 1})
    manifest["spec"]["tolerations"] = missing_tolerations(manifest, claim(manifest))
    assert missing_tolerations(manifest, claim(manifest)) == []


# environment

KNOWN = Node("n1", (Card(0, 16384, uuid="GPU-a"), Card(1, 16384, uuid="GPU-b"), Card(2, 16384)))


def grant(parsed: Claim, *shares: Share) -> Grant:
    return Grant(
        "u",
        "n1",
        tuple(
            ContainerGrant(container.name, container.index, container.role, shares) for container in parsed.containers
        ),
    )


def test_exclusive_cards_are_visible_by_uuid() -> None:
    parsed = claim(pod({CARDS: 2}))
    granted = grant(parsed, Share(0, 16384, exclusive=True), Share(1, 16384, exclusive=True))
    assert render_env(parsed, granted, KNOWN, "c0") == {"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b"}


def test_a_card_without_a_uuid_is_visible_by_its_number() -> None:
    parsed = claim(pod({CARDS: 1}))
    assert render_env(parsed, grant(parsed, Share(2, 16384)), KNOWN, "c0") == {"NVIDIA_VISIBLE_DEVICES": "2"}


def test_a_shared_card_comes_with_percent_and_memory() -> None:
    parsed = claim(pod({PERCENT: 30}))
    assert render_env(parsed, grant(parsed, Share(1, 4915, uuid="GPU-b")), KNOWN, "c0") == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-b",
        "T9K_GPU_PERCENT": "30",
        "T9K_GPU_MEMORY": "4915",
    }


def test_a_whole_node_is_visible_as_all_and_only_to_the_container_that_asked() -> None:
    parsed = claim(pod({NODE: 1}, {}))
    bound = {**pod({NODE: 1}, {}), "spec": {**pod({NODE: 1}, {})["spec"], "nodeName": "n1"}}
    granted = parse_grant(bound, parsed, KNOWN)
    assert isinstance(granted, Grant)
    assert render_env(parsed, granted, KNOWN, "c0") == {"NVIDIA_VISIBLE_DEVICES": "all"}
    assert render_env(parsed, granted, KNOWN, "c1") == {}


def test_a_whole_node_pod_holds_all_cards_of_its_node_without_any_annotation() -> None:
    manifest = pod({NODE: 1}, nodeName="n1")
    granted = parse_grant(manifest, claim(manifest), KNOWN)
    assert isinstance(granted, Grant)
    assert granted.whole_node
    assert [share.card for share in granted.containers[0].shares] == [0, 1, 2]
    assert all(share.exclusive for share in granted.containers[0].shares)
    assert parse_grant(manifest, claim(manifest), None) is None


@pytest.mark.parametrize(("factor", "percent"), [(1.0, 100), (1.5, 150), (2.0, 200)])
def test_shared_card_offers_as_many_percent_as_may_be_booked(factor: float, percent: int) -> None:
    card = Card(0, 16384).shared_by(None, factor)
    assert t9k.amounts(card, frozenset({Offer.T9K_SHARED})) == {t9k.PERCENT: percent}
    assert t9k.amounts(card, frozenset({Offer.T9K_EXCLUSIVE})) == {t9k.CARDS: 1}
