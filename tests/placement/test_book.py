"""Booking: what is assumed, confirmed and forgotten, and what each of them holds."""

from __future__ import annotations

from aliquot.model.grant import Grant
from aliquot.model.refusal import Reason
from aliquot.placement.board import Board
from aliquot.placement.book import Booking, Ledger, occupant_of
from kit.values.builders import GIB, a_board, a_node, asking, whole_cards, whole_node
from kit.values.ledgers import free_gib, grant_of, late_bookings, ledger_of


def test_assuming_twice_holds_the_cards_once() -> None:
    ledger, claim = ledger_of(16), asking(10)
    first = ledger.assume(claim, grant_of(claim), deadline=5.0)
    assert ledger.assume(claim, grant_of(claim), deadline=9.0) == first
    assert free_gib(ledger) == 6


def test_forgetting_says_whether_anything_was_booked() -> None:
    ledger, claim = ledger_of(16), asking(4)
    ledger.assume(claim, grant_of(claim), 1.0)
    assert [ledger.forget(claim.uid) for _ in range(2)] == [True, False]


def test_assuming_another_place_returns_present_booking() -> None:
    ledger, claim = ledger_of(16, 16), asking(10)
    first = ledger.assume(claim, grant_of(claim, card=0), deadline=5.0)
    assert ledger.assume(claim, grant_of(claim, card=1), deadline=5.0) == first
    assert free_gib(ledger, 1) == 16


def test_a_card_is_not_assumed_twice_over() -> None:
    ledger = ledger_of(16)
    first, second = asking(10, name="a"), asking(10, name="b")
    assert isinstance(ledger.assume(first, grant_of(first), 5.0), Booking)
    refusals = ledger.assume(second, grant_of(second), 5.0)
    assert isinstance(refusals, list)
    assert [(refusal.reason, refusal.wanted, refusal.had) for refusal in refusals] == [
        (Reason.MEMORY, 10 * GIB, 6 * GIB)
    ]
    assert len(ledger) == 1


def test_whatever_the_last_check_refuses_may_fit_later() -> None:
    ledger = Ledger(a_board(a_node("n1", 16, cpu_milli=1000, memory_mib=1024)))
    first = asking(10, name="first")
    ledger.assume(first, grant_of(first), 5.0)
    for claim, node, reason in (
        (asking(10, name="card"), "n1", Reason.MEMORY),
        (asking(1, name="cpu", cpu_milli=1001), "n1", Reason.CPU),
        (asking(1, name="host", memory_mib=1025), "n1", Reason.HOST_MEMORY),
        (asking(1, name="node"), "n2", Reason.NOT_READY),
    ):
        refused = ledger.assume(claim, grant_of(claim, node=node), 5.0)
        assert isinstance(refused, list)
        assert [(refusal.reason, refusal.never) for refusal in refused] == [(reason, False)]
    fits = asking(1, name="fits", cpu_milli=1000, memory_mib=1024)
    assert isinstance(ledger.assume(fits, grant_of(fits), 5.0), Booking)


def test_an_exclusive_card_and_a_shared_one_exclude_each_other() -> None:
    ledger, shared, alone = ledger_of(16), asking(1, name="shared"), whole_cards(1, name="alone")
    ledger.assume(shared, grant_of(shared), 5.0)
    refused = ledger.assume(alone, grant_of(alone), 5.0)
    assert isinstance(refused, list)
    assert refused[0].reason is Reason.EXCLUSIVE
    ledger.forget("shared")
    assert isinstance(ledger.assume(alone, grant_of(alone), 5.0), Booking)
    assert isinstance(ledger.assume(shared, grant_of(shared), 5.0), list)


def test_a_card_that_went_away_between_choice_and_booking_is_refused() -> None:
    ledger, claim = ledger_of(16, 16), asking(1)
    ledger.board.set_node(a_node("n1", 16))
    refused = ledger.assume(claim, grant_of(claim, card=1), 5.0)
    assert isinstance(refused, list)
    assert refused[0].reason is Reason.HEALTH
    ledger.board.drop_node("n1")
    refused = ledger.assume(claim, grant_of(claim), 5.0)
    assert isinstance(refused, list)
    assert refused[0].reason is Reason.NOT_READY


def test_a_whole_node_is_not_assumed_over_others() -> None:
    ledger, one, all_of_it = ledger_of(16), asking(1, name="one"), whole_node("all")
    ledger.assume(one, grant_of(one), 5.0)
    grant = Grant("all", "n1", grant_of(whole_cards(1)).containers, whole_node=True)
    refused = ledger.assume(all_of_it, grant, 5.0)
    assert isinstance(refused, list)
    assert refused[0].reason is Reason.WHOLE_NODE


def test_an_assumption_is_late_after_its_deadline_and_forgetting_it_frees_the_card() -> None:
    ledger, claim = ledger_of(16), asking(10)
    ledger.assume(claim, grant_of(claim), deadline=5.0)
    assert late_bookings(ledger, 4.9) == set()
    assert late_bookings(ledger, 5.0) == {"pod"}
    ledger.forget("pod")
    assert free_gib(ledger) == 16


def test_a_confirmed_booking_is_never_late() -> None:
    ledger, claim = ledger_of(16), asking(10)
    ledger.assume(claim, grant_of(claim), deadline=5.0)
    ledger.confirm(claim.uid, "n1", occupant_of(claim, grant_of(claim)))
    assert late_bookings(ledger, 1e9) == set()
    assert free_gib(ledger) == 6


def test_confirm_replaces_assumed_place() -> None:
    ledger, claim = ledger_of(16, 16), asking(10)
    ledger.assume(claim, grant_of(claim, card=0), deadline=5.0)
    ledger.confirm(claim.uid, "n1", occupant_of(claim, grant_of(claim, card=1)))
    assert (free_gib(ledger, 0), free_gib(ledger, 1)) == (16, 6)


def test_overbooked_confirmation_is_counted_and_released() -> None:
    ledger = ledger_of(16)
    for name in ("a", "b"):
        claim = asking(10, name=name)
        ledger.confirm(claim.uid, "n1", occupant_of(claim, grant_of(claim)))
    assert free_gib(ledger) == -4
    assert isinstance(ledger.assume(asking(1, name="c"), grant_of(asking(1, name="c")), 5.0), list)
    assert ledger.forget("a")
    assert ledger.forget("b")
    assert not ledger.forget("b")
    assert free_gib(ledger) == 16


def test_a_terminating_pod_keeps_its_cards_until_it_is_gone() -> None:
    """Its object is still there, so it is confirmed again with every event; only its absence frees the cards."""
    ledger, claim = ledger_of(16), asking(10)
    for _ in range(3):
        ledger.confirm(claim.uid, "n1", occupant_of(claim, grant_of(claim)))
    assert free_gib(ledger) == 6
    ledger.forget(claim.uid)
    assert free_gib(ledger) == 16


def test_an_empty_ledger_leaves_an_empty_board() -> None:
    board = Board()
    ledger = Ledger(board)
    claim = asking(4)
    ledger.confirm(claim.uid, "unknown", occupant_of(claim, grant_of(claim, node="unknown")))
    ledger.forget(claim.uid)
    assert board.row_of == {}
