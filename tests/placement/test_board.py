"""The board: columns of the whole cluster, changed one row at a time."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.model.claim import AppClass, Usage
from aliquot.model.device import Card
from aliquot.model.node import Node, Offer
from aliquot.model.withheld import MIG_MODE
from aliquot.placement.board import CLOSED, UNLIMITED, Board, Occupant
from aliquot.placement.rooms import beyond_cards
from kit.values.boards import occupants
from kit.values.builders import GIB, a_board, a_node


def _holding(memory_gib: int, slot: int = 0, **more: int) -> Occupant:
    return Occupant({slot: Usage(memory_mib=memory_gib * GIB, slices=1, **more)})


def _columns(board: Board) -> dict[str, object]:
    return {
        name: [column.tolist() for column in getattr(board, name)[: board.rows]]
        for name in ("room_memory", "room_core", "room_greedy", "room_slices", "milli", "room_cpu", "room_host", "pods")
    }


def test_release_undoes_take_to_the_last_column() -> None:
    board = a_board(a_node("n1", 16, 24, cpu_milli=8000, memory_mib=4096))
    before = _columns(board)
    tenant = Occupant({1: Usage(3 * GIB, 300, 100, 1, 0)}, AppClass.ONLINE, "owner", False, 500, 256)
    board.take("n1", tenant)
    assert _columns(board) != before
    board.release("n1", tenant)
    assert _columns(board) == before
    assert board.replicas == {}


def test_pods_of_an_owner_and_of_a_group_are_counted_card_by_card() -> None:
    board = a_board(a_node("n1", 16, 16))
    pod = Occupant({0: Usage(GIB, slices=1), 1: Usage(GIB, slices=1)}, owner="owner", group="team")
    alone = Occupant({1: Usage(GIB, slices=1)}, owner="owner")
    for tenant in (pod, pod, alone):
        board.take("n1", tenant)
    assert (board.replicas, board.members) == ({"owner": {(0, 0): 2, (0, 1): 3}}, {"team": {(0, 0): 2, (0, 1): 2}})
    board.release("n1", pod)
    assert (board.replicas, board.members) == ({"owner": {(0, 0): 1, (0, 1): 2}}, {"team": {(0, 0): 1, (0, 1): 1}})
    board.release("n1", pod)
    assert (board.replicas, board.members) == ({"owner": {(0, 1): 1}}, {})


def test_unhealthy_card_keeps_its_bookings() -> None:
    board = a_board(a_node("n1", 16))
    board.take("n1", _holding(10))
    board.set_node(Node("n1", (Card(0, 16 * GIB, healthy=False),), frozenset(Offer)))
    assert board.room_memory[0, 0] == CLOSED
    board.set_node(a_node("n1", 16))
    assert board.room_memory[0, 0] == 6 * GIB


def test_a_card_that_shrank_below_what_is_booked_has_negative_room_and_never_wraps() -> None:
    board = a_board(a_node("n1", 16))
    board.take("n1", _holding(10))
    board.set_node(a_node("n1", 8))
    assert board.room_memory[0, 0] == -2 * GIB
    assert board.milli[0, 0] == 0


def test_returning_node_keeps_its_bookings() -> None:
    board = a_board(a_node("n1", 16), a_node("n2", 16))
    board.take("n1", _holding(10))
    board.drop_node("n1")
    assert board.room_memory[0, 0] == CLOSED
    board.set_node(a_node("n1", 16))
    assert board.room_memory[board.row_of["n1"], 0] == 6 * GIB


def test_the_row_of_a_node_that_is_gone_and_empty_is_used_again() -> None:
    board = a_board(a_node("n1"), a_node("n2"))
    board.drop_node("n1")
    board.set_node(a_node("n3"))
    assert board.rows == 2
    assert board.row_of == {"n2": 1, "n3": 0}
    board.drop_node("n1")  # twice is once
    assert board.row_of == {"n2": 1, "n3": 0}


def test_a_row_used_again_remembers_nothing_of_the_node_before() -> None:
    board = a_board(a_node("n1", 16, cpu_milli=1000))
    board.take("n1", Occupant({0: Usage(GIB, slices=1)}, cpu_milli=700))
    board.drop_node("n1")
    board.release("n1", Occupant({0: Usage(GIB, slices=1)}, cpu_milli=700))
    board.set_node(a_node("n2", 16, cpu_milli=1000))
    assert board.room_cpu[0] == 1000
    assert board.room_memory[0, 0] == 16 * GIB


def test_a_booking_may_come_before_its_node() -> None:
    board = Board()
    board.take("later", _holding(4, slot=3))
    board.set_node(a_node("later", 16, 16, 16, 16))
    assert board.room_memory[0, 3] == 12 * GIB


def test_a_booking_on_a_card_that_no_node_has_is_kept_aside_and_counted_when_the_card_comes() -> None:
    """Otherwise an annotation that names card 127 would make the board that wide for all."""
    board = a_board(a_node("n1", 16))
    board.take("n1", _holding(4, slot=127))
    assert board.width == 1
    board.set_node(a_node("n2", *[16] * 128))
    board.set_node(a_node("n1", *[16] * 128))
    assert board.room_memory[0, 127] == 12 * GIB
    board.release("n1", _holding(4, slot=127))
    assert board.room_memory[0, 127] == 16 * GIB
    board = a_board(a_node("n1", 16))
    board.take("n1", _holding(4, slot=2))
    board.set_node(a_node("n2", 16, 16))
    assert board.width == 2, "the card after the last"
    board.set_node(a_node("n1", 16, 16, 16))
    assert (board.room_memory[0, 2], board.largest[0, 2]) == (12 * GIB, 0)
    board.take("n1", _holding(4, slot=9))
    board.release("n1", _holding(4, slot=9))
    board.set_node(a_node("n1", *[16] * 10))
    assert board.room_memory[0, 9] == 16 * GIB


def test_a_wider_node_widens_the_board() -> None:
    board = a_board(a_node("n1", 16))
    board.set_node(a_node("n2", *[24] * 8))
    assert board.width == 8
    assert board.room_memory[0].tolist() == [16 * GIB] + [CLOSED] * 7


def test_unknown_cpu_limits_nothing() -> None:
    board = a_board(a_node("n1"))
    board.take("n1", Occupant({}, cpu_milli=10**6))
    assert board.room_cpu[0] > 10**6


def test_false_numbers_do_not_overflow() -> None:
    """An annotation may say anything; a column has 64 bits."""
    board, most = a_board(a_node("n1", 16, cpu_milli=2**62, memory_mib=2**62)), 2**62
    for _ in range(4):
        board.take("n1", Occupant({0: Usage(most, most, most, 1)}, cpu_milli=most, memory_mib=most, parkable=True))
    assert board.usage("n1", 0) == Usage(4 * UNLIMITED, 4 * UNLIMITED, 4 * UNLIMITED, 4)
    assert (board.room_cpu[0], board.room_host[0]) == (-3 * UNLIMITED, -3 * UNLIMITED)
    assert board.largest[0, 0] == UNLIMITED
    board.set_node(Node("n1", (Card(0, 2**62, oversubscribe=2.0),), frozenset(Offer), pool_mib=2**62))
    assert (board.memory[0, 0], board.limit[0, 0], board.pool[0]) == (UNLIMITED,) * 3


def test_models_are_told_apart_and_online_and_offline_pods_counted() -> None:
    board = a_board(Node("n1", (Card(0, 1000), Card(1, 1000, model="A"), Card(2, 1000, model="B")), frozenset(Offer)))
    assert board.model[0].tolist() == [board.models[""], board.models["A"], board.models["B"]]
    assert len(set(board.models.values())) == 3
    for app_class in (AppClass.ONLINE, AppClass.OFFLINE, AppClass.OFFLINE, AppClass.NORMAL):
        board.take("n1", Occupant({1: Usage(1)}, app_class))
    assert (board.online[0].tolist(), board.offline[0].tolist()) == ([0, 1, 0], [0, 2, 0])


def test_usual_card_is_the_median() -> None:
    board = a_board(a_node("n1", 16, 16), a_node("n2", 80))
    assert board.usual_memory() == 16 * GIB
    board.set_node(a_node("n1", 80, 80))
    assert board.usual_memory() == 80 * GIB
    for name in ("n3", "n4", "n5"):
        board.set_node(a_node(name, 16))
    assert board.usual_memory() == 80 * GIB, "three of each: the larger"
    for at in range(5):
        board.drop_node(f"n{at + 1}")
    assert board.usual_memory() == Board().usual_memory() == 1


@given(st.lists(occupants(), max_size=6))
def test_booked_compute_of_a_card_is_that_of_its_usage(tenants: list[Occupant]) -> None:
    board = a_board(a_node("n1", 16, 24))
    for tenant in tenants:
        board.take("n1", tenant)
    found = board.booked_core(slice(0, 1), slice(0, 2)).tolist()
    assert found == [[board.usage("n1", slot).booked_milli for slot in (0, 1)]]


_STATES: list[tuple[Card, list[Usage], tuple[int, int, int, int, int]]] = [
    # (the card, who is on it, what is left: memory, core, greedy, slices, milli)
    (Card(0, 1000, max_slices=3), [], (1000, 1000, 1000, 3, 1000)),
    (Card(0, 1000, max_slices=3), [Usage(250, 100, 50, 1)], (750, 900, 950, 2, 750)),
    (Card(0, 1000, max_slices=3), [Usage(100, 250, 50, 1)] * 2, (800, 500, 900, 1, 500)),
    (Card(0, 1000, max_slices=3), [Usage(100, slices=4)], (900, 1000, 1000, 2, 900)),  # one Pod, four containers
    (Card(0, 1000, max_slices=3), [Usage(100)], (900, 1000, 1000, 3, 900)),
    (Card(0, 3000, max_slices=1), [Usage(1, slices=1)], (2999, 1000, 1000, 0, 999)),
    (Card(0, 1000, max_slices=3), [Usage(1100, 1200, 1300, 1)], (-100, -200, -300, 2, 0)),
    (Card(0, 1000, max_slices=3), [Usage(400, 300, 200, 1, 1)], (600, 700, 800, CLOSED, 0)),
    (Card(0, 1, max_slices=3), [], (1, 1000, 1000, 3, 1000)),
    (Card(0, 1000, max_slices=3, healthy=False), [], (CLOSED,) * 4 + (0,)),
    (Card(0, 1000, max_slices=3, withheld=MIG_MODE), [], (CLOSED,) * 4 + (0,)),
    (Card(0, 0, max_slices=3), [], (CLOSED,) * 4 + (0,)),
]


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(("card", "there", "left"), _STATES)
def test_what_is_left_of_a_card(
    card: Card, there: list[Usage], left: tuple[int, int, int, int, int], at_once: bool
) -> None:
    """Row by row, and of many rows at once."""
    board = Board()
    with board.together() if at_once else nullcontext():
        board.set_node(Node("n1", (card, Card(1, 500)), frozenset({Offer.ANY})))
        for use in there:
            board.take("n1", Occupant({0: use}))
    names = ("room_memory", "room_core", "room_greedy", "room_slices", "milli")
    assert tuple(int(getattr(board, name)[0, 0]) for name in names) == left
    is_open, milli = left[1] != CLOSED, left[4]
    assert board.cards[0] == 1 + is_open
    assert board.free[0] == 1000 + milli
    assert board.load[0] == 1000 - (1000 + milli) // (1 + is_open)
    assert board.left[0] == 500 + milli * card.memory_mib // 1000
    assert (board.clock, board.changed[0]) == ((1, 1) if at_once else (1 + len(there),) * 2)


@pytest.mark.parametrize("at_once", [False, True])
def test_nothing_is_left_of_a_node_that_is_taken_or_gone(at_once: bool) -> None:
    board = a_board(a_node("n1", 16), a_node("n2", 16), a_node("n3"))
    board.take("n2", _holding(1))
    clock = board.clock
    with board.together() if at_once else nullcontext():
        board.take("n1", Occupant({}, whole_node=True))
        board.drop_node("n2")
    assert board.room_memory[:3, 0].tolist() == [CLOSED, CLOSED, 16 * GIB]
    assert board.load[:3].tolist() == [1000, 1000, 0]
    assert board.cards[:3].tolist() == [0, 0, 1]
    assert (board.clock, board.changed[:3].tolist()) == (clock + 2, [clock + 1, clock + 2, 3])


@pytest.mark.parametrize("at_once", [False, True])
def test_room_of_cards_that_may_be_booked_beyond_their_memory(at_once: bool) -> None:
    def stretched(factor: float, pool: int) -> Node:
        cards = tuple(Card(at, 16384, oversubscribe=factor) for at in range(2))
        return Node("n1", cards, frozenset({Offer.ANY}), pool_mib=pool)

    board = Board()
    with board.together() if at_once else nullcontext():
        board.set_node(stretched(2.0, 10000))
        board.set_node(a_node("n2", 16))
        for name, usage in (("a", Usage(12000, slices=1)), ("b", Usage(8000, slices=1))):
            board.take("n1", Occupant({0: usage}, parkable=True, owner=name))
    assert board.pool_left[0] == 10000 - (20000 - 16384)
    assert board.room_memory[:2].tolist() == [[2848, 16384], [16384, CLOSED]]
    # 16384 + 16384 in all and 6384 left of the pool; 1024 of reserve, and the contexts of those that are parked
    assert board.extra[:2].tolist() == [[6384 - 2848, 0], [0, 0]]
    assert board.room_for(True, slice(0, 2)).tolist() == [[6384, 16384], [16384, CLOSED]]
    assert board.room_for(False, slice(0, 2)).tolist() == board.room_memory[:2].tolist()
    with board.together() if at_once else nullcontext():
        board.take("n1", Occupant({}, whole_node=True))
    assert (board.room_memory[0].tolist(), board.extra[0].tolist()) == ([CLOSED] * 2, [0, 0])
    board.release("n1", Occupant({}, whole_node=True))
    board.set_node(stretched(1.0, 10000))
    assert (board.pool[0], board.pool_left[0], board.extra[0].tolist()) == (0, 0, [0, 0])
    assert board.room_memory[0].tolist() == [-3616, 16384]
    assert board.elastic == set()


def test_pool_of_a_node_on_which_more_is_booked_than_there_is() -> None:
    """What runs, runs. Of a card that is gone nothing is in the pool."""
    cards = tuple(Card(at, 16384, oversubscribe=2.0) for at in range(2))
    board = a_board(Node("n1", cards, frozenset({Offer.ANY}), pool_mib=1000))
    board.take("n1", Occupant({0: Usage(10000, slices=1)}))
    board.take("n1", Occupant({0: Usage(8000, slices=1)}, parkable=True))
    assert board.pool_left[0] == 0
    assert board.room_for(False, slice(0, 1)).tolist() == [[16384 - 18000, 16384]]
    assert board.room_for(True, slice(0, 1)).tolist() == [[0, 16384]], "the one there has no room beside the other"
    assert beyond_cards(board, 0, {0: 300, 1: 100}) == 300
    assert beyond_cards(board, 0, {0: 300, 1: 16484}) == 400
    board.set_node(Node("n1", cards[1:], frozenset({Offer.ANY}), pool_mib=1000))
    assert board.pool_left[0] == 1000


def test_cpu_and_memory_of_the_host_are_counted_for_every_pod() -> None:
    board = a_board(a_node("n1", 16, cpu_milli=1000, memory_mib=2000))
    pod = Occupant({}, cpu_milli=300, memory_mib=700)
    board.take("n1", pod)
    assert (board.room_cpu[0], board.room_host[0], board.pods[0]) == (700, 1300, 1)
    board.set_node(a_node("n1", 16, cpu_milli=500, memory_mib=900))
    assert (board.room_cpu[0], board.room_host[0]) == (200, 200)
    board.take("n1", Occupant({}, whole_node=True, of_node=True))
    assert (board.pods[0], board.taken[0]) == (1, 1)
    board.release("n1", pod)
    assert (board.room_cpu[0], board.room_host[0], board.pods[0]) == (500, 900, 0)


@pytest.mark.parametrize("most", [0, 1, 2])
def test_largest_that_may_be_parked_is_known_also_of_cards_that_come_later(most: int) -> None:
    """A node with one card, a booking on another of it, and then the node with all of them."""
    board = a_board(a_node("n1", 16))
    for memory in (300, 200, 200)[: most + 1]:
        board.take("n1", Occupant({1: Usage(memory, slices=1)}, parkable=True))
    board.set_node(a_node("n1", 16, 16))
    assert board.largest[0, 1] == 300
    assert board.contexts[0, 1] == board.used_parkable[0, 1] == (300, 500, 700)[most]
    board.take("n1", Occupant({1: Usage(400, slices=1)}))  # stays
    board.release("n1", Occupant({1: Usage(300, slices=1)}, parkable=True))
    assert board.largest[0, 1] == (200 if most else 0)
    for _ in range(most):
        board.release("n1", Occupant({1: Usage(200, slices=1)}, parkable=True))
    assert board.largest[0, 1] == 0


def test_nodes_with_equal_cards_share_what_is_known_of_them_and_others_do_not() -> None:
    board = a_board(a_node("n1", 16, 24), a_node("n2", 16, 24), a_node("n3", 24, 16), a_node("n4", 16))
    board.set_node(a_node("n5", 16))
    assert board.memory[:5].tolist() == [[16 * GIB, 24 * GIB]] * 2 + [[24 * GIB, 16 * GIB]] + [[16 * GIB, 0]] * 2
    board.set_node(a_node("n6", 16, 24, 40))
    board.set_node(a_node("n7", 16, 24))
    assert board.memory[6].tolist() == [16 * GIB, 24 * GIB, 0]


def test_slots_without_a_card_have_nothing_and_remember_only_their_own_model() -> None:
    board = a_board(Node("n1", (Card(0, 1000), Card(1, 1000, model="A"), Card(2, 1000)), frozenset(Offer)))
    for name in ("n1", "n2"):
        board.set_node(
            Node(name, (Card(0, 1000, oversubscribe=1.0), Card(2, 1000, oversubscribe=2.0)), frozenset(Offer))
        )
    assert board.healthy[:2].tolist() == [[True, False, True]] * 2
    assert board.withheld[:2].tolist() == [[False] * 3] * 2
    assert board.limit[:2].tolist() == [[1000, 0, 2000]] * 2
    assert board.max_slices[:2, 1].tolist() == [0, 0]
    assert [board.models["A"], board.models[""]] == board.model[:2, 1].tolist()
    assert board.elastic == {0, 1}, "one card of them is enough"
    board.drop_node("n1")
    assert board.elastic == {1}


def test_board_without_cards_has_the_width_of_one() -> None:
    board = a_board(Node("n1", (), frozenset({Offer.ANY})))
    assert (board.width, board.cards[0], board.load[0]) == (1, 0, 1000)
    board.set_node(Node("n2", (Card(2, 1000),), frozenset({Offer.ANY})))
    assert board.width == 3


def test_names_of_cards_that_no_node_has_any_more_are_forgotten() -> None:
    """A node that gives its cards other names again and again neither fills our memory nor slows down every filter."""
    board = Board()
    board.set_node(Node("good", (Card(0, GIB, model="A100"), Card(1, GIB, model="T4")), frozenset({Offer.GPUSHARE})))
    for at in range(200):
        cards = tuple(Card(index, GIB, model=f"m-{at}-{index}") for index in range(50))
        board.set_node(Node("evil", cards, frozenset({Offer.GPUSHARE})))
    assert len(board.models) < 4200
    named = {number: name for name, number in board.models.items()}
    assert len(named) == len(board.models)
    assert [named[number] for number in board.model[board.row_of["good"], :2].tolist()] == ["A100", "T4"]
    evil = board.model[board.row_of["evil"], :50].tolist()
    assert [named[number] for number in evil] == [f"m-199-{index}" for index in range(50)]
