"""dense keeps room for Pods of several whole cards, while there is little of it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.model.claim import Claim, Slice, Usage
from aliquot.model.node import Offer
from aliquot.placement.board import Board, Occupant
from aliquot.placement.choose import POLICIES, Chooser
from aliquot.placement.demand import demand_of
from aliquot.placement.policies import reserve
from aliquot.placement.policies.packing import dense
from aliquot.placement.policies.reserve import Reserve
from aliquot.placement.policies.workload import Shape
from aliquot.sim.churn import churn, come_and_go
from aliquot.sim.trace import generate
from kit.values.builders import a_claim, a_container, a_node, whole_node

LARGE = Shape(4, 1000, 40_000)
MIX = [(Shape(1, 1000, 4_000), 90), (LARGE, 10)]


def _claim(milli: int, cards: int = 1, *, cores: int = 4, name: str = "p") -> Claim:
    return a_claim(a_container(Slice(core_milli=milli), cards), name=name, offer=Offer.ANY, cpu_milli=1000 * cores)


def _board(*used: int, cores: int = 64) -> Board:
    """Nodes of four cards, the first so many of each used."""
    board = Board()
    for at, cards in enumerate(used):
        board.set_node(a_node(f"n{at}", *[16] * 4, offers=frozenset({Offer.ANY}), cpu_milli=1000 * cores))
        if cards:
            board.take(f"n{at}", Occupant({card: Usage(core_milli=1000) for card in range(cards)}))
    return board


def _dues(board: Board, claim: Claim) -> dict[int, float]:
    found = Reserve(board, MIX).dues(demand_of(claim), np.zeros(board.rows, np.int64) + 3)
    return {} if found is None else dict(zip(found[0].tolist(), found[1].tolist(), strict=True))


def test_a_small_pod_pays_for_breaking_a_node_that_a_large_one_needs() -> None:
    assert _dues(_board(0, 1, 3), _claim(1000)) == {0: 4000.0}


def test_a_pod_pays_for_cpu_that_a_large_one_needs() -> None:
    assert _dues(_board(0, 1), a_claim(offer=Offer.ANY, cpu_milli=30_000)) == {0: 4000.0}
    assert _dues(_board(0, 1), a_claim(offer=Offer.ANY, cpu_milli=20_000)) == {0: 0.0}


def test_a_node_without_cpu_for_a_large_pod_is_no_place_for_it() -> None:
    assert _dues(_board(0, 1, cores=32), _claim(1000)) == {}


def test_nothing_is_kept_where_places_abound() -> None:
    assert _dues(_board(*[0] * 40), _claim(1000)) == {}


@pytest.mark.parametrize(("nodes", "rows"), [(4, 4), (5, 0)])
def test_kind_is_short_below_four_standard_deviations_of_its_pods_in_a_full_cluster(nodes: int, rows: int) -> None:
    """One Pod in 13 cards: four nodes have 16 cards and 1.2 Pods, four deviations are 4.4; of five they are 4.96."""
    assert len(_dues(_board(*[0] * nodes), _claim(1000))) == rows


@pytest.mark.parametrize(("card", "dues"), [(3, 2000.0), (1, 0.0)])
def test_pod_of_one_card_breaks_a_place_only_on_a_whole_card(card: int, dues: float) -> None:
    board = _board(1)
    board.take("n0", Occupant({1: Usage(core_milli=500)}))
    kept = Reserve(board, [(Shape(1, 1000, 1_000), 90), (Shape(2, 1000, 1_000), 10)])
    found = kept.dues(demand_of(_claim(500)), np.array([card]))
    assert found is not None
    assert [part.tolist() for part in found] == [[0], [dues]]


def test_nothing_is_kept_where_cpu_runs_out_before_gpu() -> None:
    """MIX asks for some 6 cores a card; with the CPU-heavy Pods for 17, of the 16 that the nodes have."""
    board = _board(0, 1)
    taking = (demand_of(_claim(1000)), np.full(board.rows, 3))
    assert Reserve(board, MIX).dues(*taking) is not None
    assert Reserve(board, [*MIX, (Shape(0, 0, 30_000), 50)]).dues(*taking) is None
    board.take("n1", Occupant({}, cpu_milli=64_000))
    assert Reserve(board, MIX).dues(*taking) is not None, "9 cores are left for each free card"
    board.take("n0", Occupant({}, cpu_milli=24_000))
    assert Reserve(board, MIX).dues(*taking) is None, "6 cores are left for each free card"


@pytest.mark.parametrize(("cpu", "kept"), [(4000, True), (3999, False)])
def test_room_is_kept_while_there_is_cpu_to_the_last_milli(
    monkeypatch: pytest.MonkeyPatch, cpu: int, kept: bool
) -> None:
    """As much as the free cards need. What another node has too little is not taken off."""
    monkeypatch.setattr(reserve, "_CPU_TO_SPARE", 1.0)
    board = _board(0, 4)
    board.take("n0", Occupant({}, cpu_milli=64_000 - cpu))
    board.take("n1", Occupant({}, cpu_milli=65_000))
    found = Reserve(board, [(Shape(2, 1000, 2_000), 1)]).dues(demand_of(_claim(1000, cores=0)), np.zeros(2, np.int64))
    assert (found is not None) is kept


def test_nothing_is_kept_for_large_pods_without_demand() -> None:
    board = _board(0, 1)
    assert Reserve(board, [(Shape(1, 1000, 0), 5)]).dues(demand_of(_claim(1000)), np.zeros(2, np.int64)) is None


def test_dense_sends_small_pods_to_nodes_that_are_broken_already() -> None:
    board = _board(*[0] * 4, *[1] * 4)
    chooser = Chooser(board, POLICIES["dense"]())
    for at in range(100):
        chooser.observe(_claim(1000, 4, cores=40, name=f"l{at}") if at % 10 == 0 else _claim(1000, name=f"s{at}"))
    chooser.learn()
    for at in range(12):
        claim = _claim(1000, name=f"p{at}")
        grant = chooser.choose(claim)
        assert grant is not None
        assert int(grant.node[1:]) >= 4
        board.take(grant.node, Occupant({share.card: Usage(core_milli=1000) for share in grant.containers[0].shares}))
    last = chooser.choose(_claim(1000, name="last"))
    assert last is not None, "kept room is not refused to a Pod that fits nowhere else"


def test_score_of_a_node_includes_what_a_small_pod_pays_for_a_large_one() -> None:
    """Four cards of 1,000 milli, in steps of ten."""
    board, scores = _board(0, 1), []
    keeping, other = dense(), dense()
    other._keeps_room = False
    for policy in (keeping, other):
        chooser = Chooser(board, policy)
        for at in range(10):
            chooser.observe(_claim(1000, 1 if at else 4, cores=4 if at else 40, name=f"p{at}"))
        chooser.learn()
        scores.append(chooser.scores(_claim(500)))
    assert (scores[0] - scores[1]).tolist() == [400.0, 0.0]


def test_scores_with_dues_are_those_of_the_last_lesson() -> None:
    board, claim = _board(0, 1), _claim(500)
    chooser = Chooser(board, dense())
    for cards, times in ((4, 10), (1, 90), (2, 900)):
        for at in range(times):
            chooser.observe(_claim(1000, cards, name=f"p{at}"))
        chooser.learn()
        assert chooser.scores(claim).tolist() == Chooser(board, chooser.policy).scores(claim).tolist()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), max_size=40))
def test_places_follow_the_board(changes: list[tuple[int, int, bool]]) -> None:
    board = _board(0, 1, 2, 0)
    kept = Reserve(board, MIX)
    taken: set[tuple[int, int]] = set()
    for row, card, asks in changes:
        what = Occupant({card: Usage(core_milli=500)}, cpu_milli=9_000)
        if (row, card) in taken:
            board.release(f"n{row}", what)
        else:
            board.take(f"n{row}", what)
        taken ^= {(row, card)}
        if asks:
            cards = np.full(board.rows, card)
            one, other = (
                kept.dues(demand_of(_claim(500)), cards),
                Reserve(board, MIX).dues(demand_of(_claim(500)), cards),
            )
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert [part.tolist() for part in one] == [part.tolist() for part in other]


@pytest.mark.parametrize(("cpu", "dues"), [(64_000, [4000.0]), (1, [4000.0]), (-1, None)])
def test_room_is_kept_for_large_pods_that_ask_for_no_cpu(cpu: int, dues: list[float] | None) -> None:
    """Where any CPU is left."""
    board = _board(0, 1)
    board.take("n0", Occupant({}, cpu_milli=64_000 - cpu))
    kept = Reserve(board, [(Shape(1, 1000, 0), 90), (Shape(4, 1000, 0), 10)])
    found = kept.dues(demand_of(_claim(1000, cores=0)), np.zeros(2, np.int64))
    assert (found and found[1].tolist()) == dues


def test_pod_that_takes_a_whole_node_pays_for_all_its_cards() -> None:
    assert _dues(_board(0, 1), whole_node()) == {0: 4000.0}
    pairs = Reserve(_board(1, 2, 3), [(Shape(2, 1000, 1_000), 1)]).dues(demand_of(whole_node()), np.zeros(3, np.int64))
    assert pairs is not None
    assert [part.tolist() for part in pairs] == [[0, 1], [2000.0, 2000.0]]


def test_margin_of_a_kind_does_not_count_pods_of_fewer_cards() -> None:
    """However much CPU they ask for: only the place for two that is lost is paid for."""
    kept = Reserve(_board(*[0] * 7), [(Shape(4, 1000, 4_000), 1), (Shape(2, 1000, 8_000), 100)])
    found = kept.dues(demand_of(_claim(1000)), np.zeros(7, np.int64))
    assert found is not None
    assert found[1].tolist() == [2000.0] * 7


def test_room_is_kept_where_the_cluster_has_exactly_the_cpu_for_its_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserve, "_CPU_TO_SPARE", 1.0)
    for cores, kept in ((4, True), (3, False)):
        found = Reserve(_board(0, cores=cores), [(Shape(2, 1000, 2_000), 1)])
        assert (found.dues(demand_of(_claim(1000, cores=0)), np.zeros(1, np.int64)) is not None) is kept


def test_places_that_are_taken_are_counted_no_more() -> None:
    """Of five nodes none is short; of the four that are left all are."""
    board = _board(*[0] * 5)
    kept, asked = Reserve(board, MIX), (demand_of(_claim(1000)), np.zeros(5, np.int64))
    assert kept.dues(*asked) is None
    for _ in range(2):
        board.take("n0", Occupant({0: Usage(core_milli=1000)}))
        assert kept.dues(*asked) is not None
        board.release("n0", Occupant({0: Usage(core_milli=1000)}))
        assert kept.dues(*asked) is None


def test_places_follow_nodes_that_join() -> None:
    board = _board(0)
    kept, demand = Reserve(board, MIX), demand_of(_claim(1000))
    for at in range(1, 20):
        board.set_node(a_node(f"n{at}", *[16] * (at % 5), offers=frozenset({Offer.ANY}), cpu_milli=64_000))
        cards = np.zeros(board.rows, np.int64)
        one, other = kept.dues(demand, cards), Reserve(board, MIX).dues(demand, cards)
        assert one is not None
        assert other is not None
        assert [part.tolist() for part in one] == [part.tolist() for part in other]


@pytest.mark.parametrize(("nodes", "short"), [(7, True), (8, False)])
def test_kind_is_not_short_of_as_many_places_as_its_margin(nodes: int, short: bool) -> None:
    """Pods of two cards alone: 32 cards have 16 places, and four deviations of 16 Pods are 16."""
    board = _board(*[0] * nodes)
    kept = Reserve(board, [(Shape(2, 1000, 1_000), 1)])
    assert (kept.dues(demand_of(_claim(1000)), np.zeros(nodes, np.int64)) is not None) is short


@pytest.mark.parametrize(("cpu", "dues"), [(1_000, 4000.0), (4_000, 6000.0), (5_000, 6000.0)])
def test_margin_of_a_kind_counts_pods_that_are_larger_in_cards_and_in_cpu(cpu: int, dues: float) -> None:
    """A place for four is lost, and one for two, of which there are few or many Pods to come."""
    board = _board(*[0] * 7)
    kept = Reserve(board, [(Shape(2, 1000, 4_000), 1), (Shape(4, 1000, cpu), 100)])
    found = kept.dues(demand_of(_claim(1000)), np.zeros(7, np.int64))
    assert found is not None
    assert found[1].tolist() == [dues] * 7


def test_nothing_is_kept_where_the_cluster_has_too_little_cpu_for_all_its_cards() -> None:
    """Also where much of it is free beside the cards that are: others came without CPU."""
    board = _board(0, 4)
    assert Reserve(board, MIX).dues(demand_of(_claim(1000)), np.zeros(2, np.int64)) is not None
    heavy = [*MIX, (Shape(0, 0, 30_000), 50)]
    assert Reserve(board, heavy).dues(demand_of(_claim(1000)), np.zeros(2, np.int64)) is None


def test_with_departures_large_pods_wait_no_longer_with_dense() -> None:
    """The traces are not ours to ship; bench/packing.py --load has the real figures."""
    cluster, sample = generate(48, 8, seed=3)
    coming = come_and_go(sample, 48 * 8000, 0.8, 3)
    found = {
        policy: churn(cluster, sample, coming, policy, load=0.8, known=sample, clock=itertools.count().__next__)
        for policy in ("binpack", "fgd", "dense")
    }
    waits = {policy: next(entry.mean for entry in run.waits if entry.size == "8") for policy, run in found.items()}
    assert waits["dense"] <= 1.5 * min(waits["binpack"], waits["fgd"])
    assert found["dense"].allocated_percent >= max(found[policy].allocated_percent for policy in ("binpack", "fgd"))
