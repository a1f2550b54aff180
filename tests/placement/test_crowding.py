"""The agent's last look: no card beyond what it has, and never a no where the scheduler's board says yes."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from aliquot.model.claim import AppClass, Usage
from aliquot.model.device import CORE_MILLI, Card
from aliquot.model.grant import Share
from aliquot.model.node import Node
from aliquot.model.refusal import Reason, Refusal
from aliquot.placement.board import Board, Occupant
from aliquot.placement.crowding import crowded
from aliquot.placement.fit import short_of
from kit.values.builders import EVERY_OFFER, GIB

CARDS = {f"GPU-{at}": Card(at, 16 * GIB, f"GPU-{at}") for at in range(2)}


def a_share(
    gib: int = 4, core: int | None = None, greedy: int | None = None, *, card: int = 0, whole: bool = False
) -> Share:
    """In GiB and percent."""
    return Share(
        card,
        gib * GIB,
        None if core is None else core * 10,
        None if greedy is None else greedy * 10,
        whole,
        f"GPU-{card}",
    )


amounts = st.none() | st.sampled_from([0, 10, 30, 50, 70, 100])
shares = st.builds(
    a_share,
    st.sampled_from([0, 1, 4, 7, 8, 9, 16, 17]),
    amounts,
    amounts,
    card=st.integers(0, 1),
    whole=st.sampled_from([False, False, False, True]),
)


def refused(reason: Reason, wanted: int, had: int) -> Refusal:
    return Refusal("", 0, reason, wanted, had, never=False)


one_per_card = st.lists(shares, max_size=2, unique_by=lambda share: share.card)  # as a Pod holds them


def test_crowded_finds_room_on_an_empty_card() -> None:
    assert crowded(CARDS, [], [a_share(16, 100)]) is None


def test_crowded_refuses_memory_that_does_not_fit() -> None:
    assert crowded(CARDS, [a_share(12)], [a_share(5)]) == refused(Reason.MEMORY, 5120, 4096)


def test_crowded_refuses_compute_that_does_not_fit() -> None:
    assert crowded(CARDS, [a_share(1, 70)], [a_share(1, 40)]) == refused(Reason.CORE, 400, 300)


def test_crowded_counts_offline_compute_by_itself() -> None:
    assert crowded(CARDS, [a_share(1, 100)], [a_share(1, greedy=100)]) is None
    assert crowded(CARDS, [a_share(1, greedy=70)], [a_share(1, greedy=40)]) == refused(Reason.GREEDY, 400, 300)


def test_crowded_refuses_a_card_held_exclusively() -> None:
    assert crowded(CARDS, [a_share(16, whole=True)], [a_share(0)]) == refused(Reason.EXCLUSIVE, 0, 1)


def test_crowded_refuses_exclusive_use_of_a_shared_card() -> None:
    assert crowded(CARDS, [a_share(1)], [a_share(16, whole=True)]) == refused(Reason.EXCLUSIVE, 0, 1)


def test_crowded_ignores_other_cards() -> None:
    assert crowded(CARDS, [a_share(16, 100, card=1)], [a_share(16, 100, card=0)]) is None


def test_crowded_ignores_unknown_cards() -> None:
    assert crowded(CARDS, [], [a_share(99, card=5)]) is None


@given(st.lists(one_per_card, max_size=8))
def test_pods_that_crowded_accepts_never_exceed_the_cards(pods: list[list[Share]]) -> None:
    held: list[Share] = []
    for pod in pods:
        if crowded(CARDS, held, pod) is None:
            held += pod
    for card in CARDS.values():
        here = [share for share in held if share.uuid == card.uuid]
        assert sum(share.memory_mib for share in here) <= card.memory_mib
        assert sum(share.core_milli or 0 for share in here) <= CORE_MILLI
        assert sum(share.greedy_milli or 0 for share in here) <= CORE_MILLI
        assert len(here) <= 1 or not any(share.exclusive for share in here)


@given(st.lists(shares, max_size=5), one_per_card)
@example([a_share(1, card=0), a_share(16, card=0)], [a_share(0, card=0)])
def test_crowded_never_refuses_what_the_board_accepts(held: list[Share], pod: list[Share]) -> None:
    board = Board()
    board.set_node(Node("n1", tuple(CARDS.values()), EVERY_OFFER))
    for share in held:
        board.take("n1", Occupant({share.card: share.usage()}, AppClass.NORMAL))
    fits = not any(short_of(board, board.row_of["n1"], share.card, share.usage(), limited=False) for share in pod)
    assert (crowded(CARDS, held, pod) is None) == fits


@given(st.lists(shares, max_size=5), one_per_card)
def test_what_does_not_fit_does_not_fit_beside_more_either(held: list[Share], pod: list[Share]) -> None:
    assume(crowded(CARDS, held, pod) is not None)
    assert crowded(CARDS, [*held, a_share(1, card=0), a_share(1, card=1)], pod) is not None


def test_a_share_counts_as_it_is_booked() -> None:
    assert a_share(4, 20, 10).usage() == Usage(4 * GIB, 200, 100, 1, 0)


@given(st.lists(st.tuples(shares, st.booleans()), max_size=5), one_per_card, st.booleans())
@example([(a_share(1, card=0), False), (a_share(16, card=0), False)], [a_share(0, card=0)], False)
def test_crowded_and_the_board_agree_on_cards_booked_beyond_their_memory(
    held: list[tuple[Share, bool]], pod: list[Share], parkable: bool
) -> None:
    cards = {uuid: replace(card, oversubscribe=1.5) for uuid, card in CARDS.items()}
    board = Board()
    board.set_node(Node("n1", tuple(cards.values()), EVERY_OFFER, pool_mib=1000 * GIB))
    for share, may_park in held:
        board.take("n1", Occupant({share.card: share.usage()}, AppClass.NORMAL, parkable=may_park))
    fits = not any(short_of(board, 0, share.card, share.usage(), limited=False, parkable=parkable) for share in pod)
    stays, parked = ([share for share, may_park in held if may_park is which] for which in (False, True))
    assert (crowded(cards, stays, pod, parkable=parkable, parked=parked) is None) == fits


def mib(*amounts: int) -> list[Share]:
    return [Share(0, amount, uuid="GPU-0") for amount in amounts]


@pytest.mark.parametrize(
    ("size", "held", "parked", "parkable", "room"),
    [
        (16384, [], [], False, 16384),
        (16384, [], [], True, 16384),
        (16384, [12000], [], False, 4384),
        (16384, [], [12000], False, 4384),  # all of it fits together: no reserve
        (16384, [], [8000, 12000], False, 2848),  # 16384 - 1024 of reserve - 512 of a context - 12000
        (16384, [], [12000, 8000], False, 2848),
        (16384, [], [8000, 12000], True, 12768),  # up to twice the card
        (16384, [], [300, 12000, 12000], False, 2548),
        (16384, [], [300, 12000, 12000], True, 8468),
        (16384, [1000], [8000, 12000], False, 1848),
        (16384, [2848], [12000], True, 12000),  # 2848 + 12000 + 1024 of reserve + 512 of a context
        (16384, [2849], [12000], True, 1535),  # so that the one that is parked could not come back: only what is free
        (16384, [5000], [12000], True, 0),
        (4096, [], [100], False, 3996),  # no larger context than its memory
    ],
)
def test_crowded_leaves_exactly_that_room(
    size: int, held: list[int], parked: list[int], parkable: bool, room: int
) -> None:
    cards = {"GPU-0": Card(0, size, "GPU-0", oversubscribe=2.0)}

    def asked(*more: int) -> Refusal | None:
        return crowded(cards, mib(*held), mib(*more), parkable=parkable, parked=mib(*parked))

    assert asked(room) is None
    assert asked(room + 1) == refused(Reason.MEMORY, room + 1, room)
    if room > 1 and not parkable:  # of one Pod's containers too
        assert asked(room - 1, 1) is None
        assert asked(room - 1, 2) == refused(Reason.MEMORY, 2, 1)


def test_crowded_says_that_nothing_is_left_of_what_is_overbooked() -> None:
    over = [a_share(9, 60, 60), a_share(9, 60, 60)]
    assert crowded(CARDS, over, [a_share(1)]) == refused(Reason.MEMORY, GIB, 0)
    light = [replace(share, memory_mib=1) for share in over]
    assert crowded(CARDS, light, [a_share(1, 1)]) == refused(Reason.CORE, 10, 0)
    assert crowded(CARDS, light, [a_share(1, greedy=1)]) == refused(Reason.GREEDY, 10, 0)
    assert crowded(CARDS, light, [a_share(1, 0, 0)]) is None
    assert crowded(CARDS, [a_share(1, 60, 60)], [a_share(1, 40, 40)]) is None


def test_crowded_looks_at_every_card_of_the_pod() -> None:
    assert crowded(CARDS, [a_share(16, card=1)], [a_share(99, card=5), a_share(1), a_share(1, card=1)]) == Refusal(
        "", 1, Reason.MEMORY, GIB, 0, never=False
    )
