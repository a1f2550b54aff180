"""Booking against a naive model: no sequence of events double-books a card or leaks a byte of it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from aliquot.model.claim import AppClass, Claim, Usage
from aliquot.placement.board import Occupant
from aliquot.placement.book import Booking, Ledger
from aliquot.placement.choose import POLICIES, Chooser
from kit.values.boards import occupants
from kit.values.builders import GIB, a_board, a_node, asking, whole_cards, whole_node
from kit.values.ledgers import late_bookings, ledger_of

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
        assert late_bookings(self.ledger, self.now) == late
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
    ledger = ledger_of(16, 16)
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
