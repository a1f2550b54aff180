"""gpu-mem in MiB on nodes of any size: above what the kubelet handles as devices, Pods need a place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects import (
    ENABLED_BY,
    MemoryUnit,
    NodeReader,
    Rules,
    advertised_gpushare_unit,
    as_admitted,
    parse_node,
    parse_pod,
    render_pod,
)
from aliquot.dialects.elastic import OVERSUBSCRIBE, POOL
from aliquot.dialects.gpushare import CORE, COUNT, MEMORY
from aliquot.dialects.gpushare.pods import lacks_place
from aliquot.dialects.native import AGENT, AWAY, COUNTED, MOST_DEVICES, PLACE, render_inventory
from aliquot.dialects.registry import places
from aliquot.dialects.rules import EVERY
from aliquot.dialects.wire.objectreading import read_object
from aliquot.dialects.wire.objects import NodeObject
from aliquot.model.claim import Claim
from aliquot.model.device import Card
from aliquot.model.node import Node, Offer
from aliquot.wording import nodes as words
from kit.values.manifests import a_container, a_pod

Json = dict[str, Any]
GIB, MIB = Rules(), Rules(gpushare_unit=MemoryUnit.MIB)
BIG = tuple(Card(at, 81_920, f"GPU-{at}") for at in range(8))  # 655,360 MiB
SMALL = (Card(0, 16_384, "GPU-0"), Card(1, 16_384, "GPU-1"))
SHARED, DEVICES = {Offer.GPUSHARE, Offer.GPUSHARE_WHOLE}, {Offer.GPUSHARE_DEVICES}
LABELS = {"gpushare": "true"}


def claim_of(pod: Json, rules: Rules = MIB) -> Claim:
    claim = parse_pod(pod, rules)
    assert isinstance(claim, Claim), claim
    return claim


def offer_of(*containers: Json, rules: Rules = MIB) -> Offer:
    named = [a_container(f"c{at}", limits) for at, limits in enumerate(containers)]
    return claim_of(a_pod("p", *named), rules).offer


# --- Pods ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("containers", "offer"),
    [
        ([{MEMORY: 4096}], Offer.GPUSHARE_DEVICES),
        ([{MEMORY: 4096, PLACE: 1}], Offer.GPUSHARE),
        ([{MEMORY: 4096, PLACE: 0}], Offer.GPUSHARE_DEVICES),
        ([{MEMORY: 4096, PLACE: 1}, {MEMORY: 4096}], Offer.GPUSHARE_DEVICES),
        ([{MEMORY: 4096, PLACE: 1}, {}], Offer.GPUSHARE),
        ([{MEMORY: 4096, COUNT: 1}], Offer.GPUSHARE),
        ([{MEMORY: 4096, CORE: 10}], Offer.GPUSHARE_CORE),
        ([{MEMORY: 4096, CORE: 10}, {MEMORY: 4096}], Offer.GPUSHARE_CORE_DEVICES),
        ([{COUNT: 1}], Offer.GPUSHARE_WHOLE),
    ],
    ids=["no place", "place", "place of 0", "one lacks it", "one without GPU", "gpu-count", "core", "half", "whole"],
)
def test_pod_may_leave_devices_of_gpu_mem_if_the_kubelet_calls_an_agent_for_all_its_containers(
    containers: list[Json], offer: Offer
) -> None:
    assert offer_of(*containers) is offer


def test_in_gib_a_place_changes_nothing() -> None:
    assert offer_of({MEMORY: 4}, rules=GIB) is offer_of({MEMORY: 4, PLACE: 1}, rules=GIB) is Offer.GPUSHARE


def test_place_beside_gpu_mem_is_allowed_where_kai_is_served() -> None:
    rules = Rules(gpushare_unit=MemoryUnit.MIB, served=frozenset(EVERY))
    assert offer_of({MEMORY: 4096, PLACE: 1}, rules=rules) is Offer.GPUSHARE
    refused = parse_pod(a_pod("p", a_container("main", {MEMORY: 4096}), a_container("other", {PLACE: 1})), rules)
    assert isinstance(refused, tuple)
    assert "only the webhook writes it" in refused[0].sentence()


def test_claim_of_a_manifest_counts_on_the_webhook() -> None:
    claim = claim_of(a_pod("p", a_container("main", {MEMORY: 4096})))
    assert (as_admitted(claim).offer, as_admitted(as_admitted(claim))) == (Offer.GPUSHARE, as_admitted(claim))


@pytest.mark.parametrize("offer", [Offer.GPUSHARE_DEVICES, Offer.GPUSHARE_CORE_DEVICES])
def test_refusal_says_what_to_do(offer: Offer) -> None:
    assert "at most 50,000 MiB" in ENABLED_BY[offer]
    assert "the webhook adds that to new Pods, so create the Pod again" in ENABLED_BY[offer]
    assert "write aliquot.dev/card-place: 1 as a limit of each container with aliyun.com/gpu-mem" in ENABLED_BY[offer]


@pytest.mark.parametrize(
    ("rules", "needed"),
    [
        (MIB, {}),
        (Rules(gpushare_unit=MemoryUnit.MIB, counted=True), {"a": 1, "b": 1}),
        (Rules(counted=True), {}),
    ],
    ids=["no such node", "such a node", "GiB"],
)
def test_each_container_needs_a_place_where_a_node_counts_gpu_mem(rules: Rules, needed: dict[str, int]) -> None:
    both = a_pod("p", a_container("a", {MEMORY: 4}), a_container("b", {MEMORY: 4}), a_container("c"))
    assert places(claim_of(both, rules), rules) == needed
    assert places(claim_of(a_pod("p", a_container("a", {COUNT: 1})), rules), rules) == {}


@given(st.booleans(), st.integers(1, 8), st.lists(st.integers(1, 4096), min_size=1, max_size=3))
def test_claim_written_and_read_back_is_the_same(place: bool, cards: int, memory: list[int]) -> None:
    limits = [{MEMORY: mib * cards, **({PLACE: 1} if place else {})} for mib in memory]
    pod = a_pod("p", *(a_container(f"c{at}", asked) for at, asked in enumerate(limits)), labels={COUNT: str(cards)})
    claim = claim_of(pod)
    again = claim_of(render_pod(claim, MIB))
    assert (again.offer, again.containers) == (claim.offer, claim.containers)


# --- nodes -----------------------------------------------------------------------------------------------------------


def a_node(cards: tuple[Card, ...], *, counted: bool = False, labels: dict[str, str] | None = None) -> Json:
    annotations = {**render_inventory(cards), **({COUNTED: MEMORY} if counted else {})}
    return {"metadata": {"name": "n", "labels": labels or LABELS, "annotations": annotations}}


def read(node: Json, rules: Rules = MIB) -> Node:
    found = parse_node(node, rules)
    assert isinstance(found, Node), found
    return found


def test_node_with_more_mib_than_devices_takes_no_pod_without_a_place() -> None:
    assert read(a_node(SMALL)).offers == SHARED | DEVICES
    assert read(a_node(BIG)).offers == SHARED
    assert read(a_node(SMALL, counted=True)).offers == SHARED


def test_compute_beside_memory_likewise() -> None:
    labels = {"ack.node.gpu.schedule": "core_mem"}
    with_core = SHARED | {Offer.GPUSHARE_CORE}
    assert read(a_node(BIG, labels=labels)).offers == with_core
    assert read(a_node(SMALL, labels=labels)).offers == with_core | DEVICES | {Offer.GPUSHARE_CORE_DEVICES}


def test_nodes_in_gib_are_as_before() -> None:
    assert read(a_node(BIG), GIB).offers == read(a_node(SMALL), GIB).offers == SHARED


def test_node_that_counts_in_mib_takes_no_shared_pod_of_a_cluster_in_gib() -> None:
    node = read(a_node(BIG, counted=True), GIB)
    assert node.offers == {Offer.GPUSHARE_WHOLE}
    assert "counts aliyun.com/gpu-mem in MiB, and this cluster in GiB" in words.note(node.notes[0])


def test_node_of_the_peers_plugin_takes_all_pods_whatever_its_size() -> None:
    node = {"metadata": {"name": "n", "labels": LABELS}, "status": {"capacity": {MEMORY: "57344", COUNT: "2"}}}
    assert Offer.GPUSHARE_DEVICES in read(node).offers


def test_what_goes_without_saying_is_not_shown() -> None:
    assert read(a_node(SMALL)).offer_names == read(a_node(BIG)).offer_names == ("gpushare",)


card_sizes = st.lists(st.integers(1, MOST_DEVICES), min_size=1, max_size=4)


@given(st.lists(st.tuples(card_sizes, st.booleans()), min_size=1, max_size=6), st.sampled_from([MIB, GIB]))
def test_nodes_read_one_after_another_are_as_each_by_itself(nodes: list[tuple[list[int], bool]], rules: Rules) -> None:
    """The reader keeps what nodes of a kind have in common, and their sizes are not part of that."""
    reader = NodeReader(rules)
    for sizes, counted in nodes:
        node = a_node(tuple(Card(at, mib, f"GPU-{at}") for at, mib in enumerate(sizes)), counted=counted)
        parsed = read_object(node, NodeObject, "node")
        assert isinstance(parsed, NodeObject)
        assert reader.read(parsed) == read(node, rules)


# --- the unit --------------------------------------------------------------------------------------------------------


def a_view(gpu_mem: str = "", *, marked: bool = False, away: bool = False) -> Json:
    annotations = {AGENT: AWAY if away else "0.1.0", **({COUNTED: MEMORY} if marked else {})}
    capacity = {COUNT: "1", **({MEMORY: gpu_mem} if gpu_mem else {})}
    return {"metadata": {"name": "n", "labels": LABELS, "annotations": annotations}, "status": {"capacity": capacity}}


@pytest.mark.parametrize(
    ("nodes", "unit"),
    [
        ([a_view(marked=True, away=True), a_view("16")], MemoryUnit.GIB),
        ([a_view("16"), a_view(marked=True, away=True)], MemoryUnit.GIB),
        ([a_view("16384", away=True), a_view("16")], MemoryUnit.GIB),
        ([a_view(marked=True, away=True), a_view()], MemoryUnit.MIB),
        ([a_view(marked=True, away=True), a_view("16", away=True)], MemoryUnit.MIB),
        ([a_view("16", away=True), a_view(marked=True, away=True)], MemoryUnit.MIB),
        ([a_view("16", away=True), a_view(away=True)], MemoryUnit.GIB),
        ([a_view("16", away=True), a_view("16384")], MemoryUnit.MIB),
        ([a_view("16"), a_view(), a_view(marked=True)], MemoryUnit.MIB),
        ([a_view("16"), a_view()], MemoryUnit.GIB),
        ([a_view(), a_view(away=True)], None),
    ],
)
def test_node_whose_agent_is_away_gives_the_unit_only_where_no_other_does(
    nodes: list[Json], unit: MemoryUnit | None
) -> None:
    """Its mark may be older than the unit: the cluster counted in MiB before."""
    assert advertised_gpushare_unit(nodes) is unit


def test_claim_lacks_a_place_until_the_webhook_adds_it() -> None:
    claim = claim_of(a_pod("p", a_container("main", {MEMORY: 4096})))
    assert (lacks_place(claim), lacks_place(as_admitted(claim))) == (True, False)


def test_words_in_mib_have_one_place_for_each_container() -> None:
    claim = claim_of(a_pod("p", a_container("main", {MEMORY: 4096, PLACE: 1})))
    (limits,) = (container["resources"]["limits"] for container in render_pod(claim, MIB)["spec"]["containers"])
    assert limits == {MEMORY: "4096", PLACE: "1"}


@pytest.mark.parametrize(
    "lying",
    [a_view(marked=True), a_view("20000"), a_view("1e9"), a_view("16384", marked=True)],
    ids=["by its mark", "by its amount", "by a huge amount", "by both"],
)
def test_one_node_that_lies_does_not_change_the_unit_of_all_others(lying: Json) -> None:
    """An agent's account may write both of its own Node. In MiB, Pods of all nodes would be booked a thousandth."""
    for nodes in ([lying, *[a_view("16")] * 2], [*[a_view("24")] * 3, a_view("16"), lying, lying]):
        assert advertised_gpushare_unit(nodes) is MemoryUnit.GIB
    assert advertised_gpushare_unit([a_view("16"), *[a_view("16384")] * 2]) is MemoryUnit.MIB


@pytest.mark.parametrize("order", [1, -1], ids=["", "the other way round"])
def test_nodes_with_the_same_amount_and_another_oversubscription_are_counted_apart(order: int) -> None:
    """1,500 GiB are two times 750; without a pool, or on a node that is not oversubscribed, they are MiB."""
    oversubscribed, plain, poolless = a_view("1500"), a_view("1500"), a_view("1500")
    oversubscribed["metadata"]["labels"] = {**LABELS, OVERSUBSCRIBE: "2"}
    oversubscribed["metadata"]["annotations"] |= {POOL: "100000"}
    poolless["metadata"]["labels"] = {**LABELS, OVERSUBSCRIBE: "2"}
    for other in (plain, poolless):
        assert advertised_gpushare_unit([other, oversubscribed, oversubscribed][::order]) is MemoryUnit.GIB
        assert advertised_gpushare_unit([oversubscribed, other, other][::order]) is MemoryUnit.MIB
