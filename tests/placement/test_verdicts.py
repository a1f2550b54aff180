"""Verdicts: one reason per node for kube-scheduler, and whether waiting helps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.model.claim import Claim, Usage
from aliquot.model.device import Card
from aliquot.model.node import Node, Offer
from aliquot.model.refusal import Reason, Refusal
from aliquot.placement.board import Board, Occupant
from aliquot.placement.choose import POLICIES, Chooser
from aliquot.placement.demand import demand_of
from aliquot.placement.fit import fits
from aliquot.placement.verdicts import FITS, code_of, verdict_of, verdicts
from aliquot.wording.refusals import waiting_helps
from kit.values.boards import Change, boards, changes, claims
from kit.values.builders import (
    GIB,
    a_board,
    a_claim,
    a_container,
    a_node,
    a_slice,
    asking,
    online,
    whole_cards,
    whole_node,
)


def _verdict(board: Board, claim: Claim, node: str = "n1") -> tuple[Reason, bool] | None:
    code = int(Chooser(board, POLICIES["binpack"]()).why_not(claim)[board.row_of[node]])
    return None if code == FITS else verdict_of(code)


def _busy(memory_gib: int = 0, *, node: Node | None = None, core: int = 0, exclusive: int = 0) -> Board:
    board = a_board(node or a_node("n1", 16))
    board.take("n1", Occupant({0: Usage(memory_gib * GIB, 10 * core, slices=1, exclusive=exclusive)}))
    return board


def _short_of_host(node: Node) -> Board:
    board = a_board(node)
    board.take("n1", Occupant({0: Usage(9 * GIB)}, cpu_milli=50, memory_mib=50))
    return board


_TWO_BUSY = a_node("n1", 16, 16, cpu_milli=100)


TWO_FIVES = a_claim(a_container(a_slice(5), name="a"), a_container(a_slice(5), name="b", index=1))
QGPU_ONLY = a_node("n1", 16, offers=frozenset({Offer.QGPU}))
SICK = Node("n1", (Card(0, 16 * GIB, healthy=False),), frozenset(Offer))


@pytest.mark.parametrize(
    ("board", "claim", "verdict"),
    [
        (a_board(a_node()), asking(4), None),
        (_busy(14), asking(4), (Reason.MEMORY, False)),
        (a_board(a_node()), asking(24), (Reason.MEMORY, True)),
        (_busy(1, core=90), asking(1, 20), (Reason.CORE, False)),
        (_busy(1, exclusive=1), asking(1), (Reason.EXCLUSIVE, False)),
        (_busy(1), whole_cards(1), (Reason.EXCLUSIVE, False)),
        (a_board(a_node()), whole_cards(2), (Reason.CARDS, True)),
        (_busy(1, node=a_node("n1", 16, 16)), whole_cards(2), (Reason.CARDS, False)),
        (a_board(Node("n1", (), frozenset(Offer))), asking(1), (Reason.CARDS, True)),
        (a_board(SICK), asking(1), (Reason.HEALTH, False)),
        (_busy(1), whole_node(), (Reason.WHOLE_NODE, False)),
        (a_board(QGPU_ONLY), asking(1, offer=Offer.GPUSHARE), (Reason.MODE, True)),
        (a_board(QGPU_ONLY), online(1), (Reason.MIXED, True)),
        (a_board(a_node("n1", 16, cpu_milli=100)), asking(24, cpu_milli=200), (Reason.CPU, True)),
        (_busy(14, node=a_node("n1", 16, 4)), asking(8), (Reason.MEMORY, False)),
        (a_board(a_node("n1", 8)), TWO_FIVES, (Reason.CONTAINERS, False)),
        (_short_of_host(a_node("n1", 16, cpu_milli=100)), asking(24, cpu_milli=100), (Reason.MEMORY, True)),
        (_short_of_host(a_node("n1", 16, memory_mib=100)), asking(24, memory_mib=100), (Reason.MEMORY, True)),
        (_short_of_host(a_node("n1", 16, cpu_milli=100)), asking(1, 110, cpu_milli=100), (Reason.CORE, True)),
        (_short_of_host(a_node("n1", 16, cpu_milli=100)), asking(1, count=2, cpu_milli=100), (Reason.CARDS, True)),
        (_short_of_host(_TWO_BUSY), asking(8, count=2, cpu_milli=100), (Reason.CPU, False)),
        (_busy(14, node=a_node("n1", 16, 4, 4)), asking(8), (Reason.MEMORY, False)),
        (_busy(1, core=90, node=a_node("n1", 16, 4, 4)), asking(8, 20), (Reason.CORE, False)),
    ],
    ids=[
        "it fits",
        "memory taken",
        "card too small",
        "compute taken",
        "held whole by another",
        "shared by others",
        "fewer cards than wanted",
        "fewer cards free than wanted",
        "no card",
        "sick",
        "others on the node",
        "another dialect",
        "no mixing",
        "what the node lacks over what its cards lack",
        "one card of two could do later",
        "each container alone would fit",
        "too small, and no CPU now",
        "too small, and no host memory now",
        "never so much compute, and no CPU now",
        "too few cards, and no CPU now",
        "no CPU now, and too few cards now",
        "one card of three could do later",
        "one card of three could do later, with compute",
    ],
)
def test_verdict(board: Board, claim: Claim, verdict: tuple[Reason, bool] | None) -> None:
    assert _verdict(board, claim) == verdict


def test_the_reason_of_most_cards_decides() -> None:
    node = Node("n1", (*(Card(at, 16 * GIB, healthy=False) for at in range(3)), Card(3, 16 * GIB)), frozenset(Offer))
    board = a_board(node)
    board.take("n1", Occupant({3: Usage(14 * GIB, slices=1)}))
    assert _verdict(board, asking(4)) == (Reason.HEALTH, False)


def test_a_row_whose_node_is_gone_has_no_reason_to_give() -> None:
    board = _busy(14)
    board.drop_node("n1")
    for claim in (asking(4), TWO_FIVES, whole_node()):
        assert _verdict(board, claim) is None


def test_every_reason_has_a_number_of_its_own() -> None:
    codes = {code_of(reason, never): (reason, never) for reason in Reason for never in (False, True)}
    assert len(codes) == 2 * len(Reason)
    assert all(verdict_of(code) == meant for code, meant in codes.items())
    assert FITS not in codes


# --- on any board ----------------------------------------------------------------------------------------------------


@given(boards(), claims())
def test_a_row_has_a_verdict_exactly_when_its_node_does_not_fit(board: Board, claim: Claim) -> None:
    demand, rows = demand_of(claim), np.arange(board.rows)
    fitting, _ = fits(board, demand, rows)
    assert ((verdicts(board, demand, rows) == FITS) == (fitting | ~board.present[rows])).all()


@given(boards(), claims())
def test_never_verdict_matches_refusals(board: Board, claim: Claim) -> None:
    demand, rows = demand_of(claim), np.arange(board.rows)
    chooser = Chooser(board, POLICIES["binpack"]())
    refusals = chooser.refusals(claim)
    of_node: dict[str, list[Refusal]] = {}
    for refusal in refusals:
        if refusal.reason is not Reason.CONTAINERS:
            of_node.setdefault(refusal.node, []).append(refusal)
    for row, code in zip(rows.tolist(), verdicts(board, demand, rows).tolist(), strict=True):
        name = board.names[row]
        if name in of_node:
            reason, never = verdict_of(code)
            assert never != waiting_helps(of_node[name])
            assert reason in {refusal.reason for refusal in refusals if refusal.node == name and refusal.never == never}
        elif code != FITS:
            assert verdict_of(code) == (Reason.CONTAINERS, False)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=30)
@given(board=boards(), claim=claims())
def test_filter_and_verdicts_never_contradict_each_other(policy: str, board: Board, claim: Claim) -> None:
    chooser = Chooser(board, POLICIES[policy]())
    fitting = set(chooser.fitting(claim).tolist())
    why = chooser.why_not(claim)
    here = np.flatnonzero(board.present[: board.rows]).tolist()
    assert all(row not in fitting or why[row] == FITS for row in here)
    if chooser.exact(claim):  # of the others a search decides, and what it found is not always kept
        assert all(row in fitting or why[row] != FITS for row in here)
        assert fitting == set(np.flatnonzero(np.isfinite(chooser.scores(claim))).tolist())


@settings(max_examples=50)
@given(st.lists(st.tuples(changes, claims()), max_size=12), claims())
def test_cached_verdicts_equal_fresh_verdicts(steps: list[tuple[Change, Claim]], often: Claim) -> None:
    board = Board()
    chooser = Chooser(board, POLICIES["binpack"]())
    held: list[tuple[str, Occupant]] = []
    for change, now_and_then in steps:
        change(board, held)
        for claim in (often, now_and_then):
            chooser.fitting(claim)
            fresh = Chooser(board, POLICIES["binpack"]())
            fresh.fitting(claim)
            assert chooser.why_not(claim).tolist() == fresh.why_not(claim).tolist()
            assert chooser.scores(claim).tolist() == fresh.scores(claim).tolist()


def _everything(board: Board) -> dict[str, object]:
    """All that a board tells, but for when each row changed."""
    fields: dict[str, object] = {
        name: value[: board.rows].tolist()
        for name, value in vars(board).items()
        if isinstance(value, np.ndarray) and name != "changed"
    }
    fields |= {
        name: getattr(board, name) for name in ("rows", "width", "names", "nodes", "row_of", "models", "replicas")
    }
    return fields | {"booked": board._booked, "beyond": board._beyond, "spare": board._spare}


@settings(max_examples=100)
@given(st.lists(changes, max_size=10), st.lists(changes, max_size=10), claims())
def test_batched_changes_equal_single_changes(before: list[Change], together: list[Change], claim: Claim) -> None:
    one, other = Board(), Board()
    holds: tuple[list[tuple[str, Occupant]], ...] = ([], [])
    kept = Chooser(other, POLICIES["binpack"]())
    for board, held in zip((one, other), holds, strict=True):
        for change in before:
            change(board, held)
    kept.why_not(claim)
    for change in together:
        change(one, holds[0])
    with other.together(), other.together():
        for change in together:
            change(other, holds[1])
    assert _everything(one) == _everything(other)
    fresh = Chooser(other, POLICIES["binpack"]())
    assert kept.why_not(claim).tolist() == fresh.why_not(claim).tolist()
    assert kept.scores(claim).tolist() == fresh.scores(claim).tolist()


def test_interrupted_batch_leaves_board_consistent() -> None:
    board = a_board(a_node("n1", 16))

    def breaks_off() -> None:
        with board.together():
            board.take("n1", Occupant({0: Usage(10 * GIB, slices=1)}))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        breaks_off()
    assert board.room_memory[0, 0] == 6 * GIB
