"""What the node's agent must know after a restart, in SQLite: which Pods hold how much of which card; and the cards.

A Pod is written here before its container may start, and deleted when it is gone, each in one transaction that is on
the disk when the call returns: an agent killed at any line finds what it promised. There are no copies: when the file
is lost, the agent asks the API server and the kubelet again. When it is lost while we run (people delete files that
are in use) everything known is written anew, into a new file, before the next thing is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple
from pathlib import Path

from aliquot.adapters.storage.database import STRICT, Database, StoreError
from aliquot.adapters.storage.database import examine as examine_database
from aliquot.model.claim import AppClass
from aliquot.model.device import Card
from aliquot.model.grant import Share
from aliquot.model.podtenancy import PodTenancy

__all__ = ["PodStore", "StoreError"]

_APPLICATION = 0x416C7150  # "AlqP": not the daemon's state, which is of the same name
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_BOOT = "boot"  # the setting that tells of which boot the cards are

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
)
_CLASSES = frozenset(AppClass)
_OLDEST = 1  # the version whose program may use a file that all of the steps have made


class PodStore:
    """See the head of the file. Used by one thread. What is asked is answered from memory."""

    def __init__(self, path: Path | str, *, boot: str | None = None) -> None:
        self.path = Path(path)
        self.notes: list[str] = []  # what went wrong and was mended, in sentences
        self._boot = _BOOT_ID.read_text().strip() if boot is None else boot
        self._database = self._open()
        self._tenancies = self._load()
        self._settings: dict[str, str] = dict(self._database.all("SELECT key, value FROM settings"))
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
            raise StoreError(f"{self.path.parent}: {error.strerror}: the folder must be there, and writable") from error
        database = Database(str(self.path), _STEPS, application=_APPLICATION, oldest=_OLDEST, expendable=True)
        if database.damage:
            self.notes.append(f"{database.damage}; what it held is asked of the API server and the kubelet")
        return database

    def _load(self) -> dict[str, PodTenancy]:
        shares: dict[str, list[Share]] = {}
        for pod, card, memory, core, greedy, exclusive, uuid in self._database.all(
            "SELECT pod, card, memory_mib, core_milli, greedy_milli, exclusive, uuid FROM shares ORDER BY rowid"
        ):
            shares.setdefault(pod, []).append(Share(card, memory, core, greedy, bool(exclusive), uuid))
        found = {}
        for uid, namespace, name, app_class, created in self._database.all(
            "SELECT uid, namespace, name, class, created FROM tenancies"
        ):
            held = tuple(shares.get(uid, ()))
            if app_class not in _CLASSES:  # the row stays; who has a folder is read from the API server
                self.notes.append(
                    f"{self.path}: {namespace}/{name} is of class {app_class}, which is of a later release"
                )
                continue
            found[uid] = PodTenancy(uid, namespace, name, AppClass(app_class), held, created)
        return found

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    # --- Pods --------------------------------------------------------------------------------------------------

    def tenancies(self) -> list[PodTenancy]:
        """Every Pod that holds something, oldest first."""
        return sorted(self._tenancies.values(), key=lambda each: (each.created, each.uid))

    def add(self, tenancy: PodTenancy) -> None:
        """On the disk when this returns. Saying it twice changes nothing; saying it anew replaces it."""
        self._still_there()
        if self._tenancies.get(tenancy.uid) == tenancy:
            return
        with self._database.transaction() as database:
            _insert(database, tenancy)
        self._tenancies[tenancy.uid] = tenancy

    def remove(self, uid: str) -> None:
        """It is gone. Says nothing when it never was."""
        self._still_there()
        if uid in self._tenancies:
            with self._database.transaction() as database:
                database.execute("DELETE FROM tenancies WHERE uid = ?", (uid,))
            del self._tenancies[uid]

    # --- the cards of this boot --------------------------------------------------------------------------------

    def cards(self) -> tuple[Card, ...]:
        """The cards that were last set since the machine started; none after a reboot: their numbers may differ."""
        return self._cards

    def set_cards(self, cards: Sequence[Card]) -> None:
        """On the disk when this returns."""
        self._still_there()
        known = tuple(sorted(cards, key=lambda card: card.index))
        if known == self._cards and self._settings.get(_BOOT) == self._boot:
            return
        with self._database.transaction() as database:
            _insert_cards(database, known)
            _insert_setting(database, _BOOT, self._boot)
        self._cards, self._settings[_BOOT] = known, self._boot

    # --- the file ----------------------------------------------------------------------------------------------

    def _still_there(self) -> None:
        """What we write to must be what the next agent finds. Raises StoreError; the next write then tries again."""
        if self._database.there():
            return
        self._database.close()
        fresh = self._open()
        try:
            with fresh.transaction() as database:
                database.execute("DELETE FROM tenancies")  # whatever was put in its place, we know better
                for tenancy in self._tenancies.values():
                    _insert(database, tenancy)
                _insert_cards(database, self._cards)
                for key, value in self._settings.items():
                    _insert_setting(database, key, value)
        except BaseException:
            fresh.close()
            raise
        self._database = fresh
        self.notes.append(f"{self.path} was gone: all that is known was written anew")


def examine(path: Path) -> str | None:
    """What is wrong with the file, for whoever is not the agent; None: nothing."""
    return examine_database(str(path), application=_APPLICATION)


def _insert(database: sqlite3.Connection, tenancy: PodTenancy) -> None:
    """In its place, where it is there: a later release may have columns that we do not know."""
    database.execute("DELETE FROM shares WHERE pod = ?", (tenancy.uid,))
    database.execute(
        "INSERT INTO tenancies (uid, namespace, name, class, created) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (uid) DO UPDATE"
        " SET namespace = excluded.namespace, name = excluded.name, class = excluded.class, created = excluded.created",
        (tenancy.uid, tenancy.namespace, tenancy.name, tenancy.app_class.value, tenancy.created),
    )
    database.executemany(
        "INSERT INTO shares (pod, card, memory_mib, core_milli, greedy_milli, exclusive, uuid)"
        " VALUES (:pod, :card, :memory_mib, :core_milli, :greedy_milli, :exclusive, :uuid)",
        [{"pod": tenancy.uid, **asdict(share), "exclusive": int(share.exclusive)} for share in tenancy.shares],
    )


def _insert_cards(database: sqlite3.Connection, cards: Iterable[Card]) -> None:
    database.execute("DELETE FROM cards")
    database.executemany(
        "INSERT INTO cards (number, memory_mib, uuid, model, healthy, numa, max_slices) VALUES (?, ?, ?, ?, ?, ?, ?)",
        [astuple(card) for card in cards],
    )


def _insert_setting(database: sqlite3.Connection, key: str, value: str) -> None:
    database.execute("INSERT OR REPLACE INTO settings (key, value) VALUES (?, ?)", (key, value))
