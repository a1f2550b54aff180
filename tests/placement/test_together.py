"""Members of a group go to one card while it has room, only to nodes that run groups, and book their own memory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from aliquot.model.claim import AppClass, Claim, Usage
from aliquot.model.grant import Grant
from aliquot.model.node import Order
from aliquot.model.refusal import Reason, Refusal
from aliquot.placement.board import Board, Occupant
from aliquot.placement.book import Booking, Ledger
from aliquot.placement.choose import POLICIES, Chooser
from aliquot.wording import reasons
from kit.values.builders import GIB, a_board, a_node, asking


def member(name: str, memory_gib: int = 2, **more: Any) -> Claim:
    return asking(memory_gib, name=name, **{"group": "team", "user": 1000, **more})


def place(board: Board, chooser: Chooser, ledger: Ledger, claim: Claim) -> tuple[str, int] | None:
    grant = chooser.choose(claim)
    if grant is None:
        return None
    assert isinstance(ledger.assume(claim, grant, 1.0), Booking)
    return _card(grant)


def _card(grant: Grant) -> tuple[str, int]:
    return grant.node, grant.containers[0].shares[0].card


def two_nodes() -> Board:
    return a_board(a_node("n1", 8, 8, together=True), a_node("n2", 8, 8, together=True))


@pytest.mark.parametrize("policy", POLICIES)
def test_members_share_a_card_while_it_has_room_under_every_policy(policy: str) -> None:
    board = two_nodes()
    ledger, chooser = Ledger(board), Chooser(board, POLICIES[policy]())
    first = [place(board, chooser, ledger, member(f"p{at}", owner="Deployment/ml/x")) for at in range(4)]
    assert len(set(first)) == 1, "four of 2 GiB fill a card of 8 GiB"
    second = [place(board, chooser, ledger, member(f"q{at}", owner="Deployment/ml/x")) for at in range(4)]
    assert len(set(second)) == 1
    assert set(second) != set(first), "each books its own memory: the next go to another card"


@pytest.mark.parametrize(
    "other", [{"group": "others"}, {"user": 7}, {"app_class": AppClass.ONLINE}, {"namespace": "b"}]
)
def test_another_group_user_class_or_namespace_is_another_group(other: dict[str, Any]) -> None:
    board = two_nodes()
    ledger, chooser = Ledger(board), Chooser(board, POLICIES["spread"]())
    place(board, chooser, ledger, member("a"))
    assert replace(member("b"), **other).group_key not in board.members


def test_card_of_the_group_wins_over_a_node_s_own_order_of_cards() -> None:
    board = a_board(a_node("n1", 8, 8, together=True, card_order=Order.SPREAD))
    ledger, chooser = Ledger(board), Chooser(board, POLICIES["binpack"]())
    cards = {place(board, chooser, ledger, member(f"p{at}")) for at in range(3)}
    assert len(cards) == 1
    grant = chooser.seat(member("s"), 0)
    assert grant is not None
    assert {_card(grant)} == cards


@pytest.mark.parametrize(("policy", "card"), [("binpack", 1), ("spread", 0)])
def test_of_several_cards_of_its_group_a_member_gets_the_one_that_the_policy_prefers(policy: str, card: int) -> None:
    board = a_board(a_node("n1", 8, 8, 8, together=True))
    for at, size in enumerate((1, 2)):
        usage = {at: Usage(size * GIB, slices=1)}
        board.take("n1", Occupant(usage, group=member("x").group_key))
    chooser = Chooser(board, POLICIES[policy]())
    grants = [chooser.choose(member("a")), chooser.seat(member("a"), 0)]
    assert [grant and _card(grant) for grant in grants] == [("n1", card)] * 2


def test_member_that_ended_attracts_no_other() -> None:
    board = two_nodes()
    ledger, chooser = Ledger(board), Chooser(board, POLICIES["spread"]())
    claim = member("a")
    place(board, chooser, ledger, claim)
    ledger.forget(claim.uid)
    assert board.members == {}


def test_node_that_runs_no_groups_refuses_a_member_and_names_the_chart_value() -> None:
    board = a_board(a_node("n1", 8))
    chooser = Chooser(board, POLICIES["binpack"]())
    assert chooser.choose(member("a")) is None
    assert chooser.refusals(member("a")) == [Refusal("n1", None, Reason.TOGETHER, 1, 0, never=True)]
    assert "agent.together.enabled=true" in reasons.short(Reason.TOGETHER, reasons.Facts())
    assert chooser.choose(asking(2)) is not None


@given(
    st.lists(st.tuples(st.sampled_from(["", "a", "b"]), st.integers(1, 8)), max_size=12), st.sampled_from([*POLICIES])
)
def test_group_never_books_a_card_beyond_its_memory(coming: list[tuple[str, int]], policy: str) -> None:
    board = two_nodes()
    ledger, chooser = Ledger(board), Chooser(board, POLICIES[policy]())
    for at, (group, size) in enumerate(coming):
        fits = chooser.choose(asking(size, name=f"alone{at}")) is not None
        assert (place(board, chooser, ledger, member(f"p{at}", size, group=group)) is not None) == fits
    assert (board.used_memory <= board.memory).all()
