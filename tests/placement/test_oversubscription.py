"""Booking beyond the memory of a card: what cannot be parked never, what can up to the factor and the host's pool."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from aliquot.model.claim import AppClass, Claim, Usage
from aliquot.model.device import Card, reserve_mib
from aliquot.model.node import Node
from aliquot.model.refusal import Reason, Refusal
from aliquot.placement.board import Board, Occupant
from aliquot.placement.book import Booking, Ledger, occupant_of
from aliquot.placement.choose import POLICIES, Chooser
from aliquot.placement.demand import demand_of
from aliquot.placement.fit import fits
from aliquot.placement.policies.ranking import parking_scores
from aliquot.placement.rooms import reserve
from kit.values.boards import claims, nodes
from kit.values.builders import EVERY_OFFER, GIB, a_board, a_node, asking, whole_node

CARD = 16
CONTEXT = 512  # MiB that a parked tenant has on the card


def a_stretched(factor: float, *sizes: int, pool: int = 1000, name: str = "n1") -> Node:
    """A node with cards of those GiB, and a pool of so many."""
    plain = a_node(name, *sizes)
    cards = tuple(structs.replace(card, oversubscribe=factor) for card in plain.cards)
    return structs.replace(plain, cards=cards, pool_mib=pool * GIB)


def parkable(memory_gib: int, name: str, count: int = 1) -> Claim:
    return asking(memory_gib, name=name, count=count, park_after=30.0)


@dataclass
class Scene:
    """One board, and who is booked on it."""

    board: Board
    policy: str = "binpack"
    ledger: Ledger = field(init=False)
    chooser: Chooser = field(init=False)

    def __post_init__(self) -> None:
        self.ledger, self.chooser = Ledger(self.board), Chooser(self.board, POLICIES[self.policy]())

    def book(self, *claims: Claim) -> list[int | None]:
        """The first card of each; None: no room."""
        found: list[int | None] = []
        for claim in claims:
            grant = self.chooser.choose(claim)
            if grant is not None:
                assert isinstance(self.ledger.assume(claim, grant, 1.0), Booking)
            found.append(None if grant is None else grant.containers[0].shares[0].card)
        return found


def test_parkable_claims_are_booked_up_to_the_factor_and_others_up_to_the_card() -> None:
    scene = Scene(a_board(a_stretched(2.0, CARD)))
    assert scene.book(*(parkable(8, f"p{at}") for at in range(5))) == [0, 0, 0, 0, None]
    scene = Scene(a_board(a_stretched(2.0, CARD)))
    assert scene.book(*(asking(8, name=f"p{at}") for at in range(3))) == [0, 0, None]


def test_each_parkable_claim_fits_on_the_card_beside_all_that_stays() -> None:
    """Otherwise it could never be on the card at all."""
    scene = Scene(a_board(a_stretched(4.0, CARD)))
    assert scene.book(parkable(11, "a"), asking(6, name="too much"), asking(3, name="b")) == [0, None, 0]
    assert scene.book(parkable(12, "too large"), parkable(11, "c"), asking(1, name="d")) == [None, 0, None]
    scene.ledger.forget("a")
    scene.ledger.forget("c")
    assert scene.book(asking(1, name="d")) == [0]  # the largest has left


def test_what_is_booked_beyond_a_card_leaves_room_for_the_mover() -> None:
    """Without it a mover that died could not come back to a full card. What fits on the card together needs none."""
    scene = Scene(a_board(a_stretched(4.0, CARD)))
    assert scene.book(parkable(CARD, "all of it"), parkable(1, "a")) == [0, None]
    scene.ledger.forget("all of it")
    assert scene.book(parkable(14, "b"), parkable(CARD, "c"), parkable(14, "d")) == [0, None, 0]


def test_contexts_of_parked_claims_are_counted_on_the_card() -> None:
    """Half a GiB of each stays: with 12 GiB on the card, the mover's reserve and six others, 16 GiB are full."""
    scene = Scene(a_board(a_stretched(8.0, CARD)))
    booked = scene.book(*(parkable(12, f"p{at}") for at in range(9)))
    assert booked == [0] * 7 + [None] * 2
    assert scene.book(asking(1, name="online")) == [None]
    scene.ledger.forget("p0")
    scene.ledger.forget("p1")
    assert scene.book(asking(1, name="online"), parkable(12, "p1")) == [0, None]


