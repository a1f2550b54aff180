"""Choosing: the same board and the same claim give the same answer, whatever was asked before."""

from __future__ import annotations

import gc
import tracemalloc
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from aliquot.model.claim import AppClass, Claim, Preference, Role, Slice, Usage
from aliquot.model.device import Card
from aliquot.model.node import Node, Offer, Order
from aliquot.model.refusal import Reason
from aliquot.placement import POLICY_NAMES, choose, fit, seat
from aliquot.placement.board import Board, Occupant
from aliquot.placement.book import Booking, Ledger
from aliquot.placement.choose import POLICIES, Chooser
from aliquot.placement.policies.packing import Packing
from aliquot.placement.verdicts import FITS, TOGETHER_NOT
from kit.values.boards import a_cluster, arriving, card_sizes
from kit.values.builders import GIB, a_claim, a_container, a_node, a_slice, asking


@pytest.mark.parametrize("policy", POLICIES)
@given(sizes=card_sizes, claims=arriving(), leaving=st.lists(st.booleans(), min_size=25, max_size=25))
def test_cached_scores_equal_fresh_scores(
    policy: str, sizes: list[list[int]], claims: list[Claim], leaving: list[bool]
) -> None:
    board = a_cluster(sizes)
    ledger, kept = Ledger(board), Chooser(board, POLICIES[policy]())
    for at, claim in enumerate(claims):
        fresh = Chooser(board, POLICIES[policy]())
        if isinstance(kept.policy, Packing) and isinstance(fresh.policy, Packing):
            for seen in claims[: at + 1]:
                fresh.policy._workload.observe(fresh._demand(seen), board.usual_memory())
            kept.observe(claim)
            kept.learn()
            fresh.learn()
        answer = kept.choose(claim)
        assert answer == fresh.choose(claim)
        assert answer == kept.choose(claim)
        assert sorted(kept.fitting(claim).tolist()) == sorted(fresh.fitting(claim).tolist())
        if answer is not None:
            assert isinstance(ledger.assume(claim, answer, 1.0), Booking)
        if leaving[at]:
            ledger.forget(f"p{at // 2}")


@pytest.mark.parametrize("policy", POLICIES)
@given(sizes=card_sizes, claims=arriving(), groups=st.lists(st.sampled_from(["", "team"]), min_size=25, max_size=25))
def test_claim_gets_the_cards_that_it_is_seated_on_by_the_same_node(
    policy: str, sizes: list[list[int]], claims: list[Claim], groups: list[str]
) -> None:
    """The card of a Pod that needs one is found with the scores of the nodes: it is the same."""
    board = a_cluster(sizes)
    for node in filter(None, list(board.nodes)):
        board.set_node(replace(node, together=True))
    ledger, chooser = Ledger(board), Chooser(board, POLICIES[policy]())
    for claim, group in zip(claims, groups, strict=False):
        coming = replace(claim, group=group if claim.app_class is AppClass.NORMAL else "", user=1)
        grant = chooser.choose(coming)
        if grant is not None:
            assert grant == Chooser(board, chooser.policy).seat(coming, board.names.index(grant.node))
            assert isinstance(ledger.assume(coming, grant, 1.0), Booking)


@pytest.mark.parametrize("policy", ["binpack", "spread"])
def test_scores_kept_for_one_claim_are_not_used_for_another_owner_or_after_a_change(policy: str) -> None:
    board = a_cluster([[8, 8]] * 3)
    ledger, kept = Ledger(board), Chooser(board, POLICIES[policy]())
    owners = ["a", "a", "b", "a", "b", None, "a", "b"]
    coming = [a_claim(a_container(a_slice(1)), name=f"p{at}", owner=owner) for at, owner in enumerate(owners)]
    for booked in coming[:4]:
        for claim in coming[4:]:
            fresh = Chooser(board, POLICIES[policy]())
            assert kept.scores(claim).tolist() == fresh.scores(claim).tolist()
            assert kept.choose(claim) == fresh.choose(claim)
        grant = kept.choose(booked)
        assert grant is not None
        kept.scores(coming[-1])
        ledger.assume(booked, grant, 1.0)
        assert kept.scores(coming[-1]).tolist() == Chooser(board, POLICIES[policy]()).scores(coming[-1]).tolist()


