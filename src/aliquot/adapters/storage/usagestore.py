"""Who used how much of the cards, in a SQLite file of its own: hours that are kept for some days, and counters.

It may be lost: then the bill begins anew, and no tenant notices. Written by the thread of its writer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aliquot.adapters.storage.database import STRICT, Database
from aliquot.adapters.storage.writer import Writer
from aliquot.model.usage import OTHERS, Mark, Payer, Spent, UsageRow

_APPLICATION = 0x416C7155  # "AlqU"
_DAY = 86400
MOST_ROWS = 500_000  # some 100 MB

_PAYER = ("kind", "namespace", "name", "container", "class", "user")
_SPENT = ("gpu", "preempted", "waiting", "booked", "used")
_STEPS = (
    f"""
    CREATE TABLE hours (
        hour INTEGER NOT NULL,
        uuid TEXT NOT NULL,
        kind TEXT NOT NULL,
        namespace TEXT NOT NULL,
        name TEXT NOT NULL,
        container TEXT NOT NULL,
        class TEXT NOT NULL,
        user INTEGER NOT NULL,
        gpu REAL NOT NULL,
        preempted REAL NOT NULL,
        waiting REAL NOT NULL,
        booked REAL NOT NULL,
        used REAL NOT NULL,
        PRIMARY KEY (hour, uuid, kind, namespace, name, container, class, user)
    ) {STRICT};
    CREATE TABLE counters (
        uuid TEXT NOT NULL,
        kind TEXT NOT NULL,
        namespace TEXT NOT NULL,
        name TEXT NOT NULL,
        container TEXT NOT NULL,
        class TEXT NOT NULL,
        user INTEGER NOT NULL,
        gpu REAL NOT NULL,
        preempted REAL NOT NULL,
        waiting REAL NOT NULL,
        booked REAL NOT NULL,
        used REAL NOT NULL,
        seen REAL NOT NULL,
        PRIMARY KEY (uuid, kind, namespace, name, container, class, user)
    ) {STRICT};
    CREATE TABLE marks (
        uuid TEXT PRIMARY KEY,
        boot TEXT NOT NULL,
        monotonic REAL NOT NULL,
        wall REAL NOT NULL,
        clean INTEGER NOT NULL
    ) {STRICT};
    """,
)
_NO_USER = -1  # a primary key has no NULL
_COLUMNS = (*_PAYER, *_SPENT)


def _upsert(table: str, before: tuple[str, ...], after: tuple[str, ...] = ()) -> str:
    columns = (*before, *_COLUMNS, *after)
    grow = [f"{name} = {name} + excluded.{name}" for name in _SPENT] + [f"{name} = excluded.{name}" for name in after]
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608 - no input
        f" ON CONFLICT ({', '.join((*before, *_PAYER))}) DO UPDATE SET {', '.join(grow)}"
    )


_ADD_HOUR = _upsert("hours", ("hour", "uuid"))
_ADD_COUNTER = _upsert("counters", ("uuid",), ("seen",))

# A user's rows, or where there are no users a namespace's (model/usage.py: owner_of), that still have names.
_OWN = f"CASE WHEN user = {_NO_USER} THEN namespace ELSE '' END"
_NAMED = "kind = '' AND name != ?"
_LARGEST = f"SELECT user, {_OWN} FROM hours WHERE {_NAMED} GROUP BY 1, 2 ORDER BY COUNT(*) DESC LIMIT 1"  # noqa: S608
_OF_OWNER = f"{_NAMED} AND user = ? AND {_OWN} = ?"
_FOLD = f"""
    INSERT INTO hours (hour, uuid, {", ".join(_COLUMNS)})
    SELECT hour, uuid, '', {_OWN}, ?, '', class, user, {", ".join(f"SUM({name})" for name in _SPENT)}
    FROM hours WHERE {_OF_OWNER} GROUP BY hour, uuid, class
    ON CONFLICT (hour, uuid, {", ".join(_PAYER)})
    DO UPDATE SET {", ".join(f"{name} = {name} + excluded.{name}" for name in _SPENT)}
