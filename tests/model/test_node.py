"""Cards dealt out over nodes."""

from __future__ import annotations

from aliquot.model.device import Card
from aliquot.model.node import OF_DEVICES, Offer, deal


def test_cards_are_dealt_out_evenly_and_numbered_within_their_node() -> None:
    cards = [Card(index, 1024, uuid=f"GPU-{index}") for index in range(4)]
    first, second = deal(cards, ("node-0", "node-1"))
    assert [(card.index, card.uuid) for card in first.cards] == [(0, "GPU-0"), (1, "GPU-1")]
    assert [(card.index, card.uuid) for card in second.cards] == [(0, "GPU-2"), (1, "GPU-3")]
    assert first.offers == frozenset(Offer) - OF_DEVICES


def test_an_offer_hashes_as_the_text_that_it_equals() -> None:
    assert all(offer == str(offer.value) and hash(offer) == hash(offer.value) for offer in Offer)
