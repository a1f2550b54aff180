"""The runs that have ended, in the database of the machine's daemon: the newest of each user, and a limit for all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from aliquot.adapters.host.users import account_of
from aliquot.adapters.storage.database import STRICT, Database
from aliquot.model.claim import AppClass
from aliquot.model.tenancy import EndedRun

STEP = f"""
    CREATE TABLE ended (
        id      TEXT PRIMARY KEY,
        name    TEXT NOT NULL,
        class   TEXT NOT NULL,
        uid     INTEGER NOT NULL,
        command TEXT NOT NULL,
        started REAL NOT NULL,
        ended   REAL,
        code    INTEGER,
        log     TEXT
    ) {STRICT};
    """
OF_A_USER = 100  # a user who starts many does not push out those of others
IN_ALL = 1000
Item = TypeVar("Item")
_LONGEST_COMMAND = 2048  # characters
_COLUMNS = "id, name, class, uid, command, started, ended, code, log"


class History:
    """See the head of the file. Used by one thread. Raises StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, run: EndedRun) -> None:
        """It is on the disk when this returns. A run that was added before a crash is not there twice."""
        row = (run.id, run.name, run.app_class.value, run.user, json.dumps(shortened(run.command)))
        with self._database.transaction() as connection:
            connection.execute(
                f"INSERT OR REPLACE INTO ended ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - no input
                (*row, run.started, run.ended, run.code, run.log),
            )
            rows = connection.execute("SELECT rowid, uid FROM ended ORDER BY rowid DESC").fetchall()
            kept = {row for row, _ in _kept(rows, lambda row: int(row[1]))}
            connection.executemany("DELETE FROM ended WHERE rowid = ?", [(row,) for row, _ in rows if row not in kept])

    def runs(self) -> list[EndedRun]:
        """In the order in which they ended. Without those of a later release's classes."""
        rows = self._database.all(f"SELECT {_COLUMNS} FROM ended ORDER BY rowid")  # noqa: S608 - no input
        return [
            EndedRun(key, name, AppClass(kind), uid, tuple(json.loads(command)), started, ended, code, log)
            for key, name, kind, uid, command, started, ended, code, log in rows
            if kind in frozenset(AppClass)
        ]


def newest(runs: Sequence[EndedRun]) -> list[EndedRun]:
    """Those that are kept, of runs in the order in which they ended: the same that `add` keeps in the file."""
    return _kept(runs[::-1], lambda run: run.user)[::-1]


def _kept(newest_first: Sequence[Item], user: Callable[[Item], int]) -> list[Item]:
    kept: list[Item] = []
    of_user: Counter[int] = Counter()
    for item in newest_first[:IN_ALL]:
        account = account_of(user(item))
        of_user[account] += 1
        if of_user[account] <= OF_A_USER:
            kept.append(item)
    return kept


def shortened(command: Sequence[str]) -> tuple[str, ...]:
    """The command as it is stored."""
    kept: list[str] = []
    left = _LONGEST_COMMAND
    for word in command:
        if len(word) > left:
            return (*kept, f"{word[:left]}...")
        kept.append(word)
        left -= len(word)
    return tuple(kept)
