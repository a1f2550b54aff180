"""Which cards of one node each container gets: the first that will do in the policy's order, the hardest first."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from aliquot.model.claim import CardFilter, Claim, ContainerClaim, Role, Slice, Usage
from aliquot.model.device import Card
from aliquot.model.grant import Grant
from aliquot.model.node import LIMITED_SHARING, Node, Offer
from aliquot.model.refusal import Reason
from aliquot.model.withheld import MIG_MODE
from aliquot.placement import seat as seating
from aliquot.placement.board import Board, Occupant
from aliquot.placement.choose import POLICIES, Chooser
from aliquot.placement.demand import demand_of
from aliquot.placement.seat import Patience, seat
from kit.values.builders import EVERY_OFFER, GIB, a_board, a_claim, a_container, a_node, a_slice, whole_node

_WHOLE = Slice(memory_percent=100, exclusive=True)


def main(size: int | Slice, count: int = 1, role: Role = Role.MAIN) -> ContainerClaim:
    return a_container(a_slice(size) if isinstance(size, int) else size, count, role=role)


def init(size: int) -> ContainerClaim:
    return main(size, role=Role.INIT)


def sidecar(size: int) -> ContainerClaim:
    return main(size, role=Role.SIDECAR)


def of(*containers: ContainerClaim, **more: Any) -> Claim:
    return a_claim(*containers, **more)


def seated(board: Board, claim: Claim, patience: Patience | None = None) -> list[list[int]] | None:
    """The cards of each container, where the policy takes them from the left."""
    grant = seat(board, 0, claim, demand_of(claim), range(board.width), patience or Patience())
    return _cards(grant)


def _cards(grant: Grant | None) -> list[list[int]] | None:
    return None if grant is None else [[share.card for share in one.shares] for one in grant.containers]


@pytest.mark.parametrize(
    ("cards", "containers", "expected"),
    [
        ([8, 4, 8], [main(6, 2)], [[0, 2]]),
        ([8, 4], [main(6, 2)], None),
        ([8, 8], [main(5), main(5)], [[0], [1]]),
        ([8, 8], [main(3), main(3), main(3)], [[0], [0], [1]]),
        # The hardest first: the one with more memory, more compute, more cards, a card of its own; a sidecar later.
        ([6, 6], [main(3), main(4)], [[1], [0]]),
        ([6, 6], [main(a_slice(0, 30)), main(a_slice(0, 80))], [[1], [0]]),
        ([6, 6, 6], [main(4), main(4, 2)], [[2], [0, 1]]),
        ([6, 6], [main(4), main(_WHOLE)], [[1], [0]]),
        ([6, 6], [sidecar(4), main(4)], [[1], [0]]),
        # Init containers last of all. They are not there at the same time: best on a card that the Pod has anyway.
        ([4, 8], [init(4), main(6)], [[1], [1]]),
        ([8], [init(8), main(6)], [[0], [0]]),
        ([8], [sidecar(3), init(6), main(2)], None),
        ([8], [init(6), sidecar(3), main(2)], [[0], [0], [0]]),
        # Unlike ones: the second may need a card before that of the first.
        ([8, 4], [main(6), main(4), main(2)], [[0], [1], [0]]),
        ([4, 8, 4], [main(_WHOLE), main(4, 2), main(4)], [[0], [1, 2], [1]]),
    ],
)
def test_containers_are_seated(
    cards: list[int], containers: list[ContainerClaim], expected: list[list[int]] | None
) -> None:
    assert seated(a_board(a_node("n1", *cards)), of(*containers)) == expected


@pytest.mark.parametrize("claim", [of(main(6, 2)), of(main(4), main(4), together=True)])
def test_one_container_or_those_that_stay_together_need_no_search(claim: Claim) -> None:
    """They get their cards although others used up all patience."""
    patience = Patience()
    patience.left = 0
    assert seated(a_board(a_node("n1", 8, 8)), claim, patience) is not None


def test_containers_that_stay_together_get_the_same_cards_in_the_policys_order() -> None:
    board, claim = a_board(a_node("n1", 16, 24, 24)), of(main(10), main(10), together=True)
    assert seated(board, claim) == [[1], [1]]
    assert _cards(seat(board, 0, claim, demand_of(claim), [0, 2, 1], Patience())) == [[2], [2]]


def test_a_whole_node_is_all_of_its_cards() -> None:
    board = a_board(Node("n1", (Card(0, 1), Card(2, 8)), EVERY_OFFER), a_node("n2", 8, 8, 8))
    assert seated(board, whole_node()) == [[0, 2]]


@pytest.mark.parametrize("offer", Offer)
def test_who_may_share_a_card_is_limited_only_where_the_offer_says_so(offer: Offer) -> None:
    board = a_board(Node("n1", (Card(0, 8 * GIB, max_slices=1), Card(1, 8 * GIB)), EVERY_OFFER))
    board.take("n1", Occupant({0: Usage(GIB, slices=1)}))
    expected = [[1], [1]] if offer in LIMITED_SHARING else [[0], [0]]
    assert seated(board, of(main(2), main(2), offer=offer)) == expected


@pytest.mark.parametrize(
    ("sizes", "pool", "expected"),
    [
        ([10, 10], 4, [[0], [1]]),  # 8 GiB are there: each takes its card 2 GiB beyond what it has
        ([10, 10], 3, None),
        ([5, 5, 5, 5], 4, [[0], [0], [1], [1]]),
        ([5, 5, 5, 5], 3, None),
        ([7, 7], 0, [[0], [1]]),
    ],
)
def test_the_pool_holds_what_goes_beyond_all_cards_together(
    sizes: list[int], pool: int, expected: list[list[int]] | None
) -> None:
    cards = tuple(Card(at, 16 * GIB, oversubscribe=2.0) for at in range(2))
    board = a_board(Node("n1", cards, EVERY_OFFER, pool_mib=pool * GIB))
    for at in (0, 0, 0, 0, 1, 1, 1, 1):
        board.take("n1", Occupant({at: Usage(2 * GIB, slices=1)}, parkable=True))
    assert seated(board, of(*map(main, sizes))) == expected


def test_equal_containers_are_not_tried_in_each_others_places() -> None:
    """Three of which a card holds one, on two cards: first and second, then second alone."""
    patience = Patience()
    assert patience.untouched
    assert seated(a_board(a_node("n1", 16, 16)), of(*[main(9)] * 3), patience) is None
    assert seating._TRIES - patience.left == 6
    assert not patience.untouched


def test_a_search_ends_with_its_patience() -> None:
    board, claim, patience = a_board(a_node("n1", 8, 8)), of(main(5), main(5)), Patience()
    patience.left = 3
    assert seated(board, claim, patience) is None, "it takes three tries, and the last is not made"
    assert patience.left == 0
    assert not patience.spend()
    assert patience.left == 0
    patience.left = 4
    assert seated(board, claim, patience) == [[0], [1]]
    assert patience.left == 1


def test_containers_that_wait_for_named_cards_or_a_withheld_one_may_fit_later() -> None:
    busy = a_board(a_node("n1", 16, 16))
    busy.take("n1", Occupant({0: Usage(7 * GIB, slices=1)}))
    named = a_claim(*[main(10)] * 2, cards=CardFilter(uuids=("n1-0", "n1-1")))
    withheld = a_node("n1", 16, 16)
    held = a_board(replace(withheld, cards=(replace(withheld.cards[0], withheld=MIG_MODE), withheld.cards[1])))
    for board, claim in ((busy, named), (held, of(main(10), main(10)))):
        (refusal,) = Chooser(board, POLICIES["binpack"]()).refusals(claim)
        assert (refusal.reason, refusal.never) == (Reason.CONTAINERS, False)


@pytest.mark.parametrize(
    ("size", "tries", "never"), [(9, 20_000, True), (9, 7, True), (9, 6, False), (9, 1, False), (5, 20_000, False)]
)
def test_containers_never_fit_together_where_they_would_not_fit_an_empty_node(
    size: int, tries: int, never: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six tries say so of three containers on two cards; with fewer it is not known."""
    monkeypatch.setattr(seating, "_TRIES", tries)
    board = a_board(a_node("n1", 16, 16))
    if not never and tries > 7:
        board.take("n1", Occupant({at: Usage(7 * GIB, slices=1) for at in range(2)}))
    (refusal,) = Chooser(board, POLICIES["binpack"]()).refusals(of(*[main(size)] * 3))
    assert (refusal.node, refusal.reason, refusal.wanted, refusal.never) == ("n1", Reason.CONTAINERS, 3, never)


def test_init_container_may_hold_the_card_whole_that_several_containers_share_after_it() -> None:
    board = a_board(a_node("n1", 16))
    claim = of(main(_WHOLE, role=Role.INIT), main(4), main(6))
    assert seated(board, claim) == [[0], [0], [0]]
    grant = Chooser(board, POLICIES["binpack"]()).seat(claim, 0)
    assert grant is not None
    assert grant.usage() == {0: Usage(memory_mib=16 * GIB, slices=1, exclusive=1)}, "its own at all times"


@pytest.mark.parametrize(
    "containers",
    [
        (main(_WHOLE), main(4)),
        (sidecar(2), main(_WHOLE, role=Role.INIT), main(4)),
    ],
    ids=["main containers", "a sidecar that runs on"],
)
def test_card_that_one_container_wants_whole_is_not_shared_with_one_that_runs_at_the_same_time(
    containers: tuple[ContainerClaim, ...],
) -> None:
    assert seated(a_board(a_node("n1", 16)), of(*containers)) is None
    assert seated(a_board(a_node("n1", 16, 16)), of(*containers)) is not None
