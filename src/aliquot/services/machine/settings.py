"""What users set, kept over restarts: how the cards are shared, and the factors of their oversubscription."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace

from msgspec import structs

from aliquot.adapters.storage.store import Store
from aliquot.model.device import LEAST_FACTOR
from aliquot.model.node import Isolation, Node
from aliquot.model.tenant import AUTO, SharingRules

_KEY = "oversubscribe"


class Factors:
    """By the UUID of the card; a card that is not named has the factor 1."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.by_uuid: dict[str, float] = json.loads(store.setting(_KEY) or "{}")

    def applied(self, node: Node) -> Node:
        """The node with the factors of its cards."""
        cards = tuple(
            structs.replace(card, oversubscribe=self.by_uuid.get(card.uuid, LEAST_FACTOR)) for card in node.cards
        )
        return structs.replace(node, cards=cards)

    def changed(self, factor: float, uuids: Collection[str]) -> dict[str, float]:
        """All factors, with this one for those cards."""
        return {**self.by_uuid, **dict.fromkeys(uuids, factor)}

    def keep(self, factors: dict[str, float]) -> None:
        """For the next daemon. Raises StoreError."""
        self._store.set(_KEY, json.dumps(factors))


def stored_rules(store: Store) -> SharingRules:
    """What an earlier daemon kept, or the defaults."""
    isolation, delay = store.setting("policy"), store.setting("release_delay")
    kill_after = store.setting("kill_after")
    rules = SharingRules(release_delay=None, kill_after=float(kill_after) if kill_after else None)
    if isolation is not None:
        rules = replace(rules, isolation=Isolation(isolation))
    return rules if delay in (None, AUTO) else replace(rules, release_delay=float(delay))


def keep_rules(store: Store, rules: SharingRules) -> None:
    """For the next daemon. Raises StoreError."""
    store.set("policy", rules.isolation.value)
    store.set("release_delay", AUTO if rules.release_delay is None else repr(rules.release_delay))
    store.set("kill_after", "" if rules.kill_after is None else repr(rules.kill_after))
