"""What the daemon must know after a restart, in SQLite: who runs, with how much of which card; the settings;
and what was applied (objectstore.py).

A run is written here before it is told that it may start, and deleted when it is gone, each in one transaction that is
on the disk when the call returns: a daemon killed at any line finds what it promised. A second copy of each run is a
small file beside the tenant's folder, for the day the database is damaged: then the file is put aside, and what runs
is read from the copies.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aliquot.adapters.storage.database import STRICT, Database, StoreError
from aliquot.adapters.storage.objectstore import STEP as OBJECTS
from aliquot.adapters.storage.objectstore import ObjectStore
from aliquot.model.claim import AppClass
from aliquot.model.grant import Share
from aliquot.model.tenancy import Tenancy, allotments_of
from aliquot.model.tenant import Tenant

__all__ = ["Store", "StoreError"]

_STEPS = (
    f"""
    CREATE TABLE tenants (
        id      TEXT PRIMARY KEY,
        name    TEXT NOT NULL,
        class   TEXT NOT NULL,
        uid     INTEGER NOT NULL,
        root    INTEGER,
        started INTEGER,
        command TEXT NOT NULL,
        created REAL NOT NULL,
        log     TEXT
    ) {STRICT};
    CREATE TABLE shares (
        tenant       TEXT NOT NULL REFERENCES tenants (id) ON DELETE CASCADE,
        uuid         TEXT NOT NULL,
        card         INTEGER NOT NULL,
        memory_mib   INTEGER NOT NULL,
        core_milli   INTEGER,
        greedy_milli INTEGER,
        exclusive    INTEGER NOT NULL,
        PRIMARY KEY (tenant, uuid)
    ) {STRICT};
    CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL) {STRICT};
    """,
    OBJECTS,
)


class Store:
    """See the head of the file. Used by one thread."""

    def __init__(self, path: str, copies: str) -> None:
        self.path = path
        self.notes: list[str] = []  # what went wrong and was mended, in sentences
        self._copies = Path(copies)
        self._database = Database(path, _STEPS)
        self.objects = ObjectStore(self._database)
        if self._database.damage:
            self.notes.append(f"{self._database.damage}; the policy is back to its default")
            self.notes.append("what was applied is lost: apply it again")
            self._rebuild()

    def _rebuild(self) -> None:
        """From the copies beside the tenants' folders."""
        mended = 0
        for path in sorted(self._copies.glob("*.json")):
            try:
                self._insert(_parse(json.loads(path.read_text())))
                mended += 1
            except (OSError, ValueError, KeyError, TypeError, StoreError) as error:
                self.notes.append(f"{path} could not be read: {error}")
        if mended:
            self.notes.append(f"{mended} tenant{'s' * (mended > 1)} read back from {self._copies}")

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    # --- tenants -----------------------------------------------------------------------------------------------

    def tenancies(self) -> list[Tenancy]:
        """Everyone who was there, oldest first."""
        rows = self._database.all(
            "SELECT id, name, class, uid, root, started, command, created, log FROM tenants ORDER BY created"
        )
        shares: dict[str, list[dict[str, Any]]] = {}
        for tenant, *share in self._database.all(
            "SELECT tenant, uuid, card, memory_mib, core_milli, greedy_milli, exclusive FROM shares ORDER BY card"
        ):
            names = ("uuid", "card", "memory_mib", "core_milli", "greedy_milli", "exclusive")
            shares.setdefault(tenant, []).append(dict(zip(names, share, strict=True)))
        columns = ("id", "name", "class", "uid", "root", "started", "command", "created", "log")
        kept = [dict(zip(columns, row, strict=True)) for row in rows]
        return [
            _parse({**row, "command": json.loads(row["command"]), "shares": shares.get(row["id"], [])}) for row in kept
        ]

    def add(self, tenancy: Tenancy) -> None:
        """On the disk when this returns."""
        copy = self._copies / f"{tenancy.tenant.id}.json"
        try:
            copy.write_text(json.dumps(_render(tenancy)))
            copy.chmod(0o600)
            self._insert(tenancy)
        except OSError as error:
            raise StoreError(f"{copy}: {error.strerror}") from error
        except StoreError:
            copy.unlink()
            raise

    def remove(self, tenant_id: str) -> None:
        """It is gone. Says nothing when it never was."""
        with contextlib.suppress(FileNotFoundError):
            (self._copies / f"{tenant_id}.json").unlink()
        with self._database.transaction() as database:
            database.execute("DELETE FROM tenants WHERE id = ?", (tenant_id,))

    def _insert(self, tenancy: Tenancy) -> None:
        values = _render(tenancy)
        with self._database.transaction() as database:
            database.execute(
                "INSERT INTO tenants (id, name, class, uid, root, started, command, created, log)"
                " VALUES (:id, :name, :class, :uid, :root, :started, :command, :created, :log)",
                {**values, "command": json.dumps(values["command"])},
            )
            database.executemany(
                "INSERT INTO shares (tenant, uuid, card, memory_mib, core_milli, greedy_milli, exclusive)"
                " VALUES (:tenant, :uuid, :card, :memory_mib, :core_milli, :greedy_milli, :exclusive)",
                [{"tenant": tenancy.tenant.id, **share} for share in values["shares"]],
            )

    # --- settings ----------------------------------------------------------------------------------------------

    def setting(self, key: str) -> str | None:
        """What was last set, None when nothing was."""
        found = self._database.all("SELECT value FROM settings WHERE key = ?", key)
        return str(found[0][0]) if found else None

    def set(self, key: str, value: str) -> None:
        """On the disk when this returns."""
        with self._database.transaction() as database:
            database.execute("INSERT OR REPLACE INTO settings (key, value) VALUES (?, ?)", (key, value))


def _render(tenancy: Tenancy) -> dict[str, Any]:
    tenant = tenancy.tenant
    return {
        "id": tenant.id,
        "name": tenant.name,
        "class": tenant.app_class.value,
        "uid": tenant.uid,
        "root": tenant.root,
        "started": tenancy.started,
        "command": list(tenancy.command),
        "created": tenancy.created,
        "log": tenancy.log,
        "shares": [{**asdict(share), "exclusive": int(share.exclusive)} for share in tenancy.shares],
    }


def _parse(values: dict[str, Any]) -> Tenancy:
    shares = tuple(Share(**{**share, "exclusive": bool(share["exclusive"])}) for share in values["shares"])
    tenant = Tenant(
        values["id"],
        values["name"],
        AppClass(values["class"]),
        allotments_of(shares),
        values["uid"],
        values["root"],
    )
    return Tenancy(tenant, shares, values["started"], tuple(values["command"]), values["created"], values["log"])
