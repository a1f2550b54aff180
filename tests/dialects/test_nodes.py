"""Nodes: cards from our inventory or from what the node advertises, and what had to be assumed."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects import MemoryUnit, Rules, advertised_gpushare_unit, nodes, parse_node, render_inventory
from aliquot.dialects.nodereading import NodeReader, UnitPoll, qgpu_bars_whole_cards
from aliquot.dialects.wire.objectreading import read_object
from aliquot.dialects.wire.objects import NodeObject
from aliquot.model.device import Card
from aliquot.model.node import Node, NodeNote
from aliquot.model.refusal import Invalid
from aliquot.wording import nodes as words
from kit.clusters.watchobjects import as_node
from kit.values.manifests import QGPU, WHOLE_BESIDE_QGPU, XGN, a_node

MEM, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
QMEM, QCORE = "tke.cloud.tencent.com/qgpu-memory", "tke.cloud.tencent.com/qgpu-core"
T9K, T9K_PERCENT = "tensorstack.dev/nvidia-gpu", "tensorstack.dev/nvidia-gpu-percent"
INVENTORY = "aliquot.dev/inventory"


def node(capacity: object = None, *, inventory: object = None, **rest: Any) -> dict[str, Any]:
    annotations = {} if inventory is None else {INVENTORY: inventory}
    return {"metadata": {"name": "n1", "annotations": annotations}, "status": {"capacity": capacity}, **rest}


def good(manifest: object) -> Node:
    parsed = parse_node(manifest)
    assert isinstance(parsed, Node), parsed
    return parsed


def sizes(manifest: object) -> list[int]:
    return [card.memory_mib // 1024 for card in good(manifest).cards]


def test_a_node_without_any_gpu_has_no_cards() -> None:
    parsed = good(node({"cpu": "4"}))
    assert (parsed.cards, parsed.offers, parsed.notes) == ((), frozenset(), ())


def test_cpu_and_memory_are_what_is_allocatable() -> None:
    status = {"capacity": {"cpu": 8, "memory": "32Gi"}, "allocatable": {"cpu": "7900m", "memory": "31Gi"}}
    parsed = good(node(status=status))
    assert (parsed.cpu_milli, parsed.memory_mib) == (7900, 31 * 1024)


def test_node_cpu_and_memory_fall_back_to_capacity() -> None:
    assert good(node({"cpu": 8})).cpu_milli == 8000
    assert good(node()).cpu_milli is None
    assert good(node()).memory_mib is None


@pytest.mark.parametrize(
    ("capacity", "gib", "note"),
    [
        ({MEM: 47, COUNT: 2}, [23, 23], "aliyun.com/gpu-mem is 47, which 2 cards do not share evenly"),
        ({MEM: 16}, [16], "does not say how many cards"),
        ({QMEM: 16}, [16], "does not say how many cards"),
        ({QMEM: 32, QCORE: 150}, [32], "is 150, not a multiple of 100: counted as 1 card"),
        ({QCORE: 200}, [16, 16], "16 GiB each is assumed"),
        ({T9K: 2}, [16, 16], "16 GiB each is assumed"),
        (
            {MEM: 48, COUNT: 2, QMEM: 64, QCORE: 200},
            [24, 24],
            "says 24 GiB a card, tke.cloud.tencent.com/qgpu-memory says 32 GiB",
        ),
        (
            {MEM: 48, COUNT: 2, T9K: 3},
            [24, 24],
            "says 2 cards, tensorstack.dev/nvidia-gpu says 3",
        ),
    ],
)
def test_assumptions_about_cards_are_noted(capacity: dict[str, int], gib: list[int], note: str) -> None:
    assert sizes(node(capacity)) == gib
    (said,) = good(node(capacity)).notes
    assert note in words.note(said)


def test_several_dialects_on_one_node_describe_the_same_cards() -> None:
    parsed = node({MEM: 64, COUNT: 2, QMEM: 64, QCORE: 200, T9K: 0, T9K_PERCENT: 200})
    assert sizes(parsed) == [32, 32]
    assert good(parsed).notes == ()


def test_capacity_combines_number_and_memory_of_dialects() -> None:
    parsed = node({T9K: 2, QMEM: 48})
    assert sizes(parsed) == [24, 24]
    assert good(parsed).notes == ()


def test_without_capacity_the_cards_follow_from_what_is_allocatable() -> None:
    assert sizes(node(status={"allocatable": {MEM: 32, COUNT: 2}})) == [16, 16]


def test_the_inventory_wins_over_the_capacity_and_its_cards_may_be_unequal() -> None:
    cards = (Card(0, 16384, "GPU-a", "T4"), Card(1, 81559, "GPU-b", "A100", healthy=False, numa=1))
    parsed = good(node({MEM: 64, COUNT: 4}, inventory=render_inventory(cards)[INVENTORY]))
    assert parsed.cards == cards
    assert parsed.notes == ()


def test_the_inventory_is_compact_json_with_a_version() -> None:
    written = render_inventory([Card(0, 16384, "GPU-a")])
    assert written == {INVENTORY: '{"v":1,"cards":[{"index":0,"uuid":"GPU-a","memory_mib":16384}]}'}


def test_cards_of_an_inventory_are_put_in_order() -> None:
    written = render_inventory([Card(1, 2048), Card(0, 1024)])[INVENTORY]
    assert [card.index for card in good(node(inventory=written)).cards] == [0, 1]


def test_inventory_ignores_unknown_fields() -> None:
    written = {"v": 1, "cards": [{"index": 0, "memory_mib": 1024, "colour": "green"}], "at": 5}
    assert sizes(node(inventory=json.dumps(written))) == [1]


@pytest.mark.parametrize(
    ("inventory", "said"),
    [
        ("", "what aliquot writes there"),
        ("{", "what aliquot writes there"),
        ("[" * 100_000, "what aliquot writes there"),
        ("\ud800", "what aliquot writes there"),
        ([], "text"),
        ('{"v":2,"cards":[]}', "version 2 is from another release"),
        ('{"v":1,"cards":[{"index":0}]}', "memory_mib"),
        ('{"v":1,"cards":[{"index":-1,"memory_mib":1}]}', "$.cards[0].index"),
        ('{"v":1,"cards":[{"index":0,"memory_mib":"16Gi"}]}', "$.cards[0].memory_mib"),
        ('{"v":1,"cards":[{"index":0,"memory_mib":1},{"index":0,"memory_mib":1}]}', "a unique index"),
        (
            '{"v":1,"cards":[{"index":0,"memory_mib":1,"uuid":"a"},{"index":1,"memory_mib":1,"uuid":"a"}]}',
            "a unique uuid",
        ),
    ],
)
def test_an_inventory_that_cannot_be_read_is_an_error_and_not_an_empty_node(inventory: object, said: str) -> None:
    parsed = parse_node(node({MEM: 16, COUNT: 1}, inventory=inventory))
    assert isinstance(parsed, tuple)
    assert parsed[0].field == f'metadata.annotations["{INVENTORY}"]'
    assert said in parsed[0].sentence()


@pytest.mark.parametrize(
    ("manifest", "field"),
    [
        (None, "node"),
        ([], "node"),
        ({}, "metadata"),
        ({"metadata": {}}, "metadata.name"),
        ({"metadata": {"name": 3}}, "metadata.name"),
        ({"metadata": []}, "metadata"),
        (node(status=[]), "status"),
        (node([]), "status.capacity"),
        (node({MEM: "many"}), f'status.capacity["{MEM}"]'),
        (node({MEM: "-1"}), f'status.capacity["{MEM}"]'),
        (node({QMEM: "1.5"}), f'status.capacity["{QMEM}"]'),
        (node({MEM: "1e9", COUNT: "1e9"}), f'status.capacity["{COUNT}"]'),
        (node({"cpu": "x"}), 'status.capacity["cpu"]'),
        (node(spec={"taints": {}}), "spec.taints"),
        (node({MEM: "many"}, inventory='{"v":1,"cards":[]}'), f'status.capacity["{MEM}"]'),
    ],
)
def test_a_node_that_cannot_be_read_is_an_error_that_names_the_field(manifest: object, field: str) -> None:
    parsed = parse_node(manifest)
    assert isinstance(parsed, tuple)
    assert [problem.field for problem in parsed] == [field]


@pytest.mark.parametrize(
    ("percent", "cards", "noted"),
    [
        (None, None, False),
        (0, None, False),
        (50, 1, True),
        (100, 1, False),
        (199, 1, True),
        (200, 2, False),
        (250, 2, True),
    ],
)
def test_number_of_cards_by_percent(percent: int | None, cards: int | None, noted: bool) -> None:
    notes: list[NodeNote] = []
    found = nodes.advertised_percent("p", percent, notes)
    assert (found and found.number, bool(notes)) == (cards, noted)


def test_a_node_has_no_more_cards_than_kubernetes_nodes_have() -> None:
    def read(number: int) -> tuple[object, list[Invalid]]:
        problems: list[Invalid] = []
        return nodes.cards_from([nodes.Capacity(nodes.Advertised("c", number))], [], problems), problems

    most, problems = read(nodes.MOST_CARDS)
    assert (len(most), problems) == (nodes.MOST_CARDS, [])  # type: ignore[arg-type]
    none, problems = read(nodes.MOST_CARDS + 1)
    assert (none, [problem.value for problem in problems]) == ((), [nodes.MOST_CARDS + 1])
    assert nodes.cards_from([nodes.Capacity()], [], []) == ()


@pytest.mark.parametrize(
    ("served", "barred"),
    [({"qgpu", "t9k"}, True), ({"qgpu", "t9k", "gpushare"}, True), ({"qgpu"}, False), ({"t9k"}, False)],
)
def test_qgpu_bars_whole_cards_unless_they_are_mixed(served: set[str], barred: bool) -> None:
    both = {**XGN, **QGPU}
    assert qgpu_bars_whole_cards(both, frozenset(served)) is barred
    assert not qgpu_bars_whole_cards({**both, **WHOLE_BESIDE_QGPU}, frozenset(served))
    assert not qgpu_bars_whole_cards(QGPU, frozenset(served))
    assert not qgpu_bars_whole_cards(XGN, frozenset(served))


@pytest.mark.parametrize(
    ("capacity", "unit"),
    [
        ({MEM: 1000}, MemoryUnit.GIB),
        ({MEM: 1001}, MemoryUnit.MIB),
        ({MEM: 2000, COUNT: 2}, MemoryUnit.GIB),
        ({MEM: 2001, COUNT: 2}, MemoryUnit.MIB),
        ({MEM: 0}, None),
        ({}, None),
    ],
)
def test_unit_follows_from_memory_that_no_card_has_in_gib(capacity: dict[str, int], unit: MemoryUnit | None) -> None:
    assert advertised_gpushare_unit([as_node(node(capacity))]) is unit


def test_readers_keep_every_kind_until_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = NodeReader(Rules())
    monkeypatch.setattr(NodeReader, "_MOST", 2)
    kept = []
    for labels in (QGPU, XGN, {}):
        reader.read(as_node(a_node("n", 16, labels=labels)))
        kept.append(len(reader._known))
    assert kept == [1, 2, 1]


def test_reader_refuses_what_parsing_refuses() -> None:
    for wrong in (a_node(""), node(inventory="{")):
        assert NodeReader(Rules()).read(as_node(wrong)) == parse_node(as_node(wrong), Rules())


def test_machines_that_differ_in_cpu_and_memory_are_one_kind() -> None:
    """The memory of equal machines differs by some KiB: each of 15,000 would be parsed."""
    reader = NodeReader(Rules())
    for at in range(9):
        read = as_node(node({MEM: 64, "cpu": "96", "memory": f"{1 << 20 + at}Ki"}))
        assert reader.read(read) == parse_node(read)
    assert len(reader._known) == 1


AMOUNTS = st.sampled_from(["1", "1500m", "0.5", "8Gi", "1e3", "x", "-1", "1" * 99, 3, 2.5, 10**100, 1e300])


@given(st.lists(st.fixed_dictionaries({}, optional={"cpu": AMOUNTS, "memory": AMOUNTS}), min_size=2, max_size=6))
def test_reader_reads_any_cpu_and_memory_as_parsing_does(sides: list[dict[str, Any]]) -> None:
    reader = NodeReader(Rules())
    for capacity, allocatable in pairwise(sides):
        status = {"capacity": {MEM: 64, **capacity}, "allocatable": allocatable}
        read = as_node({"metadata": {"name": "n1"}, "status": status})
        assert reader.read(read) == parse_node(read)


def test_reader_keeps_nothing_of_an_inventory_that_cannot_be_read() -> None:
    reader = NodeReader(Rules())
    assert isinstance(reader.read(as_node(node(inventory="{"))), tuple)
    assert isinstance(reader.read(as_node(node())), Node)


@pytest.mark.parametrize("key", ["aliquot.dev/counted-resources", "aliquot.dev/together", "aliquot.dev/oversubscribe"])
def test_reader_keeps_no_node_with_very_long_annotations(key: str) -> None:
    """An agent may write them on its own Node again and again: 4,096 of 256 KiB would be a GiB."""
    reader, poll = NodeReader(Rules()), UnitPoll()
    read = a_node("n1", 16)
    for at in range(20):
        read["metadata"].setdefault("annotations", {})[key] = f"{at}" + "x" * 100_000
        reader.read(as_node(read))
        poll.hear(as_node(read))
    assert len(str(reader._known)) + len(str(poll._known)) < 100_000
    read["metadata"]["annotations"][key] = "x"
    assert reader.read(as_node(read)) is not None
    assert len(reader._known) == 1


def test_reader_and_poll_take_a_number_that_is_too_long_to_print() -> None:
    read = read_object({"metadata": {"name": "n"}, "status": {"capacity": {MEM: 16**5000}}}, NodeObject, "node")
    assert isinstance(read, NodeObject)
    assert NodeReader(Rules()).read(read) == parse_node(read, Rules())
    UnitPoll().hear(read)
