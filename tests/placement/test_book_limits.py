"""Exactly how much a booking may take, and what the last check says is short."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from aliquot.model.claim import AppClass, Claim, Role, Usage
from aliquot.model.device import Card
from aliquot.model.grant import ContainerGrant, Grant, Share
from aliquot.model.node import Node, Offer
from aliquot.model.refusal import Reason
from aliquot.placement.board import Occupant
from aliquot.placement.book import Booking, Ledger, occupant_of
from kit.values.builders import EVERY_OFFER, GIB, a_board, asking, whole_node
from kit.values.ledgers import grant_of, one_card


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
    ledger, claim = one_card(), asking(4)
    booking = ledger.confirm("pod", "n1", Occupant({0: Usage(4096, 400, 400, 1)}, cpu_milli=400, memory_mib=512))
    ledger.confirm("other", "n1", other)
    assert ledger.still_fits(booking, claim) is fits
    ledger.board.drop_node("n1")
    assert ledger.still_fits(booking, claim) is False


@pytest.mark.parametrize(
    ("offer", "pods", "fits"), [(Offer.ANY, 2, True), (Offer.ANY, 3, False), (Offer.T9K_SHARED, 3, True)]
)
def test_only_some_dialects_heed_how_many_may_share_a_card(offer: Offer, pods: int, fits: bool) -> None:
    ledger = one_card(max_slices=2)
    for at in range(pods - 1):
        ledger.confirm(f"other-{at}", "n1", Occupant({0: Usage(1, slices=1)}))
    claim = asking(1, offer=offer)
    assert isinstance(ledger.assume(claim, grant_of(claim), 5.0), Booking) is fits
    booking = ledger.confirm(claim.uid, "n1", occupant_of(claim, grant_of(claim)))
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
    ledger = one_card(size, 2.0, pool=100 * GIB)
    booking = ledger.confirm("pod", "n1", Occupant({0: Usage(mine, slices=1)}, parkable=True))
    for at, memory in enumerate(parkable):
        ledger.confirm(f"parkable-{at}", "n1", Occupant({0: Usage(memory, slices=1)}, parkable=True))
    ledger.confirm("fixed", "n1", Occupant({0: Usage(fixed, slices=1)}))
    assert ledger.still_fits(booking, asking(1)) is fits


@pytest.mark.parametrize(("pool", "fits"), [(4096, True), (4095, False)])
def test_booking_fits_as_long_as_the_pool_does(pool: int, fits: bool) -> None:
    ledger, claim = one_card(factor=2.0, pool=pool), asking(1)
    for name in ("pod", "other"):
        ledger.confirm(name, "n1", Occupant({0: Usage(10240, slices=1)}, parkable=True))
    booking = ledger.get("pod")
    assert booking is not None
    assert ledger.still_fits(booking, claim) is fits


def test_booking_of_a_card_that_never_was_does_not_fit() -> None:
    ledger, claim = one_card(), asking(1)
    booking = ledger.confirm(claim.uid, "n1", occupant_of(claim, grant_of(claim, card=1)))
    assert ledger.still_fits(booking, claim) is False


@pytest.mark.parametrize(("max_slices", "others", "fits"), [(None, 0, True), (0, 0, True), (None, 1, False)])
def test_booking_of_a_whole_card_fits_while_it_is_alone(max_slices: int | None, others: int, fits: bool) -> None:
    ledger, usage = one_card(max_slices=max_slices), {0: Usage(16384, slices=1, exclusive=1)}
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
    ledger = one_card()
    booking = ledger.confirm("pod", "n1", Occupant({}, whole_node=whole))
    if other is not None:
        ledger.confirm("other", "n1", other)
    assert ledger.still_fits(booking, whole_node()) is fits


def test_classes_count_those_that_have_cards() -> None:
    ledger = one_card()
    ledger.confirm("a", "n1", Occupant({0: Usage(1, slices=1)}, AppClass.ONLINE))
    ledger.confirm("b", "n1", Occupant({0: Usage(1, slices=1)}, AppClass.ONLINE))
    ledger.confirm("c", "n1", Occupant({}, AppClass.ONLINE))
    assert ledger.classes == {AppClass.ONLINE: 2}
    ledger.forget("c")
    ledger.forget("a")
    assert ledger.classes == {AppClass.ONLINE: 1}


def test_last_check_names_what_is_short_and_how_much_there_is() -> None:
    ledger = one_card(factor=2.0, pool=1024)
    ledger.confirm("a", "n1", Occupant({0: Usage(8192, slices=1)}, cpu_milli=900, memory_mib=1000, parkable=True))

    def refused(claim: Claim, *, whole: bool = False) -> list[tuple[Reason, object, object]]:
        found = ledger.assume(claim, replace(grant_of(claim), whole_node=whole), 5.0)
        assert isinstance(found, list)
        assert not any(refusal.never for refusal in found)
        return [(refusal.reason, refusal.wanted, refusal.had) for refusal in found]

    assert refused(asking(16)) == [(Reason.MEMORY, 16384, 8192)]  # and not the pool: it would not help
    assert refused(asking(10, park_after=1.0)) == [(Reason.MEMORY, 10240, 9216)]  # the pool counts as room
    assert refused(asking(1, cpu_milli=101, memory_mib=25)) == [(Reason.CPU, 101, 100), (Reason.HOST_MEMORY, 25, 24)]
    assert refused(asking(1), whole=True) == [(Reason.WHOLE_NODE, 0, 1)]
    claim = asking(9, park_after=1.0, cpu_milli=100, memory_mib=24)
    assert isinstance(ledger.assume(claim, grant_of(claim), 5.0), Booking)
    ledger.confirm("over", "n1", Occupant({}, cpu_milli=500, memory_mib=500))
    assert isinstance(ledger.assume(asking(0, name="none"), grant_of(asking(0, name="none")), 5.0), Booking)


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
