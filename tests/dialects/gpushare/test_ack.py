"""What Alibaba's ACK writes today: compute beside gpu-mem, whole cards, and the labels of its nodes."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.dialects import NodeReader, Rules, parse_node, parse_pod
from aliquot.dialects.wire.objectreading import read_object
from aliquot.dialects.wire.objects import NodeObject
from aliquot.model.claim import Claim, Slice
from aliquot.model.node import Isolation, Node, Offer, Order
from aliquot.wording import nodes as words
from kit.values.manifests import COUNT, MEM, a_container, a_node, a_pod, asking

CORE = "aliyun.com/gpu-core.percentage"
MODE, PLACEMENT = "ack.node.gpu.schedule", "ack.node.gpu.placement"
SHARED = {Offer.GPUSHARE, Offer.GPUSHARE_WHOLE}
WHOLE = Slice(memory_percent=100, exclusive=True)
Json = dict[str, Any]


def claim_of(pod: Json) -> Claim:
    claim = parse_pod(pod)
    assert isinstance(claim, Claim), claim
    return claim


def refusal_of(pod: Json) -> str:
    found = parse_pod(pod)
    assert isinstance(found, tuple), found
    return "; ".join(invalid.sentence() for invalid in found)


def read(labels: dict[str, str]) -> Node:
    """By both readers, which must agree."""
    found = a_node("n1", 16, 16, labels=labels)
    node, obj = parse_node(found), read_object(found, NodeObject, "node")
    assert isinstance(node, Node), node
    assert isinstance(obj, NodeObject)
    assert NodeReader(Rules()).read(obj) == node
    return node


def test_compute_beside_memory_needs_a_node_that_offers_it() -> None:
    claim = claim_of(asking({MEM: 4, CORE: 30}))
    assert claim.containers[0].slice == Slice(4096, core_milli=300)
    assert claim.offer is Offer.GPUSHARE_CORE
    assert claim_of(asking({MEM: 4})).offer is Offer.GPUSHARE


def test_compute_is_spread_over_the_cards_as_memory_is() -> None:
    claim = claim_of(asking({MEM: 8, CORE: 60}, labels={COUNT: "2"}))
    assert (claim.containers[0].slice, claim.containers[0].count) == (Slice(4096, core_milli=300), 2)
    assert claim_of(asking({MEM: 8, CORE: 200}, labels={COUNT: "2"})).containers[0].slice.core_milli == 1000


@pytest.mark.parametrize(
    ("limits", "labels", "said"),
    [
        ({CORE: 30}, {}, f'limits["{MEM}"] is missing: required with {CORE}'),
        ({MEM: 4, CORE: 101}, {}, "5 to 100 percent of compute, in steps of 5"),
        ({MEM: 4, CORE: "0.5"}, {}, "5 to 100 percent of compute"),
        ({MEM: 4, CORE: 33}, {}, "in steps of 5"),
        ({MEM: 4, CORE: 3}, {}, "in steps of 5"),
        ({MEM: 4, CORE: 25}, {COUNT: "2"}, "a multiple of 2"),
        ({"aliyun.com/gpu-core.percent": 30, MEM: 4}, {}, f"did you mean {CORE}?"),
        ({COUNT: "0.5"}, {}, "a whole number of cards"),
        ({COUNT: 2}, {COUNT: "2"}, f'limits["{MEM}"]'),
    ],
)
def test_broken_rule_is_refused_with_its_field(limits: Json, labels: dict[str, str], said: str) -> None:
    assert said in refusal_of(asking(limits, labels=labels))


def test_gpu_count_alone_is_whole_cards() -> None:
    claim = claim_of(a_pod("p", a_container("a", {COUNT: 2}), a_container("b", {COUNT: 1})))
    assert [(part.slice, part.count) for part in claim.containers] == [(WHOLE, 2), (WHOLE, 1)]
    assert (claim.offer, claim.together) == (Offer.GPUSHARE_WHOLE, False)


def test_whole_cards_need_a_node_whose_agent_reports_its_cards() -> None:
    """The peer's plugin would give such a Pod any card, with other Pods on it."""
    bare = {"metadata": {"name": "n1"}, "status": {"capacity": {MEM: "32", COUNT: "2"}}}
    node = parse_node(bare)
    assert isinstance(node, Node)
    assert (len(node.cards), node.offers) == (2, frozenset({Offer.GPUSHARE}))
    assert Offer.GPUSHARE_WHOLE in read({"gpushare": "true"}).offers


@pytest.mark.parametrize(
    ("labels", "offers", "isolation"),
    [
        ({MODE: "cgpu"}, SHARED, Isolation.BEST_EFFORT),
        ({"cgpu": "true"}, SHARED, Isolation.BEST_EFFORT),
        ({"cgpu": "false"}, set(), Isolation.BEST_EFFORT),
        ({MODE: "share"}, SHARED, Isolation.BEST_EFFORT),
        ({MODE: "mps"}, SHARED, Isolation.BEST_EFFORT),
        ({MODE: "core_mem"}, SHARED | {Offer.GPUSHARE_CORE}, Isolation.FIXED_SHARE),
        ({MODE: "default"}, set(), Isolation.BEST_EFFORT),
        ({MODE: "topology"}, set(), Isolation.BEST_EFFORT),
        ({MODE: "core_mem", "tke.cloud.tencent.com/qgpu-schedule-policy": "bs"}, None, Isolation.BURST_SHARE),
    ],
)
def test_label_of_ack_says_how_cards_are_shared(
    labels: dict[str, str], offers: set[Offer] | None, isolation: Isolation
) -> None:
    node = read(labels)
    assert offers is None or node.offers == offers
    assert node.isolation is isolation


@pytest.mark.parametrize("mode", ["default", "topology"])
def test_node_that_ack_does_not_share_offers_nothing_whatever_else_it_says(mode: str) -> None:
    assert not read({MODE: mode, "gpushare": "true"}).offers
    left = {MEM: "32", COUNT: "2"}
    node = parse_node({"metadata": {"name": "n1", "labels": {MODE: mode}}, "status": {"capacity": left}})
    assert isinstance(node, Node)
    assert not node.offers


@pytest.mark.parametrize(("label", "order"), [("spread", Order.SPREAD), ("binpack", Order.BINPACK), (None, None)])
def test_label_of_ack_says_in_which_order_cards_are_taken(label: str | None, order: Order | None) -> None:
    assert read({MODE: "cgpu", **({} if label is None else {PLACEMENT: label})}).card_order is order


def test_unknown_placement_label_of_ack_is_refused() -> None:
    found = parse_node(a_node("n1", 16, labels={MODE: "cgpu", PLACEMENT: "some"}))
    assert isinstance(found, tuple)
    assert "binpack or" in found[0].sentence()


def test_unknown_schedule_label_of_ack_is_noted_and_the_node_serves_on() -> None:
    node = read({MODE: "mig-x", "gpushare": "true"})
    assert Offer.GPUSHARE in node.offers
    (note,) = map(words.note, node.notes)
    assert "mig-x" in note
    assert "cgpu, core_mem, share, mps (shared)" in note
    assert read({MODE: "mig-x"}).offers == set()
    assert not read({MODE: "cgpu"}).notes