def test_memory_beyond_all_cards_of_a_node_is_within_its_pool() -> None:
    scene = Scene(a_board(a_stretched(8.0, CARD, CARD, pool=20)))
    booked = scene.book(*(parkable(12, f"p{at}") for at in range(8)))
    assert booked == [0, 1, 0, 1, None, None, None, None]  # 2 x 8 GiB beyond the cards; the next would make it 28
    assert scene.chooser.refusals(parkable(12, "next")) == [
        Refusal("n1", card, Reason.HOST_POOL, 12 * GIB, 4 * GIB, never=False) for card in (0, 1)
    ]
    assert scene.book(parkable(4, "small")) == [0]


def test_ledger_refuses_what_the_pool_has_no_room_for() -> None:
    """Each card alone has room, and not both of them: the pool shrank since they were chosen."""
    scene = Scene(a_board(a_stretched(2.0, CARD, CARD, pool=4)), "spread")
    scene.book(*(parkable(2, f"p{at}") for at in range(8)))
    claim = asking(10, name="two", count=2)
    grant = scene.chooser.choose(claim)
    assert grant is not None
    scene.board.set_node(a_stretched(2.0, CARD, CARD, pool=3))
    refusals = [Refusal("n1", None, Reason.HOST_POOL, 4 * GIB, 3 * GIB, never=False)]
    assert scene.ledger.assume(claim, grant, 1.0) == refusals
    scene.board.set_node(a_stretched(2.0, CARD, CARD, pool=4))
    assert isinstance(scene.ledger.assume(claim, grant, 1.0), Booking)


def test_reserve_of_many_cards_is_that_of_each() -> None:
    sizes = [gib * GIB for gib in (1, 2, 4, 8, 16, 24, 40, 48, 80, 96, 141, 192, 288, 512)]
    assert reserve(np.array(sizes)).tolist() == [reserve_mib(size) for size in sizes]


def test_whole_node_is_given_also_where_cards_may_be_booked_beyond_their_memory() -> None:
    chooser = Scene(a_board(a_stretched(8.0, CARD, CARD, pool=20))).chooser
    for grant in (chooser.choose(whole_node()), chooser.seat(whole_node(), 0)):
        assert grant is not None
        assert sorted(grant.usage()) == [0, 1]


def test_without_a_pool_nothing_is_booked_beyond_the_card() -> None:
    scene = Scene(a_board(a_stretched(8.0, CARD, pool=0)))
    assert scene.book(parkable(10, "a"), parkable(10, "b"), parkable(6, "c")) == [0, None, 0]


def test_a_card_held_whole_is_not_shared_at_any_factor() -> None:
    scene = Scene(a_board(a_stretched(4.0, CARD)))
    whole = structs.replace(asking(0, name="whole", park_after=1.0))
    part = replace(whole.containers[0].slice, memory_percent=100, exclusive=True)
    whole = structs.replace(whole, containers=(replace(whole.containers[0], slice=part),))
    assert scene.book(whole, parkable(1, "a")) == [0, None]
    assert scene.board.used_parkable[0, 0] == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_takes_memory_that_is_not_booked_first(policy: str) -> None:
    """What is booked beyond a card waits for its turn on it: binpack too leaves no card idle for that."""
    scene = Scene(a_board(a_stretched(2.0, CARD, CARD), a_stretched(2.0, CARD, name="n2")), policy)
    claims = [parkable(10, f"p{at}") for at in range(3)]
    scene.book(*claims)
    places = [(booking.node, *booking.occupant.usage) for booking in scene.ledger]
    assert sorted(places) == [("n1", 0), ("n1", 1), ("n2", 0)]
    assert scene.book(parkable(10, "p4")) != [None]


def test_a_factor_that_was_lowered_holds_for_new_work_only() -> None:
    board = a_board(a_stretched(2.0, CARD))
    scene = Scene(board)
    assert scene.book(parkable(12, "a"), parkable(12, "b")) == [0, 0]
    board.set_node(a_node("n1", CARD))
    assert scene.book(parkable(1, "c")) == [None]
    assert board.usage("n1", 0).memory_mib == 24 * GIB
    scene.ledger.forget("a")
    assert scene.book(parkable(4, "c"), parkable(1, "d")) == [0, None]


