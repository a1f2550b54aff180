"""The board: columns of the whole cluster, changed one row at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aliquot.model.claim import AppClass, Usage
from aliquot.model.device import Card
from aliquot.model.node import Node, Offer
from aliquot.placement.board import CLOSED, Board, Occupant
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


def test_usual_card_is_the_median() -> None:
    board = a_board(a_node("n1", 16, 16), a_node("n2", 80))
    assert board.usual_memory() == 16 * GIB
    board.set_node(a_node("n1", 80, 80))
    assert board.usual_memory() == 80 * GIB
    board.drop_node("n2")
    board.drop_node("n1")
    assert board.usual_memory() == Board().usual_memory() == 1


@given(st.lists(occupants(), max_size=6))
def test_booked_compute_of_a_card_is_that_of_its_usage(tenants: list[Occupant]) -> None:
    board = a_board(a_node("n1", 16, 24))
    for tenant in tenants:
        board.take("n1", tenant)
    found = board.booked_core(slice(0, 1), slice(0, 2)).tolist()
    assert found == [[board.usage("n1", slot).booked_milli for slot in (0, 1)]]
