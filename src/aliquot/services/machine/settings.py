"""What users set, kept over restarts: how the cards are shared, the factors of their oversubscription, and options of
the daemon."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from collections.abc import Collection
from contextlib import closing
from dataclasses import replace
from typing import Literal
from urllib.parse import quote

import msgspec
from msgspec import structs

from aliquot.adapters.storage.store import Store, StoreError
from aliquot.model.device import LEAST_FACTOR
from aliquot.model.node import Isolation, Node
from aliquot.model.tenant import AUTO, SharingRules

_KEY = "oversubscribe"
_OPTIONS = "options"
_LOG = logging.getLogger("aliquot")


class KeptOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Options of `aliquot up` that the next daemon has too, unless it is given others. None: never given."""

    listen: str | None = None
    token_file: str | None = None
    log_limit: int | None = None  # bytes; 0: no limit
    keep_usage: int | None = None  # days
    metrics_names: Literal["aliquot", "qgpu"] | None = None
    control: Literal["auto", "trust", "gate"] | None = None


def stored_options(database: str) -> KeptOptions:
    """Those of the last daemon. They are needed before the store is opened, which may move a damaged file aside: here a
    file that cannot be read has none."""
    if not os.path.exists(database):
        return KeptOptions()
    try:
        with closing(sqlite3.connect(f"file:{quote(database)}?mode=ro", uri=True)) as connection:
            row = connection.execute("SELECT value FROM settings WHERE key = ?", (_OPTIONS,)).fetchone()
        return msgspec.json.decode(row[0], type=KeptOptions) if row else KeptOptions()
    except (sqlite3.Error, msgspec.MsgspecError, TypeError) as error:
        _LOG.warning("stored_options_not_read", extra={"data": {"error": str(error)}})
        return KeptOptions()


def keep_options(store: Store, options: KeptOptions) -> None:
    """For the next daemon."""
    try:
        store.set(_OPTIONS, msgspec.json.encode(options).decode())
    except StoreError as error:
        _LOG.error("settings_not_stored", extra={"data": {"error": str(error)}})


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
