"""The agent's last look: no card beyond what it has, and never a no where the scheduler's board says yes."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from aliquot.model.claim import AppClass, Usage
from aliquot.model.device import CORE_MILLI, Card
from aliquot.model.grant import Share
from aliquot.model.node import Node
from aliquot.placement.board import Board, Occupant
from aliquot.placement.crowding import crowded
from aliquot.placement.fit import short_of
from kit.builders import EVERY_OFFER, GIB

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
one_per_card = st.lists(shares, max_size=2, unique_by=lambda share: share.card)  # as a Pod holds them


def test_there_is_room_on_an_empty_card() -> None:
    assert crowded(CARDS, [], [a_share(16, 100)]) is None


def test_memory_that_does_not_fit_is_told_with_all_the_numbers() -> None:
    said = crowded(CARDS, [a_share(12)], [a_share(5)])
    assert said == "card 0 has 16384 MiB, of which 12288 are taken: 5120 more do not fit"


def test_compute_that_does_not_fit_is_told_with_all_the_numbers() -> None:
    said = crowded(CARDS, [a_share(1, 70)], [a_share(1, 40)])
    assert said == "card 0 has 70% of its compute given away already: 40% more do not fit"


def test_offline_compute_is_counted_by_itself() -> None:
    assert crowded(CARDS, [a_share(1, 100)], [a_share(1, greedy=100)]) is None
    said = crowded(CARDS, [a_share(1, greedy=70)], [a_share(1, greedy=40)])
    assert said == "card 0 has 70% of its offline compute given away already: 40% more do not fit"


def test_a_card_that_a_pod_has_whole_is_no_others() -> None:
    said = crowded(CARDS, [a_share(16, whole=True)], [a_share(0)])
    assert said == "card 0 is not free for it: a Pod has it whole"


def test_a_card_in_use_is_not_given_whole() -> None:
    assert crowded(CARDS, [a_share(1)], [a_share(16, whole=True)]) == "card 0 is not free for it: in use"


def test_other_cards_do_not_count() -> None:
    assert crowded(CARDS, [a_share(16, 100, card=1)], [a_share(16, 100, card=0)]) is None


def test_a_card_that_is_not_here_is_not_judged() -> None:
    assert crowded(CARDS, [], [a_share(99, card=5)]) is None


@given(st.lists(one_per_card, max_size=8))
def test_whoever_is_let_in_one_after_the_other_never_has_more_than_the_cards_have(pods: list[list[Share]]) -> None:
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
def test_what_the_board_accepts_is_never_refused_whatever_is_booked(held: list[Share], pod: list[Share]) -> None:
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
