"""Every reason why a claim does not fit a node, with what it wants and what there is; and that it fits otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aliquot.model.claim import Claim, Slice, Usage
from aliquot.model.device import Card
from aliquot.model.node import Node, Offer
from aliquot.model.refusal import Reason
from aliquot.model.withheld import MIG_MODE
from aliquot.placement.board import Board, Occupant
from aliquot.placement.demand import demand_of
from aliquot.placement.fit import fits, shortages
from kit.values.builders import (
    EVERY_OFFER,
    GIB,
    a_claim,
    a_container,
    a_node,
    a_slice,
    asking,
    whole_cards,
    whole_node,
)

Short = tuple[int | None, Reason, int, int, bool]  # the card, why, what is wanted, what there is, and whether for good
HOST = a_node("n1", 16, cpu_milli=1000, memory_mib=2000)
PAIR = a_node("n1", 16, 16)
TIGHT = Node("n1", (Card(0, 16 * GIB, max_slices=1),), EVERY_OFFER)


def of(*cards: Card, **more: Any) -> Node:
    return Node("n1", cards, EVERY_OFFER, **more)


def offering(*offers: Offer, **more: Any) -> Node:
    return Node("n1", (Card(0, 16 * GIB),), frozenset(offers), **more)


def on(slot: int, memory_gib: int = 0, core: int = 0, greedy: int = 0, slices: int = 1, exclusive: int = 0) -> Occupant:
    return Occupant({slot: Usage(memory_gib * GIB, core, greedy, slices, exclusive)})


def parked(slot: int) -> Occupant:
    return Occupant({slot: Usage(2 * GIB, slices=1)}, parkable=True)


def stretched(pool_mib: int) -> Node:
    return of(*(Card(at, 16 * GIB, oversubscribe=2.0) for at in range(2)), pool_mib=pool_mib)


FULL = [parked(slot) for slot in (0, 0, 0, 0, 1, 1, 1, 1)]  # 8 of 16 GiB each
SOME = Occupant({}, cpu_milli=300, memory_mib=500)
WHOLE = Occupant({}, whole_node=True)
DAEMON = Occupant({0: Usage(GIB, slices=1)}, of_node=True)
TWO_KINDS = a_claim(*(a_container(a_slice(size), name=f"c{size}", index=size) for size in (17, 18, 17)))
SMALL_AND_LARGE = a_claim(*(a_container(a_slice(size), name=f"c{size}", index=size) for size in (4, 17)))
TWO_SIZES = a_claim(*(a_container(a_slice(size, 41), name=f"c{size}", index=size) for size in (1, 2)))
GREEDY = a_claim(a_container(a_slice(1, greedy=30)))
HALF = a_claim(a_container(Slice(memory_percent=50)))

CASES: list[tuple[Node, list[Occupant], Claim, list[Short]]] = [
    # CPU and memory of the host
    (HOST, [], asking(1, cpu_milli=1000, memory_mib=2000), []),
    (HOST, [], asking(1, cpu_milli=1001), [(None, Reason.CPU, 1001, 1000, True)]),
    (HOST, [], asking(1, memory_mib=2001), [(None, Reason.HOST_MEMORY, 2001, 2000, True)]),
    (HOST, [SOME], asking(1, cpu_milli=700, memory_mib=1500), []),
    (HOST, [SOME], asking(1, cpu_milli=1000), [(None, Reason.CPU, 1000, 700, False)]),
    (HOST, [SOME], asking(1, memory_mib=1501), [(None, Reason.HOST_MEMORY, 1501, 1500, False)]),
    (HOST, [SOME], asking(1, cpu_milli=700, memory_mib=1501), [(None, Reason.HOST_MEMORY, 1501, 1500, False)]),
    (HOST, [SOME], asking(1, cpu_milli=701, memory_mib=1500), [(None, Reason.CPU, 701, 700, False)]),
    # what the node offers
    (offering(Offer.QGPU), [], asking(1, offer=Offer.QGPU), []),
    (offering(Offer.QGPU), [], asking(1, offer=Offer.QGPU_MIXED), [(None, Reason.MIXED, 1, 0, True)]),
    (offering(Offer.QGPU), [], whole_cards(1), [(None, Reason.QGPU_NODE, 1, 0, True)]),
    (offering(Offer.ANY), [], whole_cards(1), [(None, Reason.MODE, 1, 0, True)]),
    (offering(Offer.ANY), [], asking(1, offer=Offer.QGPU), [(None, Reason.MODE, 1, 0, True)]),
    (offering(others=("x",)), [], whole_cards(1), [(None, Reason.OTHER_PLUGIN, 1, 0, True)]),
    (offering(others=("x",)), [], asking(1), [(None, Reason.OTHER_PLUGIN, 1, 0, True)]),
    (PAIR, [], asking(1, group="team", user=1), [(None, Reason.TOGETHER, 1, 0, True)]),
    (offering(Offer.QGPU), [], asking(1, group="team", user=1), [(None, Reason.MODE, 1, 0, True)]),
    # a whole node
    (PAIR, [], whole_node(), []),
    (PAIR, [WHOLE], whole_node(), [(None, Reason.WHOLE_NODE, 0, 1, False)]),
    (PAIR, [WHOLE], asking(1), [(None, Reason.WHOLE_NODE, 0, 1, False)]),
    (of(Card(0, GIB, healthy=False)), [WHOLE], asking(1), [(None, Reason.WHOLE_NODE, 0, 1, False)]),
    (of(Card(0, GIB, withheld=MIG_MODE)), [WHOLE], asking(1), [(None, Reason.WHOLE_NODE, 0, 1, False)]),
    (of(Card(0, GIB, model="B")), [WHOLE], asking(1, models=frozenset("A")), [(None, Reason.WHOLE_NODE, 0, 1, False)]),
    (PAIR, [SOME, SOME], whole_node(), [(None, Reason.WHOLE_NODE, 0, 2, False)]),
    (PAIR, [DAEMON], whole_node(), [(None, Reason.WHOLE_NODE, 0, 1, False)]),
    (of(Card(0, GIB), Card(1, GIB, healthy=False)), [], whole_node(), [(None, Reason.HEALTH, 0, 1, False)]),
    (of(Card(0, GIB), Card(1, GIB, withheld=MIG_MODE)), [], whole_node(), [(None, Reason.WITHHELD, 0, 1, False)]),
    (of(), [], whole_node(), [(None, Reason.HEALTH, 0, 0, True)]),
    # a card
    (PAIR, [on(1, 16)], asking(16), []),
    (TIGHT, [], asking(17), [(0, Reason.MEMORY, 17 * GIB, 16 * GIB, True)]),
    (TIGHT, [], asking(16, 101), [(0, Reason.CORE, 1010, 1000, True)]),
    (TIGHT, [on(0, 10, 600, 750, 0)], asking(6, 40), []),
    (TIGHT, [on(0, 10, 600, 750, 0)], asking(7), [(0, Reason.MEMORY, 7 * GIB, 6 * GIB, False)]),
    (TIGHT, [on(0, 10, 600, 750, 0)], asking(1, 41), [(0, Reason.CORE, 410, 400, False)]),
    (TIGHT, [on(0, 10, 600, 750, 0)], asking(6, 41), [(0, Reason.CORE, 410, 400, False)]),
    (TIGHT, [on(0, 10, 600, 750, 0)], asking(7, 40), [(0, Reason.MEMORY, 7 * GIB, 6 * GIB, False)]),
    (TIGHT, [on(0, 10, 600, 750, 0)], TWO_SIZES, [(0, Reason.CORE, 410, 400, False)]),
    (TIGHT, [on(0, 10, 600, 750, 0)], GREEDY, [(0, Reason.GREEDY, 300, 250, False)]),
    (TIGHT, [on(0, 1)], asking(1), [(0, Reason.SLICES, 1, 0, False)]),
    (TIGHT, [on(0, 1)], asking(1, offer=Offer.GPUSHARE), []),
    (of(Card(0, GIB, max_slices=0)), [], asking(1), [(0, Reason.SLICES, 1, 0, True)]),
    (TIGHT, [on(0, 8, slices=0)], HALF, []),
    (TIGHT, [on(0, 9, slices=0)], HALF, [(0, Reason.MEMORY, 8 * GIB, 7 * GIB, False)]),
    (TIGHT, [on(0, 1)] * 2, whole_cards(1), [(0, Reason.EXCLUSIVE, 0, 2, False)]),
    (TIGHT, [on(0, 1, exclusive=1)], asking(99), [(0, Reason.EXCLUSIVE, 0, 1, True)]),
    (of(Card(0, GIB, healthy=False)), [], asking(1), [(0, Reason.HEALTH, 1, 0, False)]),
    (of(Card(0, GIB, healthy=False)), [], asking(1, 100), [(0, Reason.HEALTH, 1, 0, False)]),
    (of(Card(0, GIB, healthy=False)), [], asking(1, 101), [(0, Reason.HEALTH, 1, 0, True)]),
    (of(Card(0, GIB, healthy=False)), [], asking(2), [(0, Reason.HEALTH, 1, 0, True)]),
    (of(Card(0, GIB, withheld=MIG_MODE)), [], asking(1), [(0, Reason.WITHHELD, 1, 0, False)]),
    (of(Card(0, GIB, model="B")), [], asking(1, models=frozenset("A")), [(0, Reason.MODEL, 1, 0, True)]),
    (of(Card(0, GIB, model="A")), [], asking(1, models=frozenset("A")), []),
    # several cards, and several containers
    (of(), [], asking(1), [(None, Reason.CARDS, 1, 0, True)]),
    (TIGHT, [], asking(1, count=2), [(None, Reason.CARDS, 2, 1, True)]),
    (PAIR, [], asking(16, count=2), []),
    (
        PAIR,
        [on(1, 1)],
        asking(16, count=2),
        [(1, Reason.MEMORY, 16 * GIB, 15 * GIB, False), (None, Reason.CARDS, 2, 1, False)],
    ),
    (of(Card(0, GIB, max_slices=0)), [], whole_cards(2), [(None, Reason.CARDS, 2, 1, True)]),
    (
        of(Card(0, GIB, model="A"), Card(1, GIB, model="B")),
        [],
        asking(1, count=2, models=frozenset("A")),
        [(1, Reason.MODEL, 1, 0, True), (None, Reason.CARDS, 2, 1, True)],
    ),
    (
        TIGHT,
        [],
        TWO_KINDS,
        [(0, Reason.MEMORY, 17 * GIB, 16 * GIB, True), (0, Reason.MEMORY, 18 * GIB, 16 * GIB, True)],
    ),
    (PAIR, [], SMALL_AND_LARGE, [(slot, Reason.MEMORY, 17 * GIB, 16 * GIB, True) for slot in (0, 1)]),
    # the pool of host memory, for what goes beyond a card
    (stretched(2 * GIB), FULL, asking(10, park_after=30.0), []),
    (
        stretched(GIB),
        FULL,
        asking(10, park_after=30.0),
        [(slot, Reason.HOST_POOL, 2 * GIB, GIB, False) for slot in (0, 1)],
    ),
    (
        stretched(GIB),
        FULL,
        asking(13, park_after=30.0),  # as much as there would be with a pool of any size
        [(slot, Reason.HOST_POOL, 5 * GIB, GIB, False) for slot in (0, 1)],
    ),
    (
        stretched(GIB),
        FULL,
        asking(14, park_after=30.0),
        [(slot, Reason.MEMORY, 14 * GIB, 9 * GIB, False) for slot in (0, 1)],
    ),
    (
        stretched(2 * GIB),
        FULL[4:],
        asking(10, count=2),
        [(1, Reason.HOST_POOL, 2 * GIB, GIB, False), (None, Reason.CARDS, 2, 1, False)],
    ),
    (stretched(4 * GIB), FULL, asking(10, count=2), []),
    (
        stretched(3 * GIB),
        FULL,
        asking(10, count=2),
        [
            *((slot, Reason.HOST_POOL, 2 * GIB, 3 * GIB // 2, False) for slot in (0, 1)),
            (None, Reason.CARDS, 2, 0, False),
        ],
    ),
]


@pytest.mark.parametrize(("node", "there", "claim", "expected"), CASES)
def test_what_a_node_is_short_of(node: Node, there: list[Occupant], claim: Claim, expected: list[Short]) -> None:
    board = Board()
    board.set_node(node)
    for occupant in there:
        board.take("n1", occupant)
    rows, demand = np.array([0]), demand_of(claim)
    found = [refusal for shortage in shortages(board, demand, rows) for refusal in shortage.refusals(board)]
    assert [(one.card, one.reason, one.wanted, one.had, one.never) for one in found] == expected
    assert fits(board, demand, rows)[0].tolist() == [not expected]