def test_several_cards_share_the_pool() -> None:
    """Two cards beyond which 8 GiB each are wanted need 16 GiB of the pool."""
    full = [parkable(8, f"half{at}") for at in range(4)]
    for pool, has_room in ((16, True), (15, False)):
        scene = Scene(a_board(a_stretched(2.0, CARD, CARD, pool=pool)))
        scene.book(*full)
        assert (None not in scene.book(parkable(8, "one"), parkable(8, "two"))) is has_room


def test_still_fits_heeds_factor_largest_claim_and_pool() -> None:
    board = a_board(a_stretched(2.0, CARD, pool=8))
    scene = Scene(board)
    claim = parkable(12, "b")
    scene.book(parkable(12, "a"), claim)
    booking = scene.ledger.get("b")
    assert booking is not None
    assert scene.ledger.still_fits(booking, claim)
    for worse in (a_stretched(1.25, CARD, pool=8), a_stretched(2.0, CARD, pool=7), a_node("n1", CARD)):
        board.set_node(worse)
        assert not scene.ledger.still_fits(booking, claim)


# --- the board and a plain ledger agree --------------------------------------------------------------------------


@dataclass
class PlainCard:
    """The rule in plain numbers, as rooms.py states it."""

    card: Card
    fixed: list[int] = field(default_factory=list)
    parked: list[int] = field(default_factory=list)

    def with_one_more(self, mib: int, may_park: bool) -> PlainCard:
        more = [mib]
        return PlainCard(self.card, self.fixed + more * (not may_park), self.parked + more * may_park)

    @property
    def beyond(self) -> int:
        return max(0, sum(self.fixed + self.parked) - self.card.memory_mib)

    def is_right(self) -> bool:
        fixed, memory = sum(self.fixed), self.card.memory_mib
        return fixed + sum(self.parked) <= memory or (
            fixed + sum(self.parked) <= int(memory * self.card.oversubscribe)
            and fixed + self._most_resident() + min(GIB, memory // 16) <= memory
        )

    def _most_resident(self) -> int:
        """MiB on the card of those that may be parked, while all of them but one are."""
        contexts = sum(min(mib, CONTEXT) for mib in self.parked)
        return max((mib - min(mib, CONTEXT) + contexts for mib in self.parked), default=0)


sizes = st.integers(1, 20)
arrivals = st.lists(st.tuples(sizes, st.booleans(), st.integers(0, 2)), max_size=14)


@given(
    st.lists(st.tuples(st.sampled_from([8, 16, 24]), st.sampled_from([1.0, 1.3, 2.0, 8.0])), min_size=1, max_size=3),
    st.integers(0, 40),
    arrivals,
    st.data(),
)
def test_the_board_books_exactly_what_the_rule_allows(
    cards: list[tuple[int, float]], pool: int, coming: list[tuple[int, bool, int]], data: st.DataObject
) -> None:
    made = tuple(Card(at, size * GIB, f"GPU-{at}", oversubscribe=factor) for at, (size, factor) in enumerate(cards))
    board = a_board(Node("n1", made, EVERY_OFFER, pool_mib=pool * GIB))
    scene = Scene(board)
    plain = [PlainCard(card) for card in made]
    held: dict[str, tuple[int, int, bool]] = {}
    for at, (gib, may_park, leave) in enumerate(coming):
        claim = parkable(gib, f"p{at}") if may_park else asking(gib, name=f"p{at}")
        allowed = set()
        for place, card in enumerate(plain):
            after = card.with_one_more(gib * GIB, may_park)
            beyond = sum(one.beyond for one in plain) - card.beyond + after.beyond
            if after.is_right() and (beyond <= pool * GIB or after.beyond == card.beyond):
                allowed.add(place)
        _, fitting = scene_fits(scene, claim)
        assert fitting == allowed
        (slot,) = scene.book(claim)
        assert (slot is None) is (not allowed)
        refused = {(refusal.card, refusal.reason) for refusal in scene.chooser.refusals(claim)}
        if slot is not None:
            held[claim.uid] = (slot, gib * GIB, may_park)
            plain[slot] = plain[slot].with_one_more(gib * GIB, may_park)
        else:
            assert {card for card, _ in refused} == set(range(len(made)))
        if held and leave == 0:
            uid = data.draw(st.sampled_from(sorted(held)))
            place, mib, parked = held.pop(uid)
            scene.ledger.forget(uid)
            (plain[place].parked if parked else plain[place].fixed).remove(mib)
    with board.together():  # the same columns, worked out all at once
        board.set_node(Node("n1", made, EVERY_OFFER, pool_mib=pool * GIB))
    for place, card in enumerate(plain):
        assert board.largest[0, place] == max(card.parked, default=0)
        assert board.used_parkable[0, place] == sum(card.parked)
        assert board.contexts[0, place] == CONTEXT * len(card.parked)


def scene_fits(scene: Scene, claim: Claim) -> tuple[bool, set[int]]:
    nodes, cards = fits(scene.board, demand_of(claim), slice(0, 1))
    return bool(nodes[0]), {slot for slot in range(scene.board.width) if cards[0, slot]}


@given(nodes("n1"), st.lists(claims(), max_size=6))
def test_without_a_factor_parkable_claims_go_where_others_go(node: Node, coming: list[Claim]) -> None:
    """With the factor 1 nothing changes."""
    node = structs.replace(node, cards=tuple(structs.replace(card, oversubscribe=1.0) for card in node.cards))
    first, second = Scene(a_board(node)), Scene(a_board(node))
    for at, claim in enumerate(coming):
        plain = structs.replace(claim, uid=f"p{at}", name=f"p{at}", park_after=None)
        parked = structs.replace(plain, park_after=30.0)
        assert first.book(plain) == second.book(parked)
        assert first.chooser.refusals(plain) == second.chooser.refusals(parked)


@given(nodes("n1"), st.lists(claims(), max_size=6))
def test_whatever_the_search_seats_the_ledger_takes(node: Node, coming: list[Claim]) -> None:
    scene = Scene(a_board(node))
    for at, claim in enumerate(coming):
        named = structs.replace(claim, uid=f"p{at}", name=f"p{at}")
        grant = scene.chooser.choose(named)
        if grant is None:
            assert scene.chooser.refusals(named)
            continue
        assert isinstance(scene.ledger.assume(named, grant, 1.0), Booking)
        scene.ledger.forget(named.uid)
        scene.ledger.confirm(named.uid, grant.node, occupant_of(named, grant))


def test_others_fit_beside_the_largest_that_may_be_parked_not_beside_the_smallest() -> None:
    scene = Scene(a_board(a_stretched(2.0, CARD)))
    assert scene.book(parkable(11, "a"), parkable(4, "b"), asking(6, name="too much")) == [0, 0, None]


@pytest.mark.parametrize(("gib", "fits_beside"), [(3, True), (4, False), (6, False), (16, False)])
def test_booking_still_fits_only_if_it_can_be_on_the_card_beside_what_stays(gib: int, fits_beside: bool) -> None:
    """The API server may say that another Pod has the card, although we did not place it."""
    scene, claim = Scene(a_board(a_stretched(2.0, CARD))), parkable(11, "a")
    assert scene.book(claim, parkable(4, "b")) == [0, 0]
    booking = scene.ledger.get(claim.uid)
    other = asking(gib, name="other")
    grant = Scene(a_board(a_node("n1", CARD))).chooser.choose(other)
    assert booking is not None
    assert grant is not None
    scene.ledger.confirm(other.uid, "n1", occupant_of(other, grant))
    assert scene.ledger.still_fits(booking, claim) is fits_beside


@pytest.mark.parametrize(
    ("coming", "there", "card"),
    [
        (AppClass.ONLINE, AppClass.OFFLINE, 1),
        (AppClass.OFFLINE, AppClass.ONLINE, 1),
        (AppClass.ONLINE, AppClass.ONLINE, 0),
        (AppClass.OFFLINE, AppClass.OFFLINE, 0),
        (AppClass.NORMAL, AppClass.OFFLINE, 0),
    ],
)
def test_beyond_the_memory_too_online_and_offline_pods_avoid_each_other_before_booked_cards(
    coming: AppClass, there: AppClass, card: int
) -> None:
    board = a_board(a_stretched(2.0, CARD, CARD))
    board.take("n1", Occupant({0: Usage(GIB, slices=1)}, there))
    board.take("n1", Occupant({1: Usage(2 * GIB, slices=1)}))
    scores = parking_scores(board, demand_of(asking(1, app_class=coming)), np.array([0]))
    assert int(scores[0].argmin()) == card
