"""What one card lacks for a usage: exactly at the limit, and one unit beyond it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from aliquot.model.claim import AppClass, Usage
from aliquot.model.device import CORE_MILLI, Card
from aliquot.model.node import Node
from aliquot.model.refusal import Reason
from aliquot.placement.board import Board, Occupant
from aliquot.placement.fit import short_of
from kit.values.builders import EVERY_OFFER, GIB

MOST = 7  # tenants
CARD = Card(0, 16 * GIB, "GPU-0", max_slices=MOST)
FIELDS = {Reason.MEMORY: "memory_mib", Reason.CORE: "core_milli", Reason.GREEDY: "greedy_milli"}
SIZES = {Reason.MEMORY: CARD.memory_mib, Reason.CORE: CORE_MILLI, Reason.GREEDY: CORE_MILLI}


def found(held: Usage, use: Usage, *, tenants: int = 1, limited: bool = True) -> list[tuple[Reason, int, int]]:
    board = Board()
    board.set_node(Node("n1", (CARD,), EVERY_OFFER))
    for _ in range(tenants if held != Usage() else 0):
        board.take("n1", Occupant({0: held}, AppClass.NORMAL))
    return short_of(board, board.row_of["n1"], 0, use, limited=limited)


@pytest.mark.parametrize("reason", FIELDS)
@given(data=st.data())
def test_what_is_free_fits_and_one_more_does_not(reason: Reason, data: st.DataObject) -> None:
    taken = data.draw(st.integers(0, SIZES[reason] - 1))
    free = SIZES[reason] - taken
    held = replace(Usage(slices=1), **{FIELDS[reason]: taken}) if taken else Usage()
    assert found(held, replace(Usage(slices=1), **{FIELDS[reason]: free})) == []
    assert found(held, replace(Usage(slices=1), **{FIELDS[reason]: free + 1})) == [(reason, free + 1, free)]


@pytest.mark.parametrize("tenants", [1, 2, 5])
def test_exclusive_use_counts_everyone_on_the_card(tenants: int) -> None:
    """Also those that hold no memory of it."""
    whole = Usage(CARD.memory_mib, CORE_MILLI, 0, 1, 1)
    assert found(Usage(), whole) == []
    assert found(Usage(slices=1), whole, tenants=tenants) == [(Reason.EXCLUSIVE, 0, tenants)]
    assert found(whole, Usage(slices=1)) == [(Reason.EXCLUSIVE, 0, 1)]
    assert found(Usage(), replace(whole, slices=2)) == [(Reason.EXCLUSIVE, 0, 1)]


def test_number_of_tenants_counts_where_it_is_limited() -> None:
    one = Usage(slices=1)
    assert found(one, one, tenants=MOST - 1) == []
    assert found(one, one, tenants=MOST) == [(Reason.SLICES, 1, 0)]
    assert found(one, one, tenants=MOST, limited=False) == []
    assert found(one, Usage(), tenants=MOST) == []


def test_nothing_is_found_for_a_card_that_does_not_exist() -> None:
    board = Board()
    board.set_node(Node("n1", (CARD,), EVERY_OFFER))
    for slot in (board.width - 1, board.width):
        if slot:
            assert short_of(board, 0, slot, Usage(), limited=False) == [(Reason.HEALTH, 1, 0)]
