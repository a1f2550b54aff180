"""A claim as what is compared with cards."""

from __future__ import annotations

import pytest

from aliquot.model.claim import Claim, Role, Slice, Usage
from aliquot.placement.demand import demand_of
from kit.values.builders import GIB, a_claim, a_container, a_slice, asking, whole_cards, whole_node

WHOLE = whole_cards(1).containers[0].slice


@pytest.mark.parametrize(("part", "park_after", "parkable"), [(a_slice(4), 30.0, True), (WHOLE, 30.0, False)])
def test_demand_may_be_parked_where_no_card_is_held_whole(part: Slice, park_after: float, parkable: bool) -> None:
    assert demand_of(a_claim(a_container(part), park_after=park_after)).parkable is parkable


def test_demand_of_containers_that_stay_together_is_that_of_one_that_uses_as_much() -> None:
    """So that they share the scores that are kept."""
    together = (a_container(a_slice(4, 20), 2, name="a"), a_container(a_slice(4, 10), 1, name="b", index=1))
    assert demand_of(a_claim(*together, together=True)) == demand_of(asking(8, 30, count=2))


def test_demand_of_containers_that_stay_together_holds_the_card_if_one_of_them_does() -> None:
    for parts in ((WHOLE, a_slice(1)), (a_slice(1), WHOLE), (WHOLE, WHOLE)):
        containers = (a_container(part, name=f"c{at}", index=at) for at, part in enumerate(parts))
        assert demand_of(a_claim(*containers, together=True)).parts[0].slice.exclusive


def test_demand_of_percentages_that_stay_together_is_their_sum_rounded_up() -> None:
    parts = (a_container(Slice(memory_percent=part), name=f"c{at}", index=at) for at, part in enumerate((20, 30)))
    assert demand_of(a_claim(*parts, together=True)) == demand_of(a_claim(a_container(Slice(memory_percent=50))))


@pytest.mark.parametrize(
    ("claim", "at_once"),
    [
        (a_claim(a_container(a_slice(4, 20), 2), a_container(a_slice(2), name="b", index=1)), Usage(10 * GIB, 400)),
        (a_claim(a_container(a_slice(9), role=Role.INIT), a_container(a_slice(2), name="b")), Usage(9 * GIB)),
        (asking(4, count=2), Usage()),
        (whole_node(), Usage()),
    ],
)
def test_demand_of_containers_that_go_apart_is_what_they_use_at_once(claim: Claim, at_once: Usage) -> None:
    assert demand_of(claim).at_once == at_once
