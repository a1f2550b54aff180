"""Booking: no sequence of events double-books a card or leaks a byte of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from aliquot.model.claim import AppClass, Claim, Role, Usage
from aliquot.model.device import Card
from aliquot.model.grant import ContainerGrant, Grant, Share
from aliquot.model.node import Node, Offer
from aliquot.model.refusal import Reason
from aliquot.placement.board import Board, Occupant
from aliquot.placement.book import Booking, Ledger, occupant_of
from aliquot.placement.choose import POLICIES, Chooser
from kit.values.boards import occupants
from kit.values.builders import EVERY_OFFER, GIB, a_board, a_node, asking, whole_cards, whole_node


def _ledger(*memory_gib: int) -> Ledger:
    return Ledger(a_board(a_node("n1", *memory_gib)))


def _grant(claim: Claim, card: int = 0, node: str = "n1") -> Grant:
    share = Share(card, claim.containers[0].slice.memory_mib, exclusive=claim.containers[0].slice.exclusive)
    return Grant(claim.uid, node, (ContainerGrant("main", 0, Role.MAIN, (share,)),))


def _free(ledger: Ledger, card: int = 0) -> int:
    return int(ledger.board.room_memory[0, card]) // GIB


def _late(ledger: Ledger, now: float) -> set[str]:
    return {booking.uid for booking in ledger if booking.deadline is not None and booking.deadline <= now}


def test_assuming_twice_holds_the_cards_once() -> None:
    ledger, claim = _ledger(16), asking(10)
    first = ledger.assume(claim, _grant(claim), deadline=5.0)
    assert ledger.assume(claim, _grant(claim), deadline=9.0) == first
    assert _free(ledger) == 6


def test_forgetting_says_whether_anything_was_booked() -> None:
    ledger, claim = _ledger(16), asking(4)
    ledger.assume(claim, _grant(claim), 1.0)
    assert [ledger.forget(claim.uid) for _ in range(2)] == [True, False]


def test_assuming_another_place_returns_present_booking() -> None:
    ledger, claim = _ledger(16, 16), asking(10)
    first = ledger.assume(claim, _grant(claim, card=0), deadline=5.0)
    assert ledger.assume(claim, _grant(claim, card=1), deadline=5.0) == first
    assert _free(ledger, 1) == 16


def test_a_card_is_not_assumed_twice_over() -> None:
    ledger = _ledger(16)
    first, second = asking(10, name="a"), asking(10, name="b")
    assert isinstance(ledger.assume(first, _grant(first), 5.0), Booking)
    refusals = ledger.assume(second, _grant(second), 5.0)
    assert isinstance(refusals, list)
    assert [(refusal.reason, refusal.wanted, refusal.had) for refusal in refusals] == [
        (Reason.MEMORY, 10 * GIB, 6 * GIB)
    ]
    assert len(ledger) == 1


def test_whatever_the_last_check_refuses_may_fit_later() -> None:
    ledger = Ledger(a_board(a_node("n1", 16, cpu_milli=1000, memory_mib=1024)))
    first = asking(10, name="first")
    ledger.assume(first, _grant(first), 5.0)
    for claim, node, reason in (
        (asking(10, name="card"), "n1", Reason.MEMORY),
        (asking(1, name="cpu", cpu_milli=1001), "n1", Reason.CPU),
        (asking(1, name="host", memory_mib=1025), "n1", Reason.HOST_MEMORY),
        (asking(1, name="node"), "n2", Reason.NOT_READY),
    ):
        refused = ledger.assume(claim, _grant(claim, node=node), 5.0)
        assert isinstance(refused, list)
        assert [(refusal.reason, refusal.never) for refusal in refused] == [(reason, False)]
    fits = asking(1, name="fits", cpu_milli=1000, memory_mib=1024)
    assert isinstance(ledger.assume(fits, _grant(fits), 5.0), Booking)


def test_an_exclusive_card_and_a_shared_one_exclude_each_other() -> None:
    ledger, shared, alone = _ledger(16), asking(1, name="shared"), whole_cards(1, name="alone")
    ledger.assume(shared, _grant(shared), 5.0)
    refused = ledger.assume(alone, _grant(alone), 5.0)
    assert isinstance(refused, list)
    assert refused[0].reason is Reason.EXCLUSIVE
    ledger.forget("shared")
    assert isinstance(ledger.assume(alone, _grant(alone), 5.0), Booking)
    assert isinstance(ledger.assume(shared, _grant(shared), 5.0), list)


def test_a_card_that_went_away_between_choice_and_booking_is_refused() -> None:
    ledger, claim = _ledger(16, 16), asking(1)
    ledger.board.set_node(a_node("n1", 16))
    refused = ledger.assume(claim, _grant(claim, card=1), 5.0)
    assert isinstance(refused, list)
    assert refused[0].reason is Reason.HEALTH
    ledger.board.drop_node("n1")
    refused = ledger.assume(claim, _grant(claim), 5.0)
    assert isinstance(refused, list)
    assert refused[0].reason is Reason.NOT_READY


def test_a_whole_node_is_not_assumed_over_others() -> None:
    ledger, one, all_of_it = _ledger(16), asking(1, name="one"), whole_node("all")
    ledger.assume(one, _grant(one), 5.0)
    grant = Grant("all", "n1", _grant(whole_cards(1)).containers, whole_node=True)
    refused = ledger.assume(all_of_it, grant, 5.0)
    assert isinstance(refused, list)
    assert refused[0].reason is Reason.WHOLE_NODE


def test_an_assumption_is_late_after_its_deadline_and_forgetting_it_frees_the_card() -> None:
    ledger, claim = _ledger(16), asking(10)
    ledger.assume(claim, _grant(claim), deadline=5.0)
    assert _late(ledger, 4.9) == set()
    assert _late(ledger, 5.0) == {"pod"}
    ledger.forget("pod")
    assert _free(ledger) == 16


def test_a_confirmed_booking_is_never_late() -> None:
    ledger, claim = _ledger(16), asking(10)
    ledger.assume(claim, _grant(claim), deadline=5.0)
    ledger.confirm(claim.uid, "n1", occupant_of(claim, _grant(claim)))
    assert _late(ledger, 1e9) == set()
    assert _free(ledger) == 6


def test_confirm_replaces_assumed_place() -> None:
    ledger, claim = _ledger(16, 16), asking(10)
    ledger.assume(claim, _grant(claim, card=0), deadline=5.0)
    ledger.confirm(claim.uid, "n1", occupant_of(claim, _grant(claim, card=1)))
    assert (_free(ledger, 0), _free(ledger, 1)) == (16, 6)


def test_overbooked_confirmation_is_counted_and_released() -> None:
    ledger = _ledger(16)
    for name in ("a", "b"):
        claim = asking(10, name=name)
        ledger.confirm(claim.uid, "n1", occupant_of(claim, _grant(claim)))
    assert _free(ledger) == -4
    assert isinstance(ledger.assume(asking(1, name="c"), _grant(asking(1, name="c")), 5.0), list)
    assert ledger.forget("a")
    assert ledger.forget("b")
    assert not ledger.forget("b")
    assert _free(ledger) == 16


def test_a_terminating_pod_keeps_its_cards_until_it_is_gone() -> None:
    """Its object is still there, so it is confirmed again with every event; only its absence frees the cards."""
    ledger, claim = _ledger(16), asking(10)
    for _ in range(3):
        ledger.confirm(claim.uid, "n1", occupant_of(claim, _grant(claim)))
    assert _free(ledger) == 6
    ledger.forget(claim.uid)
    assert _free(ledger) == 16


# --- against a naive model -------------------------------------------------------------------------------------------

NODES = {"n1": (16, 24), "n2": (8,), "n3": (16, 16, 16)}


class Bookings(RuleBasedStateMachine):
    """Random events; after each, the board must be what adding up the bookings by hand gives."""

    pods = Bundle("pods")

    @initialize()
    def empty(self) -> None:
        self.board = a_board(*(a_node(name, *sizes) for name, sizes in NODES.items()))
        self.ledger = Ledger(self.board)
        self.choosers = {name: Chooser(self.board, policy()) for name, policy in POLICIES.items()}
        self.there = set(NODES)
        self.held: dict[str, tuple[str, Occupant, float | None]] = {}
        self.told_by_api: set[str] = set()
        self.now = 0.0
        self.count = 0

    @rule(target=pods, memory=st.integers(1, 20), cards=st.integers(1, 3), policy=st.sampled_from(list(POLICIES)),
          app_class=st.sampled_from(list(AppClass)), exclusive=st.booleans())  # fmt: skip
    def schedule(self, memory: int, cards: int, policy: str, app_class: AppClass, exclusive: bool) -> object:
        self.count += 1
        name = f"pod-{self.count}"
        claim = whole_cards(cards, name) if exclusive else asking(memory, count=cards, name=name, app_class=app_class)
        grant = self.choosers[policy].choose(claim)
        if grant is None:
            return multiple()
        assert grant.node in self.there
        booking = self.ledger.assume(claim, grant, self.now + 10)
        assert isinstance(booking, Booking), "what was chosen just now must be free"
        self.held[name] = (grant.node, booking.occupant, self.now + 10)
        return claim

    @rule(claim=pods)
    def confirm(self, claim: Claim) -> None:
        if claim.uid in self.held:
            node, occupant, _ = self.held[claim.uid]
            self.ledger.confirm(claim.uid, node, occupant)
            self.held[claim.uid] = (node, occupant, None)

    @rule(claim=pods, node=st.sampled_from(list(NODES)), card=st.integers(0, 2))
    def api_server_says_otherwise(self, claim: Claim, node: str, card: int) -> None:
        occupant = Occupant({card: Usage(3 * GIB, slices=1)}, claim.app_class)
        self.ledger.confirm(claim.uid, node, occupant)
        self.held[claim.uid] = (node, occupant, None)
        self.told_by_api.add(claim.uid)

    @rule(claim=consumes(pods))
    def gone(self, claim: Claim) -> None:
        assert self.ledger.forget(claim.uid) == (claim.uid in self.held)
        self.held.pop(claim.uid, None)
        self.told_by_api.discard(claim.uid)

    @rule(seconds=st.floats(0, 20))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        late = {uid for uid, (_, _, deadline) in self.held.items() if deadline is not None and deadline <= self.now}
        assert _late(self.ledger, self.now) == late
        for uid in late:
            assert self.ledger.forget(uid)
            del self.held[uid]

    @rule(name=st.sampled_from(list(NODES)))
    def node_blinks(self, name: str) -> None:
        if name in self.there:
            self.board.drop_node(name)
        else:
            self.board.set_node(a_node(name, *NODES[name]))
        self.there ^= {name}

    @invariant()
    def the_board_is_the_sum_of_the_bookings(self) -> None:
        assert {booking.uid for booking in self.ledger} == set(self.held)
        used: dict[tuple[str, int], int] = {}
        slices: dict[tuple[str, int], int] = {}
        for node, occupant, _ in self.held.values():
            for card, usage in occupant.usage.items():
                used[node, card] = used.get((node, card), 0) + usage.memory_mib
                slices[node, card] = slices.get((node, card), 0) + min(usage.slices, 1)
        for name, row in self.board.row_of.items():
            for card in range(self.board.width):
                assert self.board.used_memory[row, card] == used.pop((name, card), 0)
                assert self.board.used_slices[row, card] == slices.pop((name, card), 0)
        assert not any(used.values())

    @invariant()
    def no_card_is_booked_twice_by_us(self) -> None:
        if self.told_by_api:
            return  # what the API server overbooked is its own
        for name in self.there:
            row = self.board.row_of[name]
            for card, size in enumerate(NODES[name]):
                assert self.board.used_memory[row, card] <= size * GIB
                assert self.board.exclusive[row, card] == 0 or self.board.used_slices[row, card] == 1


TestBookings = Bookings.TestCase
TestBookings.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


_asked = st.one_of(
    st.builds(asking, st.integers(1, 16), st.none() | st.integers(1, 100), count=st.integers(1, 2)),
    st.builds(whole_cards, st.integers(1, 2)),
    st.builds(whole_node),
)


_others = occupants() | st.sampled_from(
    [
        Occupant({0: Usage(GIB, slices=1)}),
        Occupant({1: Usage(GIB, slices=1)}),
        Occupant({0: Usage(16 * GIB, slices=1, exclusive=1)}),
        Occupant({}, whole_node=True),
    ]
)


@given(_asked, st.lists(_others, min_size=1, max_size=3))
def test_a_booking_still_fits_exactly_when_it_could_be_made_again(claim: Claim, others: list[Occupant]) -> None:
    ledger = _ledger(16, 16)
    grant = Chooser(ledger.board, POLICIES["binpack"]()).choose(claim)
    assert grant is not None
    booking = ledger.assume(claim, grant, 1.0)
    assert isinstance(booking, Booking)
    assert ledger.still_fits(booking, claim)
    for at, other in enumerate(others):  # the API server says so: they need not fit
        ledger.confirm(f"other-{at}", "n1", other)
        still = ledger.still_fits(booking, claim)
        ledger.forget(claim.uid)
        assert still == isinstance(ledger.assume(claim, grant, 1.0), Booking)
        ledger.confirm(claim.uid, "n1", booking.occupant)


def test_an_empty_ledger_leaves_an_empty_board() -> None:
    board = Board()
    ledger = Ledger(board)
    claim = asking(4)
    ledger.confirm(claim.uid, "unknown", occupant_of(claim, _grant(claim, node="unknown")))
    ledger.forget(claim.uid)
    assert board.row_of == {}


# --- exactly how much ------------------------------------------------------------------------------------------------


def _one_card(size: int = 16384, factor: float = 1.0, max_slices: int | None = None, pool: int = 0) -> Ledger:
    card = Card(0, size, "GPU-0", max_slices=max_slices, oversubscribe=factor)
    return Ledger(a_board(Node("n1", (card,), EVERY_OFFER, cpu_milli=1000, memory_mib=1024, pool_mib=pool)))


@pytest.mark.parametrize(
    ("other", "fits"),
    [
        (Occupant({}), True),
        (Occupant({}, cpu_milli=600, memory_mib=512), True),
        (Occupant({}, cpu_milli=601), False),
        (Occupant({}, memory_mib=513), False),
        (Occupant({0: Usage(12288, 600, 600, 1)}), True),
        (Occupant({0: Usage(12289, slices=1)}), False),
        (Occupant({0: Usage(0, 601, slices=1)}), False),
        (Occupant({0: Usage(0, 0, 601, slices=1)}), False),
        (Occupant({0: Usage(0, slices=1, exclusive=1)}), False),
        (Occupant({}, whole_node=True), False),
    ],
)
def test_booking_fits_as_long_as_nothing_is_overbooked(other: Occupant, fits: bool) -> None:
    ledger, claim = _one_card(), asking(4)
    booking = ledger.confirm("pod", "n1", Occupant({0: Usage(4096, 400, 400, 1)}, cpu_milli=400, memory_mib=512))
    ledger.confirm("other", "n1", other)
    assert ledger.still_fits(booking, claim) is fits
    ledger.board.drop_node("n1")
    assert ledger.still_fits(booking, claim) is False


@pytest.mark.parametrize(
    ("offer", "pods", "fits"), [(Offer.ANY, 2, True), (Offer.ANY, 3, False), (Offer.T9K_SHARED, 3, True)]
)
def test_only_some_dialects_heed_how_many_may_share_a_card(offer: Offer, pods: int, fits: bool) -> None:
    ledger = _one_card(max_slices=2)
    for at in range(pods - 1):
        ledger.confirm(f"other-{at}", "n1", Occupant({0: Usage(1, slices=1)}))
    claim = asking(1, offer=offer)
    assert isinstance(ledger.assume(claim, _grant(claim), 5.0), Booking) is fits
    booking = ledger.confirm(claim.uid, "n1", occupant_of(claim, _grant(claim)))
    assert ledger.still_fits(booking, claim) is fits


@pytest.mark.parametrize(
    ("size", "mine", "parkable", "fixed", "fits"),
    [
        (16384, 11264, [4096], 3584, True),  # and 512 of the other's context, 1024 of reserve
        (16384, 11264, [4096], 3585, False),
        (16384, 4096, [11264], 3585, False),
        (16384, 12288, [], 4096, True),  # all of it fits together: no reserve
        (16384, 12288, [], 4097, False),
        (4096, 100, [], 3996, True),
        (4096, 100, [], 3997, False),  # no larger context than its memory
    ],
)
def test_booking_fits_as_long_as_each_can_be_on_the_card(
    size: int, mine: int, parkable: list[int], fixed: int, fits: bool
) -> None:
    ledger = _one_card(size, 2.0, pool=100 * GIB)
    booking = ledger.confirm("pod", "n1", Occupant({0: Usage(mine, slices=1)}, parkable=True))
    for at, memory in enumerate(parkable):
        ledger.confirm(f"parkable-{at}", "n1", Occupant({0: Usage(memory, slices=1)}, parkable=True))
    ledger.confirm("fixed", "n1", Occupant({0: Usage(fixed, slices=1)}))
    assert ledger.still_fits(booking, asking(1)) is fits


@pytest.mark.parametrize(("pool", "fits"), [(4096, True), (4095, False)])
def test_booking_fits_as_long_as_the_pool_does(pool: int, fits: bool) -> None:
    ledger, claim = _one_card(factor=2.0, pool=pool), asking(1)
    for name in ("pod", "other"):
        ledger.confirm(name, "n1", Occupant({0: Usage(10240, slices=1)}, parkable=True))
    booking = ledger.get("pod")
    assert booking is not None
    assert ledger.still_fits(booking, claim) is fits


def test_booking_of_a_card_that_never_was_does_not_fit() -> None:
    ledger, claim = _one_card(), asking(1)
    booking = ledger.confirm(claim.uid, "n1", occupant_of(claim, _grant(claim, card=1)))
    assert ledger.still_fits(booking, claim) is False


@pytest.mark.parametrize(("max_slices", "others", "fits"), [(None, 0, True), (0, 0, True), (None, 1, False)])
def test_booking_of_a_whole_card_fits_while_it_is_alone(max_slices: int | None, others: int, fits: bool) -> None:
    ledger, usage = _one_card(max_slices=max_slices), {0: Usage(16384, slices=1, exclusive=1)}
    booking = ledger.confirm("pod", "n1", Occupant(usage))
    for at in range(others):
        ledger.confirm(f"other-{at}", "n1", Occupant({0: Usage(0, slices=1)}))
    assert ledger.still_fits(booking, asking(1)) is fits


@pytest.mark.parametrize(
    ("whole", "other", "fits"),
    [
        (True, None, True),
        (True, Occupant({0: Usage(0, slices=1)}), False),
        (True, Occupant({}, whole_node=True), False),
        (False, Occupant({}, whole_node=True), False),
    ],
)
def test_booking_of_a_whole_node_fits_while_it_is_alone(whole: bool, other: Occupant | None, fits: bool) -> None:
    ledger = _one_card()
    booking = ledger.confirm("pod", "n1", Occupant({}, whole_node=whole))
    if other is not None:
        ledger.confirm("other", "n1", other)
    assert ledger.still_fits(booking, whole_node()) is fits


def test_classes_count_those_that_have_cards() -> None:
    ledger = _one_card()
    ledger.confirm("a", "n1", Occupant({0: Usage(1, slices=1)}, AppClass.ONLINE))
    ledger.confirm("b", "n1", Occupant({0: Usage(1, slices=1)}, AppClass.ONLINE))
    ledger.confirm("c", "n1", Occupant({}, AppClass.ONLINE))
    assert ledger.classes == {AppClass.ONLINE: 2}
    ledger.forget("c")
    ledger.forget("a")
    assert ledger.classes == {AppClass.ONLINE: 1}


def test_last_check_names_what_is_short_and_how_much_there_is() -> None:
    ledger = _one_card(factor=2.0, pool=1024)
    ledger.confirm("a", "n1", Occupant({0: Usage(8192, slices=1)}, cpu_milli=900, memory_mib=1000, parkable=True))

    def refused(claim: Claim, *, whole: bool = False) -> list[tuple[Reason, object, object]]:
        found = ledger.assume(claim, replace(_grant(claim), whole_node=whole), 5.0)
        assert isinstance(found, list)
        assert not any(refusal.never for refusal in found)
        return [(refusal.reason, refusal.wanted, refusal.had) for refusal in found]

    assert refused(asking(16)) == [(Reason.MEMORY, 16384, 8192)]  # and not the pool: it would not help
    assert refused(asking(10, park_after=1.0)) == [(Reason.MEMORY, 10240, 9216)]  # the pool counts as room
    assert refused(asking(1, cpu_milli=101, memory_mib=25)) == [(Reason.CPU, 101, 100), (Reason.HOST_MEMORY, 25, 24)]
    assert refused(asking(1), whole=True) == [(Reason.WHOLE_NODE, 0, 1)]
    claim = asking(9, park_after=1.0, cpu_milli=100, memory_mib=24)
    assert isinstance(ledger.assume(claim, _grant(claim), 5.0), Booking)
    ledger.confirm("over", "n1", Occupant({}, cpu_milli=500, memory_mib=500))
    assert isinstance(ledger.assume(asking(0, name="none"), _grant(asking(0, name="none")), 5.0), Booking)


@pytest.mark.parametrize(("spare", "short"), [(2000, []), (1999, [(Reason.HOST_POOL, 2000, 1999)])])
def test_last_check_adds_up_what_goes_beyond_several_cards(spare: int, short: list[tuple[Reason, int, int]]) -> None:
    """A Pod on several cards is not parked, but those beside it are."""
    cards = tuple(Card(at, 16384, f"GPU-{at}", oversubscribe=2.0) for at in range(2))
    beyond = 2 * (8000 + 12000 - 16384)
    ledger = Ledger(a_board(Node("n1", cards, EVERY_OFFER, pool_mib=beyond + spare)))
    for name, memory in (("a", 8000), ("b", 12000)):
        ledger.confirm(name, "n1", Occupant({at: Usage(memory, slices=1) for at in range(2)}, parkable=True))
    claim = asking(1, count=2)
    shares = tuple(Share(at, 1000) for at in range(2))
    found = ledger.assume(claim, Grant(claim.uid, "n1", (ContainerGrant("main", 0, Role.MAIN, shares),)), 5.0)
    refusals = found if isinstance(found, list) else []
    assert [(refusal.reason, refusal.wanted, refusal.had) for refusal in refusals] == short
