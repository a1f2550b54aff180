"""What a Pod wants of cards, in a few words."""

from __future__ import annotations

import pytest

from aliquot.model.claim import Claim, ContainerClaim, Role, Slice
from aliquot.model.node import Offer
from aliquot.wording.requests import on_cards, requests, wants


def a_claim(*parts: tuple[Slice, int | None], whole_node: bool = False) -> Claim:
    containers = tuple(
        ContainerClaim(f"c{at}", at, Role.MAIN, part, count=count) for at, (part, count) in enumerate(parts)
    )
    return Claim("u", "default", "p", "qgpu", Offer.QGPU, containers, whole_node=whole_node)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([(Slice(memory_mib=10240, core_milli=300), 1)], "10 GiB, 30%"),
        ([(Slice(memory_mib=3072), 4)], "3 GiB on each of 4 cards"),
        ([(Slice(memory_mib=1000), 1)], "1000 MiB"),
        ([(Slice(memory_mib=1536), 1)], "1.5 GiB"),
        ([(Slice(memory_percent=40, core_milli=125), 1)], "40% of memory, 12.5%"),
        ([(Slice(memory_mib=1024, greedy_milli=500), 1)], "1 GiB, 50% offline"),
        ([(Slice(memory_mib=1024), None)], "1 GiB on every card"),
        ([(Slice(exclusive=True), 1)], "a whole card"),
        ([(Slice(exclusive=True), 2)], "2 whole cards"),
        ([(Slice(exclusive=True), None)], "every card of a node"),
        ([(Slice(memory_mib=1024), 1), (Slice(exclusive=True), 1)], "1 GiB + a whole card"),
        ([(Slice(memory_mib=1024), 1)] * 2, "1 GiB"),
        ([(Slice(memory_mib=1024 * at), 1) for at in range(1, 6)], "5 containers' cards"),
    ],
)
def test_wants_is_an_amount_per_container(parts: list[tuple[Slice, int | None]], words: str) -> None:
    assert wants(a_claim(*parts)) == words


def test_wants_names_a_whole_node() -> None:
    assert wants(a_claim((Slice(exclusive=True), None), whole_node=True)) == "a whole node"


def test_requests_names_the_dialect() -> None:
    claim = a_claim((Slice(memory_mib=1024), 2))
    assert requests(wants(claim), claim.dialect) == "requests 1 GiB on each of 2 cards (qgpu)"


def test_on_cards_words_a_run_alike() -> None:
    assert on_cards(["4 GiB"], 2) == "4 GiB on each of 2 cards"
    assert on_cards([], 1) == "a whole card"
