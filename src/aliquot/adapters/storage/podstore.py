"""The agent's state in SQLite: which Pods and ResourceClaims hold how much of which card, and the cards.

There are no copies: when the file is lost, the agent asks the API server and the kubelet again. When it is lost while
the agent runs (people delete files that are in use), everything known is written to a new file before the next write.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from msgspec.structs import astuple

from aliquot.adapters.storage.database import STRICT, Database, StoreError
from aliquot.adapters.storage.database import examine as examine_database
from aliquot.adapters.storage.tenantstore import TenantStore, insert_setting
from aliquot.model.device import Card

__all__ = ["PodStore", "StoreError"]

_APPLICATION = 0x416C7150  # "AlqP": distinguishes it from the state of a machine's daemon, whose file has the same name
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_BOOT = "boot"  # the setting with the boot id that the cards belong to

_STEPS = (
    f"""
    CREATE TABLE tenancies (
        uid       TEXT PRIMARY KEY,
        namespace TEXT NOT NULL,
        name      TEXT NOT NULL,
        class     TEXT NOT NULL,
        created   REAL NOT NULL
    ) {STRICT};
    CREATE TABLE shares (
        pod          TEXT NOT NULL REFERENCES tenancies (uid) ON DELETE CASCADE,
        card         INTEGER NOT NULL,
        memory_mib   INTEGER NOT NULL,
        core_milli   INTEGER,
        greedy_milli INTEGER,
        exclusive    INTEGER NOT NULL,
        uuid         TEXT NOT NULL,
        PRIMARY KEY (pod, card)
    ) {STRICT};
    CREATE TABLE cards (
        number     INTEGER PRIMARY KEY,
        memory_mib INTEGER NOT NULL,
        uuid       TEXT NOT NULL,
        model      TEXT NOT NULL,
        healthy    INTEGER NOT NULL,
        numa       INTEGER,
        max_slices INTEGER
    ) {STRICT};
    CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL) {STRICT};
    """,
    # 2: ResourceClaims are tenants too
    "ALTER TABLE tenancies ADD COLUMN claim INTEGER NOT NULL DEFAULT 0;",
    # 3: when memory may be parked
    "ALTER TABLE tenancies ADD COLUMN park_after REAL;",
    # 4: the latency that online work accepts
    "ALTER TABLE tenancies ADD COLUMN latency REAL;",
    # 5: Pods that share a card in space
    """
    ALTER TABLE tenancies ADD COLUMN groupname TEXT NOT NULL DEFAULT '';
    ALTER TABLE tenancies ADD COLUMN user INTEGER;
    """,
)
_OLDEST = 1  # the first version whose program may use a file that all steps have made


class PodStore(TenantStore):
    """See the head of the file. Used by one thread."""

    table, owner = "tenancies", "pod"
    columns: ClassVar[Mapping[str, str]] = {
        "uid": "id",
        **{name: name for name in ("namespace", "name", "created", "claim", "park_after", "latency", "user")},
        "groupname": "group",
        "class": "app_class",
    }

    def __init__(self, path: Path | str, *, boot: str | None = None) -> None:
        self.path = Path(path)
        self._boot = _BOOT_ID.read_text().strip() if boot is None else boot
        super().__init__(str(path))
        self._cards: tuple[Card, ...] = ()
        if self._settings.get(_BOOT) == self._boot:
            rows = self._database.all(
                "SELECT number, memory_mib, uuid, model, healthy, numa, max_slices FROM cards ORDER BY number"
            )
            self._cards = tuple(
                Card(number, memory, uuid, model, bool(healthy), numa, most)
                for number, memory, uuid, model, healthy, numa, most in rows
            )

    def _open(self) -> Database:
        try:
            self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{self.path.parent}: {error.strerror}: the folder must exist and be writable") from error
        database = Database(str(self.path), _STEPS, application=_APPLICATION, oldest=_OLDEST, expendable=True)
        if database.damage:
            self.notes.append(f"{database.damage}; its contents are read from the API server and the kubelet")
        return database

    # --- the cards of this boot --------------------------------------------------------------------------------

    def cards(self) -> tuple[Card, ...]:
        """The cards that were last set since the machine started; none after a reboot: their numbers may differ."""
        return self._cards

    def set_cards(self, cards: Sequence[Card]) -> None:
        """They are on the disk when this returns."""
        self._before_write()
        known = tuple(sorted(cards, key=lambda card: card.index))
        if known == self._cards and self._settings.get(_BOOT) == self._boot:
            return
        with self._database.transaction() as connection:
            _insert_cards(connection, known)
            insert_setting(connection, _BOOT, self._boot)
        self._cards, self._settings[_BOOT] = known, self._boot

    # --- the file ----------------------------------------------------------------------------------------------

    def _before_write(self) -> None:
        """Recreate the file if it is gone: the next agent must find what we write. If that raises StoreError, the next
        write tries again."""
        if self._database.is_present():
            return
        self._database.close()
        fresh = self._open()
        try:
            with fresh.transaction() as connection:
                connection.execute("DELETE FROM tenancies")  # another file may be in its place, but ours is current
                for tenancy in self._tenancies.values():
                    self._insert(connection, tenancy)
                _insert_cards(connection, self._cards)
                for key, value in self._settings.items():
                    insert_setting(connection, key, value)
        except BaseException:
            fresh.close()
            raise
        self._database = fresh
        self.notes.append(f"{self.path} had disappeared: the agent wrote its state to a new file")


def examine(path: Path) -> str | None:
    """What is wrong with the file, for a program that is not the agent; None: nothing."""
    return examine_database(str(path), application=_APPLICATION)


def _insert_cards(connection: sqlite3.Connection, cards: Iterable[Card]) -> None:
    connection.execute("DELETE FROM cards")
    connection.executemany(
        "INSERT INTO cards (number, memory_mib, uuid, model, healthy, numa, max_slices) VALUES (?, ?, ?, ?, ?, ?, ?)",
        [astuple(card)[:7] for card in cards],  # not `withheld`, which is found out anew
    )