# --- several containers on one node: the search finds a way exactly when there is one -------------------------------


def _possible(free: list[int], claim: Claim) -> bool:
    """By trying everything."""
    from aliquot.model.claim import Usage, peak

    def every_way(places: list[tuple[int, ...]]) -> bool:
        for slot, room in enumerate(free):
            parts = [
                (container.role, Usage(container.slice.memory_mib))
                for container, cards in zip(claim.containers, places, strict=True)
                if slot in cards
            ]
            if peak(parts).memory_mib > room * GIB:
                return False
        return True

    options = []
    for container in claim.containers:
        slots: list[tuple[int, ...]] = [(a,) for a in range(len(free))]
        if container.count == 2:
            slots = [(a, b) for a in range(len(free)) for b in range(a)]
        options.append(slots)
    return any(every_way(list(places)) for places in product(*options))


@given(
    free=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    parts=st.lists(
        st.tuples(st.integers(1, 8), st.integers(1, 2), st.sampled_from(list(Role))), min_size=2, max_size=4
    ),
    policy=st.sampled_from(["binpack", "spread"]),
)
def test_seating_finds_a_solution_if_there_is_one(
    free: list[int], parts: list[tuple[int, int, Role]], policy: str
) -> None:
    parts.sort(key=lambda part: part[2] is Role.MAIN)
    claim = a_claim(
        *(
            a_container(a_slice(size), count, role=role, name=f"c{at}", index=at)
            for at, (size, count, role) in enumerate(parts)
        )
    )
    board = a_cluster([free])
    grant = Chooser(board, POLICIES[policy]()).choose(claim)
    assert (grant is not None) == _possible(free, claim)
    if grant is not None:
        for slot, usage in grant.usage().items():
            assert usage.memory_mib <= free[slot] * GIB
        for container, wanted in zip(grant.containers, claim.containers, strict=True):
            assert len({share.card for share in container.shares}) == wanted.count


def test_seating_of_a_container_that_only_the_first_card_of_equal_ones_has_room_for() -> None:
    """8 and 4 GiB on the first card, 8 on the others: the small one follows equal ones, but is none of them."""
    claim = a_claim(*(a_container(a_slice(size), name=f"c{at}", index=at) for at, size in enumerate((8, 8, 8, 4))))
    grant = Chooser(a_cluster([[12, 11, 10]]), POLICIES["spread"]()).choose(claim)
    assert grant is not None
    assert [usage.memory_mib for _, usage in sorted(grant.usage().items())] == [12 * GIB, 8 * GIB, 8 * GIB]


def test_a_pod_with_absurdly_many_containers_is_answered_in_bounded_time() -> None:
    """Two hundred containers on 16 cards with no way to seat them: patience ends, and the answer is no."""
    board = a_cluster([[8] * 16])
    claim = a_claim(*(a_container(a_slice(3), 8, name=f"c{at}", index=at) for at in range(200)))
    assert Chooser(board, POLICIES["binpack"]()).choose(claim) is None


def test_what_equal_containers_need_is_compared_with_the_nodes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    board, compared = a_cluster([[80] * 8] * 4), 0
    compare = fit.fitting_cards

    def counted(*args: Any) -> Any:
        nonlocal compared
        compared += 1
        return compare(*args)

    for module in (fit, seat):
        monkeypatch.setattr(module, "fitting_cards", counted)
    containers = [a_container(a_slice(1 + at % 2), name=f"c{at}", index=at) for at in range(256)]
    grant = Chooser(board, POLICIES["binpack"]()).choose(a_claim(*containers))
    assert grant is not None
    assert compared <= 3 * 2, "of two sizes: for all nodes, for the best one, and by the search on it"
    assert len(grant.containers) == 256


def test_a_pod_that_fits_nowhere_is_answered_in_bounded_time_on_many_nodes() -> None:
    """Nine containers of 60% never fit 8 cards; nine of all sizes end with the patience of the decision."""
    board = a_cluster([[16] * 8] * 300)
    alike = a_claim(*(a_container(Slice(memory_percent=60), name=f"c{at}", index=at) for at in range(9)))
    mixed = a_claim(*(a_container(Slice(memory_percent=52 + at), name=f"c{at}", index=at) for at in range(9)))
    for claim in (alike, mixed):
        chooser = Chooser(board, POLICIES["binpack"]())
        assert chooser.choose(claim) is None
        assert {refusal.reason for refusal in chooser.refusals(claim)} == {Reason.CONTAINERS}
    assert all(refusal.never for refusal in Chooser(board, POLICIES["spread"]()).refusals(alike))