"""  # noqa: S608
_DROP_FOLDED = f"DELETE FROM hours WHERE {_OF_OWNER}"  # noqa: S608
_MOST_FOLDED = 100  # owners at once


class UsageStore:
    """See the head of the file. Raises StoreError."""

    def __init__(self, path: str, *, keep_days: int) -> None:
        self._keep = keep_days * _DAY
        self._database = Database(path, _STEPS, application=_APPLICATION, expendable=True)
        self.note = self._database.damage  # the sentence that says what was moved aside, if anything was
        self.writer = Writer()

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def marks(self) -> dict[str, Mark]:
        """The time until which each card's time is stored."""
        rows = self._database.all("SELECT uuid, boot, monotonic, wall, clean FROM marks")
        return {uuid: Mark(boot, monotonic, wall, bool(clean)) for uuid, boot, monotonic, wall, clean in rows}

    def counters(self) -> dict[tuple[str, Payer], tuple[Spent, float]]:
        """What each payer had since its first hour, and when that last grew."""
        query = f"SELECT uuid, {', '.join(_COLUMNS)}, seen FROM counters"  # noqa: S608 - no input
        found = self._database.all(query)
        return {(row[0], _payer(row[1:7])): (Spent(*row[7:12]), row[12]) for row in found}

    def hours(self, since: float) -> list[UsageRow]:
        """All hours that end after that time, one row for each payer and card: there may be 500,000 hours."""
        sums = ", ".join(f"SUM({name})" for name in _SPENT)
        payer = ", ".join(_PAYER)
        query = f"SELECT MAX(hour), uuid, {payer}, {sums} FROM hours WHERE hour > ? GROUP BY uuid, {payer}"  # noqa: S608
        return [
            UsageRow(row[0], row[1], _payer(row[2:8]), Spent(*row[8:]))
            for row in self._database.all(query, since - 3600)
        ]

    def write(self, rows: Iterable[UsageRow], marks: dict[str, Mark], shown_since: float, now: float) -> None:
        """Add the rows and move the marks, in one transaction: no time is counted twice."""
        with self._database.transaction() as connection:
            for row in rows:
                spent = tuple(getattr(row.spent, name) for name in _SPENT)
                payer = (*row.payer[:5], _NO_USER if row.payer.user is None else row.payer.user)
                connection.execute(_ADD_HOUR, (row.hour, row.uuid, *payer, *spent))
                connection.execute(_ADD_COUNTER, (row.uuid, *payer, *spent, now))
            connection.executemany(
                "INSERT OR REPLACE INTO marks (uuid, boot, monotonic, wall, clean) VALUES (?, ?, ?, ?, ?)",
                [(uuid, *mark) for uuid, mark in marks.items()],
            )
            connection.execute("DELETE FROM counters WHERE seen < ? AND kind = ''", (shown_since,))

    def compact(self, now: float) -> None:
        """Drop the hours that are too old. Where there are too many rows, those who have most of them lose the names
        of their tenants, not the time; the oldest are dropped only if that is not enough."""
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM hours WHERE hour < ?", (now - self._keep,))
            for _ in range(_MOST_FOLDED):
                ((rows,),) = connection.execute("SELECT COUNT(*) FROM hours")
                largest = connection.execute(_LARGEST, (OTHERS,)).fetchone() if rows > MOST_ROWS else None
                if largest is None:
                    break
                connection.execute(_FOLD, (OTHERS, OTHERS, *largest))
                connection.execute(_DROP_FOLDED, (OTHERS, *largest))
            connection.execute(
                "DELETE FROM hours WHERE hour <= (SELECT hour FROM hours ORDER BY hour DESC LIMIT 1 OFFSET ?)",
                (MOST_ROWS,),
            )


def _payer(row: tuple[Any, ...]) -> Payer:
    kind, namespace, name, container, app_class, user = row
    return Payer(kind, namespace, name, container, app_class, None if user == _NO_USER else user)
