"""Our words for memory that may leave the card: the annotation of Pods, the label and the reports of Nodes."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.dialects import Rules, elastic, parse_node, parse_pod, render_inventory
from aliquot.dialects.nodereading import NodeReader
from aliquot.dialects.wire.advertising import adverts
from aliquot.dialects.wire.objects import Metadata, NodeObject
from aliquot.model.claim import Claim
from aliquot.model.device import Card
from aliquot.model.node import Node, NodeNote
from aliquot.wording import nodes as words

LIMITS = {
    "qgpu": {"tke.cloud.tencent.com/qgpu-memory": 8},
    "t9k": {"tensorstack.dev/nvidia-gpu-percent": 25},
    "gpushare": {"aliyun.com/gpu-mem": 8},
}
LABELS = {"qgpu-device-enable": "enable", "gpushare": "true"}
CARDS = (Card(0, 16 * 1024, "GPU-0"), Card(1, 16 * 1024, "GPU-1"))


def a_pod(limits: dict[str, int], park: object = None) -> dict[str, Any]:
    annotations = {} if park is None else {elastic.PARK: park}
    container = {"name": "main", "image": "x", "resources": {"limits": limits}}
    metadata = {"name": "p", "namespace": "ml", "uid": "u", "annotations": annotations}
    return {"metadata": metadata, "spec": {"containers": [container]}}


def a_node(label: str | None = None, pool: int | None = 64 * 1024, default: str | None = None) -> NodeObject:
    labels = LABELS | ({} if label is None else {elastic.OVERSUBSCRIBE: label})
    annotations = render_inventory(CARDS) | ({} if pool is None else {elastic.POOL: str(pool)})
    annotations |= {} if default is None else {elastic.OVERSUBSCRIBE: default}
    return NodeObject(Metadata(name="n1", labels=labels, annotations=annotations))


@pytest.mark.parametrize("dialect", LIMITS)
def test_park_annotation_holds_for_pods_of_every_dialect(dialect: str) -> None:
    claim = parse_pod(a_pod(LIMITS[dialect], "30s"))
    assert isinstance(claim, Claim)
    assert (claim.dialect, claim.park_after, claim.parkable) == (dialect, 30.0, True)
    plain = parse_pod(a_pod(LIMITS[dialect]))
    assert isinstance(plain, Claim)
    assert not plain.parkable


@pytest.mark.parametrize(
    ("text", "seconds"), [("0s", 0.0), ("100ms", 0.1), ("1.5m", 90.0), ("24h", 86400.0)], ids=lambda text: str(text)
)
def test_park_annotation_takes_times_with_a_unit(text: str, seconds: float) -> None:
    claim = parse_pod(a_pod(LIMITS["qgpu"], text))
    assert isinstance(claim, Claim)
    assert claim.park_after == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["soon", "", "30", "-1s", "25h", "1e3s", "30 s", "true"])
def test_bad_park_annotation_is_refused_by_field_value_and_what_is_allowed(text: str) -> None:
    refused = parse_pod(a_pod(LIMITS["qgpu"], text))
    assert isinstance(refused, tuple)
    field = 'metadata.annotations["aliquot.dev/park"]'
    assert [rule.sentence() for rule in refused] == [
        f'{field}: "{text}" is not allowed: a time from 0s to 24h, for example "30s"'
    ]


def test_park_annotation_of_a_pod_with_whole_cards_is_refused() -> None:
    refused = parse_pod(a_pod({"tensorstack.dev/nvidia-gpu": 1}, "30s"))
    assert isinstance(refused, tuple)
    assert "whole cards" in refused[0].sentence()


def test_park_annotation_of_a_pod_with_several_slices_is_refused() -> None:
    pod = a_pod(LIMITS["qgpu"], "30s")
    pod["spec"]["containers"].append({**pod["spec"]["containers"][0], "name": "second"})
    refused = parse_pod(pod)
    assert isinstance(refused, tuple)
    assert "several slices" in refused[0].sentence()


@pytest.mark.parametrize(
    ("label", "default", "factor"), [(None, None, 1.0), ("1.5", None, 1.5), (None, "2", 2.0), ("1.0", "2", 1.0)]
)
def test_factor_comes_from_the_label_else_from_the_agents_default(
    label: str | None, default: str | None, factor: float
) -> None:
    for node in (parse_node(a_node(label, default=default)), NodeReader(Rules()).read(a_node(label, default=default))):
        assert isinstance(node, Node)
        assert ({card.oversubscribe for card in node.cards}, node.pool_mib, node.notes) == ({factor}, 64 * 1024, ())


@pytest.mark.parametrize("label", ["0.9", "8.1", "two", "", "1,5", "9"])
def test_bad_factor_counts_as_one_and_is_noted(label: str) -> None:
    node = parse_node(a_node(label))
    assert isinstance(node, Node)
    assert {card.oversubscribe for card in node.cards} == {1.0}
    (note,) = map(words.note, node.notes)
    assert f'"{label}" is not allowed: 1.0 to 8.0' in note
    assert "the node counts as 1.0" in note


def test_factor_without_a_pool_is_noted() -> None:
    for pool in (None, 0):
        node = parse_node(a_node("1.5", pool))
        assert isinstance(node, Node)
        assert {card.oversubscribe for card in node.cards} == {1.0}
        assert "its agent reports no host pool" in words.note(node.notes[0])


def test_reader_distinguishes_nodes_by_pool_and_factor() -> None:
    reader = NodeReader(Rules())
    read = [reader.read(node) for node in (a_node("1.5"), a_node("2.0"), a_node("2.0", 1024), a_node())]
    assert [(node.cards[1].oversubscribe, node.pool_mib) for node in read if isinstance(node, Node)] == [
        (1.5, 65536), (2.0, 65536), (2.0, 1024), (1.0, 65536),
    ]  # fmt: skip


def test_kubelet_is_offered_as_much_memory_as_may_be_booked() -> None:
    node = parse_node(a_node("1.5"))
    assert isinstance(node, Node)
    offered = adverts(node, Rules())
    assert isinstance(offered, tuple)
    amounts = {advert.resource: sum(advert.amounts.values()) for advert in offered}
    assert amounts["tke.cloud.tencent.com/qgpu-memory"] == amounts["aliyun.com/gpu-mem"] == 48
    assert amounts["tke.cloud.tencent.com/qgpu-core"] == 200


def test_agent_reports_what_the_reader_reads() -> None:
    assert elastic.render_node(2048, 1.5) == {elastic.POOL: "2048", elastic.OVERSUBSCRIBE: "1.5"}
    assert elastic.pool_mib(elastic.render_node(2048, 1.0)) == 2048


@pytest.mark.parametrize(
    ("text", "mib"),
    [("999999999", 999_999_999), ("1000000000", 0), ("7", 7), ("-7", 0), ("٣", 0), ("", 0), (7, 0), (None, 0)],
)
def test_pool_is_a_number_of_at_most_nine_digits(text: object, mib: int) -> None:
    assert elastic.pool_mib({elastic.POOL: text}) == mib


@pytest.mark.parametrize(("label", "factor"), [("1", 1.0), ("1.0", 1.0), ("8", 8.0), ("8.0", 8.0)])
def test_factor_at_the_limits(label: str, factor: float) -> None:
    notes: list[NodeNote] = []
    assert elastic.factor_of({elastic.OVERSUBSCRIBE: label}, {elastic.POOL: "1"}, notes) == factor
    assert not notes


def test_factor_of_one_needs_no_pool() -> None:
    notes: list[NodeNote] = []
    assert elastic.factor_of({elastic.OVERSUBSCRIBE: "1"}, {}, notes) == 1.0
    assert not notes


def test_factor_holds_on_cards_whose_sharing_has_no_limit() -> None:
    node = a_node()
    node.metadata.labels = {"gpushare": "true", elastic.OVERSUBSCRIBE: "2"}
    read = parse_node(node)
    assert isinstance(read, Node)
    assert {card.oversubscribe for card in read.cards} == {2.0}
