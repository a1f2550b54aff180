"""What is kept for a Pod whose victims are leaving: as much as is free, and never more."""

from __future__ import annotations

import pytest

from aliquot.model.claim import AppClass, Usage
from aliquot.model.device import Card
from aliquot.model.node import Node
from aliquot.placement.board import Board, Occupant
from aliquot.placement.book import Ledger
from aliquot.placement.preemption.reservations import Reservation, Reservations, free_part
from kit.values.builders import EVERY_OFFER, a_board

ALONE = Usage(16384, slices=1, exclusive=1)


def _board(max_slices: int | None = 3, factor: float = 1.0, healthy: bool = True) -> Board:
    cards = (
        Card(0, 16384, "GPU-0", max_slices=max_slices, oversubscribe=factor, healthy=healthy),
        Card(1, 16384, "GPU-1", max_slices=max_slices, oversubscribe=factor),
    )
    return a_board(Node("n1", cards, EVERY_OFFER, cpu_milli=1000, memory_mib=1024, pool_mib=1 << 20))


@pytest.mark.parametrize(
    ("there", "wanted", "kept"),
    [
        ([], Usage(8192, 500, 300, 1), Usage(8192, 500, 300, 1)),
        ([], Usage(20000, 1100, 1100, 3), Usage(16384, 1000, 1000, 1)),
        ([Usage(10000, 700, 800, 1)], Usage(8192, 500, 300, 1), Usage(6384, 300, 200, 1)),
        ([Usage(10000, 700, 800, 1)], Usage(100, 50, 30, 1), Usage(100, 50, 30, 1)),
        ([Usage(17000, 1100, 1100, 1)], Usage(8192, 500, 300, 1), Usage(0, 0, 0, 1)),  # overbooked: nothing is left
        ([Usage(1, slices=1)] * 2, Usage(1, slices=1), Usage(1, slices=1)),
        ([Usage(1, slices=1)] * 3, Usage(1, slices=1), Usage(1)),  # as many as may share it
        ([Usage(1, slices=1)], Usage(1), Usage(1)),
        ([], ALONE, ALONE),
        ([Usage(10000, 700, 800, 1)], ALONE, Usage(6384, 300, 0, 1)),  # so that nobody comes in beside it
        ([Usage(17000, 1100, 0, 1)], ALONE, Usage(0, 0, 0, 1)),
        ([Usage(1, slices=1)] * 2, ALONE, Usage(16382, 1000, 0, 1)),
        ([Usage(1, slices=1)] * 3, ALONE, Usage(16381, 1000)),
        ([ALONE], Usage(1, 1, 1, 1), Usage(0, 1000)),
        ([Usage(100, slices=1, exclusive=1)], Usage(1, slices=1), Usage(16284, 1000)),
    ],
)
def test_free_part_of_a_card(there: list[Usage], wanted: Usage, kept: Usage) -> None:
    board = _board()
    for usage in there:
        board.take("n1", Occupant({0: usage}))
    part = free_part(board, "n1", Occupant({0: wanted}, AppClass.ONLINE, "owner"))
    assert part == Occupant({0: kept}, AppClass.ONLINE, "owner")


def test_free_part_is_that_of_its_node() -> None:
    board = _board()
    board.set_node(Node("n2", (Card(0, 8192, "GPU-2"),), EVERY_OFFER))
    board.set_node(Node("n3", (Card(0, 4096, "GPU-3"),), EVERY_OFFER))
    wanted = Occupant({0: Usage(20000, slices=1)})
    kept = [free_part(board, node, wanted).usage[0].memory_mib for node in ("n1", "n2", "n3")]
    assert kept == [16384, 8192, 4096]


def test_free_part_has_no_card_of_which_nothing_is_free_or_that_is_not_there() -> None:
    wanted = {0: Usage(1), 1: Usage(2), 2: Usage(3), 3: Usage(4)}
    board = _board(healthy=False)
    assert free_part(board, "n1", Occupant(wanted)).usage == {1: Usage(2)}
    board.take("n1", Occupant({1: Usage(16384)}))
    assert free_part(board, "n1", Occupant(wanted)).usage == {}


@pytest.mark.parametrize(("parkable", "kept"), [(False, 4384), (True, 12000)])
def test_free_part_of_parkable_work_may_go_beyond_the_card(parkable: bool, kept: int) -> None:
    board = _board(factor=2.0)
    board.take("n1", Occupant({0: Usage(12000, slices=1)}, parkable=True))
    part = free_part(board, "n1", Occupant({0: Usage(12000, slices=1)}, parkable=parkable))
    assert (part.usage[0].memory_mib, part.parkable) == (kept, parkable)


