"""Who is next: the first of the queue, and those that take nothing from it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aliquot.model.claim import AppClass, Claim, ContainerClaim, Role, Slice
from aliquot.model.node import Node, Offer
from aliquot.model.reason import Reason
from aliquot.model.status.machine import RefusalStatus
from aliquot.placement.board import Board
from aliquot.placement.book import Ledger, occupant_of
from aliquot.placement.choose import POLICIES, Chooser
from aliquot.services.machine.queue import Queue, QueuedRequest
from aliquot.services.machine.requests import RunRequest
from kit.machines.machine import cards


class Hall:
    """A machine with a queue before it."""

    def __init__(self, count: int = 2, gib: int = 24, nodes: int = 1) -> None:
        board = Board()
        for name in ("here", "there")[:nodes]:
            board.set_node(Node(name, cards(count, gib), frozenset(Offer)))
        self.ledger = Ledger(board)
        self.queue = Queue(self.ledger, Chooser(board, POLICIES["binpack"]()))

    def wait(self, name: str, gib: int | None = None, **more: Any) -> QueuedRequest:
        ask = RunRequest((name,), memory_mib=None if gib is None else gib * 1024, **more)
        entry = QueuedRequest(ask.claim(name, name), ask, 1, 0, 0, 1, 0.0, lambda _: None)
        self.queue.add(entry)
        return entry

    def pod(self, name: str, *gib: int, together: bool = False) -> QueuedRequest:
        """One with a container for each amount."""
        containers = tuple(
            ContainerClaim(f"c{at}", at, Role.MAIN, Slice(memory_mib=amount * 1024)) for at, amount in enumerate(gib)
        )
        claim = Claim(name, "default", name, "qgpu", Offer.QGPU, containers, together=together)
        entry = QueuedRequest(claim, RunRequest((name,)), 1, 0, 0, 1, 0.0, lambda _: None)
        self.queue.add(entry)
        return entry

    def advance(self) -> list[str]:
        """Who starts, in order."""
        started = []
        while (found := self.queue.next()) is not None:
            entry, grant = found
            self.queue.remove(entry)
            self.ledger.confirm(entry.id, grant.node, occupant_of(entry.claim, grant))
            started.append(entry.name)
        return started

    def room(self) -> list[int]:
        return [int(room) // 1024 for room in self.ledger.board.room_memory[0]]


def test_queue_starts_fitting_requests_in_order() -> None:
    hall = Hall()
    for name in "abc":
        hall.wait(name, 12)
    assert hall.advance() == ["a", "b", "c"]
    assert hall.advance() == []


def test_queue_backfills_small_request_on_card_useless_to_head() -> None:
    hall = Hall()
    for name, gib in (("a", 20), ("b", 12)):
        hall.wait(name, gib)
    hall.advance()  # 4 and 12 are free
    hall.wait("big", 20)
    hall.wait("small", 4)
    assert hall.advance() == ["small"]
    assert hall.room() == [0, 12]


def test_queue_reserves_target_card_for_head() -> None:
    hall = Hall()
    for name, gib in (("a", 20), ("b", 12)):
        hall.wait(name, gib)
    hall.advance()
    hall.wait("big", 20)
    small = hall.wait("small", 8)
    assert hall.advance() == []
    assert hall.queue.position_of(small).kept_for == "big"
    hall.ledger.forget("b")
    assert hall.advance() == ["big"]


def test_queue_books_head_on_its_target_card() -> None:
    hall = Hall(count=1)
    hall.wait("a", 12)
    hall.advance()
    hall.wait("big", 16)
    hall.wait("small", 8)
    assert hall.advance() == []
    hall.ledger.forget("a")
    assert hall.advance() == ["big", "small"]


def test_queue_backfills_nothing_on_card_reserved_whole() -> None:
    hall = Hall(count=1)
    hall.wait("a", 4)
    hall.advance()
    hall.wait("whole")
    hall.wait("small", 1)
    assert hall.advance() == []


def test_queue_reserves_compute_like_memory() -> None:
    hall = Hall(count=1)
    hall.wait("a", 1, core=60)
    hall.advance()
    half = hall.wait("half", 1, core=50)
    hall.wait("rest", 1, core=40)
    hall.wait("no quota", 1)
    assert hall.advance() == ["no quota"]  # it takes no compute from the first, and memory there is
    assert hall.queue.position_of(half).refusals == [RefusalStatus(0, Reason.CORE, 500, 400)]


def test_queue_reserves_several_cards_for_head() -> None:
    hall = Hall(count=3)
    for name in "abc":
        hall.wait(name, 20)
    hall.advance()
    hall.ledger.forget("c")
    hall.wait("pair", 20, gpus=2)
    hall.wait("passer", 24)
    assert hall.advance() == []  # the free card is one of the pair's
    hall.ledger.forget("b")
    assert hall.advance() == ["pair"]


asks: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    gib=st.sampled_from([None, 1, 4, 8, 12, 20, 24]),
    core=st.sampled_from([None, 10, 50, 100]),
    gpus=st.integers(1, 2),
    app_class=st.sampled_from(list(AppClass)),
)


@given(st.lists(st.tuples(asks, st.integers(0, 5)), max_size=14))
def test_queue_backfill_never_delays_head(events: list[tuple[dict[str, Any], int]]) -> None:
    """As long as the first waits, what is free for it on the cards it is nearest to only grows by others leaving."""
    hall = Hall()
    running: list[str] = []
    for at, (ask, leaving) in enumerate(events):
        hall.wait(f"r{at}", **ask)
        first = next(iter(hall.queue))
        before = _fits_when_old_ones_leave(hall, first, running)
        started = hall.advance()
        if first in list(hall.queue):
            assert before <= _fits_when_old_ones_leave(hall, first, running)
        running += started
        if leaving < len(running):
            hall.ledger.forget(running.pop(leaving))
    for name in running:
        hall.ledger.forget(name)
    while len(hall.queue):  # everyone's turn comes
        started = hall.advance()
        assert started
        for name in started:
            hall.ledger.forget(name)


def _fits_when_old_ones_leave(hall: Hall, first: QueuedRequest, old: list[str]) -> bool:
    """Whether the first would fit if those left who run at this moment."""
    kept = {booking.uid: booking for booking in hall.ledger if booking.uid in old}
    for uid in kept:
        hall.ledger.forget(uid)
    fits = hall.queue._chooser.choose(first.claim) is not None
    for uid, booking in kept.items():
        hall.ledger.confirm(uid, booking.node, booking.occupant)
    return fits


def test_queue_reserves_on_nearest_node_only() -> None:
    hall = Hall(nodes=2)
    for name in "abc":
        hall.wait(name, 20)
    assert hall.advance() == ["a", "b", "c"]  # both cards here, one there
    hall.wait("big", 24, gpus=2)
    hall.wait("small", 4)
    hall.wait("medium", 20)
    # Nearest to two free cards is the node of which one is free: that one is kept, and small goes elsewhere.
    assert hall.advance() == ["small"]
    assert list(hall.queue.positions())[1][1].kept_for == "big"
    hall.ledger.forget("c")
    assert hall.advance() == ["big"]


def test_queue_position_names_node_of_card() -> None:
    hall = Hall(count=1, nodes=2)
    for name in "abc":
        hall.wait(name, 20)
    hall.advance()
    ((_, standing),) = hall.queue.positions()
    assert [(refusal.node, refusal.card, refusal.had) for refusal in standing.refusals] == [
        ("here", 0, 4096),
        ("there", 0, 4096),
    ]


def test_queue_backfills_past_multi_container_pod() -> None:
    hall = Hall()
    hall.wait("a", 20)
    hall.advance()
    hall.pod("pod", 20, 20)
    hall.wait("small", 4)
    hall.wait("medium", 8)
    assert hall.advance() == ["small"]  # beside a, where the Pod cannot use what is left
    hall.ledger.forget("a")
    hall.ledger.forget("small")
    assert hall.advance() == ["pod"]


def test_queue_reserves_one_card_for_containers_together() -> None:
    hall = Hall(count=2)
    hall.wait("a", 4)
    hall.wait("b", 24)
    hall.advance()
    hall.pod("pod", 12, 12, together=True)
    hall.wait("other", 10)
    assert hall.advance() == []  # the card with a on it is the nearest, and is kept
    hall.ledger.forget("a")
    assert hall.advance() == ["pod"]


def test_queue_keeps_position_after_restart() -> None:
    hall = Hall()
    late, early = hall.wait("late", 30), RunRequest(("early",), memory_mib=30 * 1024)
    late.since = 5.0
    hall.queue.add(QueuedRequest(early.claim("early", "early"), early, 1, 0, 0, 1, 4.0, lambda _: None))
    assert [entry.name for entry in hall.queue] == ["early", "late"]
