"""The state of a machine's daemon in SQLite: the runs with their shares, and the settings.

A second copy of each run is a small file beside the tenant's folder. When the database is damaged, it is moved aside,
and the runs are read from the copies. So are runs that it lacks: it may be new, or its log may be lost.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from aliquot.adapters.host.home import open_private
from aliquot.adapters.host.process.processes import is_shortage
from aliquot.adapters.storage.database import STRICT, Database, StoreError
from aliquot.adapters.storage.history import STEP as HISTORY
from aliquot.adapters.storage.history import History
from aliquot.adapters.storage.tenantstore import TenantStore, parse_share, render_share
from aliquot.adapters.storage.writer import Writer
from aliquot.model.tenancy import Tenancy

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
    "",  # here an earlier release had tables of Pods
    HISTORY,
    "ALTER TABLE tenants ADD COLUMN park_after REAL;",
    "ALTER TABLE tenants ADD COLUMN groupname TEXT NOT NULL DEFAULT '';",
    "ALTER TABLE tenants ADD COLUMN latency REAL; ALTER TABLE tenants ADD COLUMN release_delay REAL;",
)
_ADDED = {"park_after": None, "groupname": "", "latency": None, "release_delay": None}  # not by an earlier release
BOOT = "boot"  # the setting that each daemon writes when it has adopted the tenants: without it the file is new
_OLDEST = 2  # the release that may still use the file: the rest was only added


class Store(TenantStore):
    """See the head of the file. Used by one thread at a time: after the start by that of `writer`."""

    table, owner = "tenants", "tenant"
    columns: ClassVar[Mapping[str, str]] = {
        **{name: name for name in ("id", "name", "root", "started", "command", "created", "log", "park_after")},
        **{name: name for name in ("latency", "release_delay")},
        "class": "app_class",
        "uid": "user",
        "groupname": "group",
    }

    def __init__(self, path: str, copies: str) -> None:
        self.path = path
        self._copies = Path(copies)
        super().__init__(path)
        self.writer = Writer()  # for writes in the event loop; everything else is for its start
        self.history = History(self._database)
        if self._database.damage:
            self.notes.append(f"{self._database.damage}; the policy is back to its default")
        self._rebuild()

    def _open(self) -> Database:
        return Database(self.path, _STEPS, oldest=_OLDEST)

    def _before_write(self) -> None:
        """Nothing to check: only the agent's store replaces a deleted file."""

    def _skip(self, problem: str) -> None:
        raise StoreError(problem)  # else its folder would be removed while it runs

    def _rebuild(self) -> None:
        """Read those tenants from the copies beside their folders that the database does not have: it is new, a daemon
        was killed in here, or its log was lost. Or a daemon was killed between copy and row: such a run was never
        granted, and asks again. Raises StoreError where we lack files to read them."""
        restored, known = 0, {f"{tenancy.id}.json" for tenancy in self.tenancies()}
        for path in sorted(self._copies.glob("*.json")):
            if path.name in known:
                continue
            try:
                row = {**_ADDED, **json.loads(path.read_text())}
                shares = map(parse_share, row["shares"])
                super().add(self._parse({**row, "command": json.dumps(row["command"])}, shares))
                restored += 1
            except (OSError, ValueError, KeyError, TypeError) as error:
                if isinstance(error, OSError) and is_shortage(error):  # else copy and folder of a run would be removed
                    raise StoreError(f"{path}: {error.strerror}") from error
                self.notes.append(f"{path} could not be read: {error}")
        if restored and self.setting(BOOT) is None and not self._database.damage:
            self.notes.append(f"{self.path} was missing or empty; the policy is back to its default")
        if restored:
            self.notes.append(f"{restored} tenant{'s' * (restored > 1)} read back from {self._copies}")

    def add(self, tenancy: Tenancy) -> None:
        """Write the tenant and its copy. Both are on the disk when this returns."""
        copy = self._copies / f"{tenancy.id}.json"
        shares = [render_share(share) for share in tenancy.shares]
        row = {**self._render(tenancy), "command": list(tenancy.command), "shares": shares}
        try:
            with open_private(str(copy), os.O_TRUNC) as file:
                file.write(json.dumps(row).encode())
            super().add(tenancy)
        except OSError as error:
            raise StoreError(f"{copy}: {error.strerror}") from error
        except StoreError:
            copy.unlink()
            raise

    def set(self, key: str, value: str) -> None:
        """It is on the disk when this returns. What is there already is not written again: the disk may be full."""
        if self.setting(key) != value:
            super().set(key, value)
            if key == BOOT:  # not in the log alone: without it, the runs that are read from copies would be of no boot
                self._database.empty_log()

    def remove(self, tenant_id: str) -> None:
        """Delete the tenant and its copy, if they are there."""
        with contextlib.suppress(FileNotFoundError):
            (self._copies / f"{tenant_id}.json").unlink()
        super().remove(tenant_id)