def test_the_command_line_offers_the_policies_there_are() -> None:
    assert tuple(POLICIES) == POLICY_NAMES


def test_ties_go_to_the_first_node_of_the_board() -> None:
    board = a_cluster([[16], [16], [16]])
    for policy in POLICIES.values():
        grant = Chooser(board, policy()).choose(a_claim(a_container(a_slice(4))))
        assert grant is not None
        assert grant.node == "n0"


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=20)
@given(cards=st.integers(1, 4), claims=arriving(), order=st.permutations(range(5)))
def test_choice_does_not_depend_on_the_order_in_which_nodes_are_asked_about(
    policy: str, cards: int, claims: list[Claim], order: list[int]
) -> None:
    """kube-scheduler names them in any order; equal nodes have equal scores."""
    board = a_cluster([[24] * cards] * len(order))
    ledger, chooser = Ledger(board), Chooser(board, POLICIES[policy]())
    for claim in claims:
        grant = chooser.choose(claim)
        assert chooser.choose(claim, np.array(order)) == grant
        if grant is not None:
            ledger.assume(claim, grant, 1.0)


def test_a_percentage_becomes_the_mib_of_the_card_chosen() -> None:
    board = Board()
    board.set_node(Node("n1", (Card(0, 23_028, uuid="GPU-a"),), frozenset(Offer)))
    grant = Chooser(board, POLICIES["binpack"]()).choose(a_claim(a_container(Slice(memory_percent=30))))
    assert grant is not None
    [share] = grant.containers[0].shares
    assert (share.memory_mib, share.uuid) == (6908, "GPU-a")


def _three(size: int) -> Claim:
    return a_claim(*(a_container(a_slice(size), name=f"c{at}", index=at) for at in range(3)))


