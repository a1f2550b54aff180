"""Tenants with their shares, and settings, in SQLite: what the stores of the agent and of the machine have in common.

A tenant is written before it may start and deleted when it is gone, each in one transaction that is on the disk when
the call returns: a program that is killed at any line finds what it promised.
"""

from __future__ import annotations

import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from msgspec.structs import asdict

from aliquot.adapters.storage.database import Database
from aliquot.model.claim import AppClass
from aliquot.model.grant import Share
from aliquot.model.tenancy import Tenancy

Row = dict[str, str | int | float | None]  # what SQLite keeps, by column

_SHARE_COLUMNS = Share.__struct_fields__
_CLASSES = frozenset(AppClass)


class TenantStore(ABC):
    """See the head of the file. Used by one thread. Reads are answered from memory. Raises StoreError."""

    table: ClassVar[str]
    columns: ClassVar[Mapping[str, str]]  # the fields of a Tenancy that are kept, by column; the first is the id
    owner: ClassVar[str]  # the column of `shares` that refers to the id

    def __init__(self, path: str) -> None:
        self.notes: list[str] = []  # problems that were repaired, in sentences
        self._database = self._open()
        self._settings: dict[str, str] = dict(self._database.all("SELECT key, value FROM settings"))
        self._tenancies: dict[str, Tenancy] = {}
        shares: dict[str, list[Share]] = {}
        for tenant, *values in self._select("shares", (self.owner, *_SHARE_COLUMNS)):
            shares.setdefault(tenant, []).append(parse_share(dict(zip(_SHARE_COLUMNS, values, strict=True))))
        for tenant, *values in self._select(self.table, self.columns):
            row = dict(zip(self.columns, (tenant, *values), strict=True))
            if row["class"] in _CLASSES:
                self._tenancies[tenant] = self._parse(row, shares.get(tenant, ()))
            else:
                name = "/".join(row[column] for column in ("namespace", "name") if column in row)
                self._skip(f"{path}: {name} is of class {row['class']}, which is of a later release")

    @abstractmethod
    def _open(self) -> Database:
        """Open the file, or create it."""

    def _skip(self, problem: str) -> None:
        """A tenant cannot be read. Its row stays."""
        self.notes.append(problem)

    @abstractmethod
    def _before_write(self) -> None:
        """Check the file, in stores that can replace it."""

    def _select(self, table: str, columns: Iterable[str]) -> list[tuple[Any, ...]]:
        return self._database.all(f"SELECT {', '.join(columns)} FROM {table} ORDER BY rowid")  # noqa: S608 - no input

    def _render(self, tenancy: Tenancy) -> Row:
        row: Row = {column: getattr(tenancy, field) for column, field in self.columns.items()}
        return {**row, "class": tenancy.app_class.value, "command": json.dumps(tenancy.command)}

    def _parse(self, row: Mapping[str, Any], shares: Iterable[Share]) -> Tenancy:
        values = {field: row[column] for column, field in self.columns.items()}
        values |= {
            "app_class": AppClass.of_this_release(row["class"]),
            "command": tuple(json.loads(row.get("command", "[]"))),
        }
        values["claim"] = bool(row.get("claim", 0))
        return Tenancy(**{"namespace": "", **values}, shares=tuple(shares))

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    # --- tenants -----------------------------------------------------------------------------------------------

    def tenancies(self) -> list[Tenancy]:
        """All tenants, oldest first."""
        return sorted(self._tenancies.values(), key=lambda tenancy: (tenancy.created, tenancy.id))

    def add(self, tenancy: Tenancy) -> None:
        """Write the tenant, or replace it. It is on the disk when this returns."""
        self._before_write()
        if self._tenancies.get(tenancy.id) != tenancy:
            with self._database.transaction() as connection:
                self._insert(connection, tenancy)
            self._tenancies[tenancy.id] = tenancy

    def remove(self, tenant_id: str) -> None:
        """Delete the tenant, if it is there."""
        self._before_write()
        if tenant_id in self._tenancies:
            with self._database.transaction() as connection:
                connection.execute(f"DELETE FROM {self.table} WHERE {next(iter(self.columns))} = ?", (tenant_id,))  # noqa: S608
            del self._tenancies[tenant_id]

    def _insert(self, connection: sqlite3.Connection, tenancy: Tenancy) -> None:
        """An existing row is updated in place: a later release may have columns that we do not know."""
        key, *others = self.columns
        connection.execute(f"DELETE FROM shares WHERE {self.owner} = ?", (tenancy.id,))  # noqa: S608 - no input
        connection.execute(
            f"INSERT INTO {self.table} ({', '.join(self.columns)})"  # noqa: S608 - no input
            f" VALUES ({', '.join(f':{column}' for column in self.columns)})"
            f" ON CONFLICT ({key}) DO UPDATE SET {', '.join(f'{column} = excluded.{column}' for column in others)}",
            self._render(tenancy),
        )
        connection.executemany(
            f"INSERT INTO shares ({self.owner}, {', '.join(_SHARE_COLUMNS)})"  # noqa: S608 - no input
            f" VALUES (:owner, {', '.join(f':{column}' for column in _SHARE_COLUMNS)})",
            [{"owner": tenancy.id, **render_share(share)} for share in tenancy.shares],
        )

    # --- settings ----------------------------------------------------------------------------------------------

    def setting(self, key: str) -> str | None:
        """The value that was last set; None if there is none."""
        return self._settings.get(key)

    def set(self, key: str, value: str) -> None:
        """It is on the disk when this returns."""
        self._before_write()
        with self._database.transaction() as connection:
            insert_setting(connection, key, value)
        self._settings[key] = value


def insert_setting(connection: sqlite3.Connection, key: str, value: str) -> None:
    """Write the setting in the caller's transaction."""
    connection.execute("INSERT OR REPLACE INTO settings (key, value) VALUES (?, ?)", (key, value))


def render_share(share: Share) -> Row:
    """The share as a row of its table."""
    return {**asdict(share), "exclusive": int(share.exclusive)}


def parse_share(row: Mapping[str, Any]) -> Share:
    """The reverse."""
    return Share(**{**row, "exclusive": bool(row["exclusive"])})
