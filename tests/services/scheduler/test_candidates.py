"""The short way of filter gives the same verdict as the long one, for any state of the cluster."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.model.claim import Claim
from aliquot.model.grant import Grant
from aliquot.placement.book import Ledger
from aliquot.placement.choose import POLICIES, Chooser
from aliquot.services.scheduler.candidates import Candidates, Filtered
from kit.values.boards import a_cluster, arriving, card_sizes
from kit.values.builders import a_board, a_claim, a_container, a_node, a_slice


@pytest.mark.parametrize("policy", POLICIES)
@given(sizes=card_sizes, claims=arriving(), data=st.data())
def test_short_filter_answers_the_best_of_all_nodes_that_the_long_one_finds(
    policy: str, sizes: list[list[int]], claims: list[Claim], data: st.DataObject
) -> None:
    board = a_cluster(sizes)
    ledger = Ledger(board)
    chooser, fresh = Chooser(board, POLICIES[policy]()), Chooser(board, POLICIES[policy]())
    short, long = Candidates(board, chooser, 1), Candidates(board, fresh, 0)
    everyone = [f"n{at}" for at in range(len(sizes))]
    for claim in claims:
        names = data.draw(st.lists(st.sampled_from([*everyone, "unknown"]), unique=True))
        found, every = short.filter(claim, names), _with_reasons(long, claim, names)
        assert len(found.fit) == min(1, len(every.fit))
        assert set(found.fit) <= set(every.fit)
        if not found.fit:  # no node fits: then every name comes with its reason
            assert (found.codes, found.unknown, found.likely) == (every.codes, every.unknown, None)
            continue
        _, best = long.rank(claim, names)
        assert best is not None
        assert found.likely is not None
        assert found.likely.node == found.fit[0] == best.node
        assert not found.codes
        again = short.filter(claim, names)  # it was refused elsewhere: more nodes, and the reasons of the others
        assert set(again.fit) <= set(every.fit)
        assert len(again.fit) == len(every.fit)
        assert (again.codes, again.unknown) == (every.codes, every.unknown)
        ledger.assume(claim, found.likely, 1.0)
        if data.draw(st.booleans()):
            ledger.forget(claim.uid)


def test_refusal_of_a_part_of_the_nodes_gives_the_same_reasons_for_every_part() -> None:
    """kube-scheduler looks at 120 of 250 nodes at a time, and counts reasons: equal counts are not written again."""
    board = a_board(*(a_node(f"n{at}", 8 if at % 7 else 16) for at in range(250)))
    ledger, chooser = Ledger(board), Chooser(board, POLICIES["binpack"]())
    for at in range(0, 250, 7):
        full = a_claim(a_container(a_slice(16)), name=f"full-{at}")
        assert not isinstance(ledger.assume(full, _on(chooser, full, f"n{at}"), 1.0), list)
    candidates = Candidates(board, chooser, 1)
    waiting = a_claim(a_container(a_slice(12)), name="waiting")
    everyone = [f"n{at}" for at in range(250)]
    first, second, every = (candidates.filter(waiting, names) for names in (everyone[:120], everyone[130:], everyone))
    assert not first.fit
    assert first.codes == second.codes == every.codes
    assert len(set(every.codes.values())) == 2
    few = candidates.filter(waiting, everyone[:40])  # its own checks left 40: it has looked at all nodes
    assert few.codes.keys() == set(everyone[:40])


def _with_reasons(candidates: Candidates, claim: Claim, names: list[str]) -> Filtered:
    """The answer to a Pod that comes again."""
    candidates.filter(claim, names)
    return candidates.filter(claim, names)


def _on(chooser: Chooser, claim: Claim, name: str) -> Grant:
    grant = chooser.seat(claim, chooser.board.row_of[name])
    assert grant is not None
    return grant


@pytest.mark.parametrize("policy", POLICIES)
def test_first_claim_of_all_gets_the_reason_of_containers_that_fit_only_one_by_one(policy: str) -> None:
    board = a_board(a_node("one", 8, 4), a_node("two", 8, 8))
    two_fives = a_claim(a_container(a_slice(5), name="a"), a_container(a_slice(5), name="b", index=1))
    found = _with_reasons(Candidates(board, Chooser(board, POLICIES[policy]()), 0), two_fives, ["one", "two"])
    assert found.fit == ["two"]
    assert set(found.codes) == {"one"}
