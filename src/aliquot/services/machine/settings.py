"""The factors of oversubscription of a machine's cards, kept over restarts."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace

from aliquot.adapters.storage.store import Store
from aliquot.model.device import LEAST_FACTOR
from aliquot.model.node import Node

_KEY = "oversubscribe"


class Factors:
    """By the UUID of the card; a card that is not named has the factor 1."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.by_uuid: dict[str, float] = json.loads(store.setting(_KEY) or "{}")

    def applied(self, node: Node) -> Node:
        """The node with the factors of its cards."""
        cards = tuple(replace(card, oversubscribe=self.by_uuid.get(card.uuid, LEAST_FACTOR)) for card in node.cards)
        return replace(node, cards=cards)

    def changed(self, factor: float, uuids: Collection[str]) -> dict[str, float]:
        """All factors, with this one for those cards."""
        return {**self.by_uuid, **dict.fromkeys(uuids, factor)}

    def keep(self, factors: dict[str, float]) -> None:
        """For the next daemon. Raises StoreError."""
        self._store.set(_KEY, json.dumps(factors))