@pytest.mark.parametrize(
    ("there", "cpu", "memory", "kept"),
    [
        (Occupant({}), 1000, 1024, (1000, 1024)),
        (Occupant({}), 1001, 1025, (1000, 1024)),
        (Occupant({}, cpu_milli=700, memory_mib=1000), 500, 500, (300, 24)),
        (Occupant({}, cpu_milli=1700, memory_mib=2000), 500, 500, (0, 0)),
    ],
)
def test_free_part_of_the_host(there: Occupant, cpu: int, memory: int, kept: tuple[int, int]) -> None:
    board = _board()
    board.take("n1", there)
    part = free_part(board, "n1", Occupant({}, cpu_milli=cpu, memory_mib=memory))
    assert (part.cpu_milli, part.memory_mib) == kept


@pytest.mark.parametrize(
    ("there", "wanted", "kept"),
    [
        (None, True, True),
        (None, False, False),
        (Occupant({}), True, False),
        (Occupant({}, whole_node=True, of_node=True), True, False),
    ],
)
def test_a_whole_node_is_kept_once_it_is_empty(there: Occupant | None, wanted: bool, kept: bool) -> None:
    board = _board()
    if there is not None:
        board.take("n1", there)
    part = free_part(board, "n1", Occupant({}, whole_node=wanted))
    assert (part.whole_node, part.of_node) == (kept, wanted)


def _reservation(uid: str, memory: int, priority: int = 0, node: str = "n1") -> Reservation:
    return Reservation(uid, node, Occupant({0: Usage(memory, slices=1)}), priority)


def test_room_is_kept_as_it_comes_free_for_the_most_important_first() -> None:
    ledger = Ledger(_board(max_slices=None))
    kept = Reservations(ledger)
    ledger.confirm("victim", "n1", Occupant({0: Usage(16000, slices=1)}))
    for uid, priority in (("low", 1), ("high", 2)):
        kept.keep(_reservation(uid, 10000, priority))
    assert [reservation.uid for reservation in kept.on("n1")] == ["high", "low"]
    assert kept.on("n2") == []
    assert (len(kept), "low" in kept, "other" in kept) == (2, True, False)
    assert _booked(ledger) == {"victim": 16000, "high": 384, "low": 0}
    assert kept.complete("high") is False
    ledger.forget("victim")
    kept.renew_all()
    assert _booked(ledger) == {"high": 10000, "low": 6384}
    assert [kept.complete(uid) for uid in ("high", "low", "other")] == [True, False, False]
    with kept.aside("high"):
        assert ledger.board.room_memory[0, 0] == 10000
    assert ledger.board.room_memory[0, 0] == 0
    ledger.confirm("placed", "n1", Occupant({1: Usage(384)}))
    for uid in ("other", "placed"):
        with kept.aside(uid):
            assert ledger.board.room_memory[0].tolist() == [0, 16000]
    ledger.forget("placed")
    kept.drop("high")
    kept.drop("other")
    kept.renew("n1")
    assert _booked(ledger) == {"low": 10000}
    assert kept.complete("low") is True
    kept.keep(_reservation("low", 5000))
    assert (len(kept), _booked(ledger)) == (1, {"low": 5000})


def _booked(ledger: Ledger) -> dict[str, int]:
    return {booking.uid: booking.occupant.usage.get(0, Usage()).memory_mib for booking in ledger}


def test_a_reservation_of_a_whole_node_is_complete_once_it_is_empty() -> None:
    ledger = Ledger(_board())
    kept = Reservations(ledger)
    ledger.confirm("victim", "n1", Occupant({}))
    kept.keep(Reservation("pod", "n1", Occupant({}, whole_node=True), 0))
    assert kept.complete("pod") is False
    ledger.forget("victim")
    kept.renew("n1")
    assert kept.complete("pod") is True


def test_nothing_is_kept_on_a_node_that_is_gone() -> None:
    ledger = Ledger(_board())
    kept = Reservations(ledger)
    kept.renew("n1")
    kept.keep(_reservation("a", 1000, 1))
    kept.keep(_reservation("b", 1000))
    kept.keep(_reservation("elsewhere", 1000, node="n2"))
    assert "elsewhere" in kept
    assert ledger.get("elsewhere") is None
    assert kept.complete("elsewhere") is False
    ledger.board.drop_node("n1")
    kept.renew("n1")
    assert len(ledger) == 0
    assert "n1" not in ledger.board.row_of
    kept.drop("a")
    assert len(kept) == 2