def test_nodes_on_which_the_containers_do_not_go_together_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of 9 GiB: two cards of 16 GiB have the memory, but not for three."""
    board, claim = a_cluster([[16, 16], [16, 16], [16] * 3, [8], [16] * 4]), _three(9)
    board.take("n4", Occupant({0: Usage(16 * GIB, slices=1)}))
    every = np.arange(board.rows)

    def chooser() -> Chooser:
        return Chooser(board, POLICIES["binpack"]())

    assert not chooser().exact(claim)
    assert chooser().exact(a_claim(a_container(a_slice(9))))
    assert [chooser().first_fitting(claim, every, most).tolist() for most in (1, 2, 3)] == [[4], [4, 2], [4, 2]]
    assert chooser().first_fitting(claim, every[:4], 3).tolist() == [2]
    assert chooser().fitting(claim).tolist() == [2, 4]
    first, spread = chooser().choose(claim, every[:4]), Chooser(board, POLICIES["spread"]()).choose(claim)
    assert first is not None
    assert spread is not None
    assert (first.node, spread.node) == ("n2", "n2")
    assert chooser().seat(claim, 0) is None
    assert chooser().seat(claim, 2) is not None
    refusals = [(one.node, one.never) for one in chooser().refusals(claim) if one.reason is Reason.CONTAINERS]
    assert refusals == [("n0", True), ("n1", True)]
    kept = chooser()
    kept.fitting(claim)
    why = kept.why_not(claim).tolist()
    assert [why[at] for at in (0, 1, 2, 4)] == [TOGETHER_NOT, TOGETHER_NOT, FITS, FITS]
    assert why[3] not in (FITS, TOGETHER_NOT)
    board.set_node(a_node("n5", 16, 16, 16))
    assert kept.why_not(claim).tolist() == [*why, FITS]

    kept = chooser()
    monkeypatch.setattr(seat, "_TRIES", 3)
    assert kept.first_fitting(claim, every, 3).tolist() == []
    monkeypatch.undo()
    assert kept.first_fitting(claim, every, 3).tolist() == [4, 2], "a search that gave up says nothing of its node"


@pytest.mark.parametrize(("owner", "card"), [("owner", 0), ("other", 1)])
def test_claim_is_seated_beside_no_replica_of_its_owner(owner: str, card: int) -> None:
    """On the smaller card, which has a Pod too."""
    board = a_cluster([[16, 24]])
    for slot, of in enumerate(("third", "owner")):
        board.take("n0", Occupant({slot: Usage(GIB, slices=1)}, owner=of))
    grant = Chooser(board, POLICIES["spread"]()).seat(a_claim(a_container(a_slice(4)), owner=owner), 0)
    assert grant is not None
    assert grant.containers[0].shares[0].card == card


def test_replicas_on_cards_that_no_node_has_do_not_count() -> None:
    """An annotation names card 2 of two."""
    board = a_cluster([[16, 16], [16, 16]])
    board.take("n0", Occupant({board.width: Usage(1, slices=1)}, owner="owner"))
    grant = Chooser(board, POLICIES["spread"]()).choose(a_claim(a_container(a_slice(4)), owner="owner"))
    assert grant is not None
    assert grant.node == "n0"


@pytest.mark.parametrize("policy", ["binpack", "spread"])
def test_nodes_are_left_out_also_where_replicas_of_the_owner_are(policy: str) -> None:
    """Then the claim has scores of its own: they must not offer the same node again."""
    board = a_cluster([[16, 16], [16, 16, 16]])
    board.take("n0", Occupant({0: Usage(1, slices=1)}, owner="owner"))
    board.take("n1", Occupant({0: Usage(1, slices=1), 1: Usage(1, slices=1)}, owner="owner"))
    chooser, claim = Chooser(board, POLICIES[policy]()), replace(_three(9), owner="owner")
    for _ in range(2):
        grant = chooser.choose(claim)
        assert grant is not None
        assert grant.node == "n1"
    assert np.isfinite(chooser.scores(claim)).tolist() == [False, True]


def test_scores_of_the_shapes_asked_for_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "_SHAPES_KEPT", 2)
    chooser = Chooser(a_cluster([[16]]), POLICIES["binpack"]())
    for size in (1, 2, 1, 3, 1):
        assert chooser.choose(a_claim(a_container(a_slice(size)))) is not None
    assert [demand.parts[0].slice.memory_mib for demand in chooser._kept] == [3 * GIB, GIB]


def test_what_is_kept_of_a_shape_is_small() -> None:
    """512 shapes are kept: at 5,000 nodes each byte that one takes of a node is 2.5 MB."""
    board, shapes = a_cluster([[80] * 8] * 1000), 20
    chooser = Chooser(board, POLICIES["binpack"]())
    chooser.why_not(asking(1))
    gc.collect()
    tracemalloc.start()
    try:
        for at in range(shapes):
            chooser.why_not(asking(2 + at))
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < shapes * (12 * board.rows + 4000), "scores of 8 bytes, and card and reason of 2 each"


def test_a_container_of_two_cards_gets_two() -> None:
    grant = Chooser(a_cluster([[8, 16, 16]]), POLICIES["binpack"]()).choose(a_claim(a_container(a_slice(9), 2)))
    assert grant is not None
    assert [share.card for share in grant.containers[0].shares] == [1, 2]


@pytest.mark.parametrize(
    ("order", "app_class", "preference", "card"),
    [
        (Order.SPREAD, AppClass.NORMAL, None, 1),
        (Order.SPREAD, AppClass.NORMAL, Preference(Order.BINPACK, Order.BINPACK), 0),
        (Order.BINPACK, AppClass.ONLINE, None, 1),
        (Order.BINPACK, AppClass.NORMAL, None, 0),
    ],
)
def test_the_order_of_a_nodes_owner_is_for_ordinary_pods_without_one_of_their_own(
    order: Order, app_class: AppClass, preference: Preference | None, card: int
) -> None:
    board = Board()
    board.set_node(a_node("n1", 8, 8, card_order=order))
    board.take("n1", Occupant({0: Usage(GIB, slices=1)}))
    claim = a_claim(a_container(a_slice(2)), app_class=app_class, preference=preference)
    chooser = Chooser(board, POLICIES["binpack"]())
    for grant in (chooser.choose(claim), chooser.seat(claim, 0)):
        assert grant is not None
        assert grant.containers[0].shares[0].card == card
