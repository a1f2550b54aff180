"""SQLite for both stores: a write is on the disk when the call returns, and a bad file does not stop the program.

A damaged file is moved aside under another name, and a new one is created; the caller must recover what was lost. A
file that is intact but unusable (of another program, locked, on a full or read-only disk) is left alone, and the error
says what to do.

A file of a later release is used if that release says that ours may: its steps have only added tables, and columns
with defaults. What we do not know stays in it. Otherwise it is left alone, or moved aside if the caller can recover its
contents (`expendable`). Such a caller also moves aside a file that is clearly of another program and not in use, as a
vendor's program leaves one under the name that its manifests give to ours.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from aliquot.adapters.host.home import make_private

STRICT = "STRICT" if sqlite3.sqlite_version_info >= (3, 37) else ""

FOREIGN = "is the state of another program"
PATIENCE = 5.0  # seconds for which another process may hold the file

_OURS = 0x416C71  # "Alq": the first bytes of the application ids of our files
_VERSION_BITS = 16  # of user_version; the higher bits hold the oldest version that may use the file, if that is older

# SQLite's primary result codes. SQLITE_ERROR while a file is opened: it has other tables than it should.
_DAMAGE = frozenset({sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_WHAT_TO_DO = {
    sqlite3.SQLITE_FULL: "free some space there; nothing was written",
    sqlite3.SQLITE_IOERR: "check the kernel's log for disk errors; nothing was written",
    sqlite3.SQLITE_READONLY: "make the file and its folder writable for this process",
    sqlite3.SQLITE_CANTOPEN: "the folder must exist and be writable for this process",
    sqlite3.SQLITE_BUSY: "another process uses it: stop that process, or choose another file",
}


class StoreError(Exception):
    """The state cannot be read or written."""


class _LaterError(Exception):
    """The file is of a later release, and this one may not use it."""


class _ForeignError(StoreError):
    """The file is clearly not of aliquot."""


class Database:
    """One file. `steps` has one script per version; user_version counts those done. Steps are only ever added.

    `application` is SQLite's application_id, which distinguishes our kinds of files. `oldest` is the first version
    whose program may use a file that all steps have made: later steps only added to it. None: the last version.
    `expendable`: move aside, instead of refusing, a file of a later release that we may not use, and a file of another
    program that is not in use. Used by one thread at a time.
    """

    def __init__(
        self,
        path: str,
        steps: Sequence[str],
        *,
        application: int = 0,
        oldest: int | None = None,
        expendable: bool = False,
    ) -> None:
        self.path = path
        self.damage: str | None = None  # the sentence that says what was moved aside, if anything was
        self._steps = steps
        self._application = application
        self._aside = ""  # where the file was moved to
        self._oldest = len(steps) if oldest is None else oldest
        try:
            self.connection = self._open()
        except _LaterError as error:
            if not expendable:
                raise StoreError(
                    f"{path}: written by a later version of aliquot: use that version, or remove the file"
                ) from error
            self._move_aside(error, "later")
            self.damage = f"{path} is of a later release of aliquot ({error}): it is kept as {self._aside}"
            self.connection = self._open_again()
        except _ForeignError as error:
            if not expendable:
                raise
            self._refuse_used()
            self._move_aside(error, "foreign")
            self.damage = f"{path} is the state of another program: it is kept as {self._aside}"
            self.connection = self._open_again()
        except sqlite3.DatabaseError as error:
            if _code(error) not in _DAMAGE:
                raise self._store_error(error) from error
            self._move_aside(error, "damaged")
            self.damage = f"{path} was damaged ({error}): it is now {self._aside}"
            self.connection = self._open_again()
        self._files = self._inodes()

    def _open_again(self) -> sqlite3.Connection:
        try:
            return self._open()
        except sqlite3.Error as error:
            raise self._store_error(error) from error

    def _open(self) -> sqlite3.Connection:
        try:
            return self._opened()
        except sqlite3.OperationalError as error:
            if _code(error) not in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL) or not os.path.exists(self.path):
                raise
            return self._opened(alone=True)

    def _opened(self, *, alone: bool = False) -> sqlite3.Connection:
        """`alone`: no other process can use the file meanwhile, and its index is in memory: on a full disk there is no
        room for an index, and what was written before can be read all the same."""
        self._make_private()
        database = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
        try:
            if alone:
                database.execute("PRAGMA locking_mode = EXCLUSIVE")
            (found,) = database.execute("PRAGMA integrity_check(1)").fetchone()
            if found != "ok":
                raise sqlite3.DatabaseError(found)
            (raw,) = database.execute("PRAGMA user_version").fetchone()
            done = raw & (1 << _VERSION_BITS) - 1
            (application,) = database.execute("PRAGMA application_id").fetchone()
            (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if application != self._application if done else tables:
                # Without an application id it may be our own daemon's, whose file has the same name as the agent's.
                foreign = application >> 8 != _OURS and (application != 0 or raw == 0)
                raise (_ForeignError if foreign else StoreError)(
                    f"{self.path}: the state of another program: choose another file, or remove this one"
                )
            if done > len(self._steps) < (raw >> _VERSION_BITS or done):
                raise _LaterError(f"version {done}, and this one has version {len(self._steps)}")
            database.execute("PRAGMA journal_mode = WAL")  # not earlier: it would change a file of another program
            database.execute("PRAGMA synchronous = FULL")
            database.execute("PRAGMA foreign_keys = ON")
            for version, step in enumerate(self._steps[done:], done + 1):
                database.executescript(
                    f"BEGIN IMMEDIATE; {step} PRAGMA application_id = {self._application};"
                    f" PRAGMA user_version = {self._mark(version)}; COMMIT;"
                )
        except BaseException:
            database.close()
            raise
        return database

    def _make_private(self) -> None:
        """Only our user may open the file, from its creation on: it has others' secrets, and a reader's lock would stop
        every write. SQLite gives the mode of the file to its log and its index."""
        with contextlib.suppress(OSError):  # SQLite says what is wrong
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        for more in ("", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                make_private(self.path + more)

    def _mark(self, version: int) -> int:
        return version if version <= self._oldest else self._oldest << _VERSION_BITS | version

    def _refuse_used(self) -> None:
        """Raise StoreError if a process has the file open: it would go on to use the moved file and the old log."""
        try:
            with contextlib.closing(sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)) as alone:
                alone.execute(
                    "PRAGMA locking_mode = EXCLUSIVE"
                )  # in WAL mode this fails if another process has it open
                alone.execute("BEGIN EXCLUSIVE")
                alone.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise self._store_error(error) from error

    def _move_aside(self, error: Exception, why: str) -> None:
        self._aside = aside = f"{self.path}.{why}-{time.strftime('%Y%m%dT%H%M%S')}"
        try:
            os.replace(self.path, aside)
        except OSError as failed:
            raise StoreError(f"{self.path}: {error}; and it cannot be moved aside: {failed.strerror}") from error
        for more in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.replace(self.path + more, aside + more)

    def is_present(self) -> bool:
        """Whether the open file still has this name on the disk: people delete files that are in use."""
        return self._files is not None and self._inodes() == self._files

    def _inodes(self) -> tuple[tuple[int, int], ...] | None:
        try:  # the log holds the last writes
            stats = [os.stat(self.path + more) for more in ("", "-wal")]
        except OSError:
            return None
        return tuple((stat.st_dev, stat.st_ino) for stat in stats)

    def close(self) -> None:
        """Close the file. From now on another file may get its inode."""
        self._files = None
        self.connection.close()

    def all(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """All rows of the result."""
        try:
            return self.connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._store_error(error) from error

    def empty_log(self) -> None:
        """Move what the log has into the file itself. If that fails, it is done later."""
        with contextlib.suppress(sqlite3.Error):
            self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All of it is on the disk afterwards, or nothing is and StoreError is raised."""
        database = self.connection
        try:
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
                database.execute("COMMIT")
            except BaseException:
                if database.in_transaction:  # a full disk may have rolled it back
                    database.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._store_error(error) from error

    def _store_error(self, error: sqlite3.Error) -> StoreError:
        advice = _WHAT_TO_DO.get(_code(error))
        return StoreError(f"{self.path}: {error}" + (f": {advice}" if advice else ""))


def examine(path: str, *, application: int) -> str | None:
    """What is wrong with a file that another process may be using; None: nothing. Read-only."""
    try:
        os.stat(path)
        how = "mode=ro" if os.path.exists(f"{path}-wal") else "immutable=1"  # not in use: do not create a log
        with contextlib.closing(sqlite3.connect(f"file:{quote(path)}?{how}", uri=True, timeout=PATIENCE)) as database:
            (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
            (kind,) = database.execute("PRAGMA application_id").fetchone()
    except FileNotFoundError:
        return "is not there"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except sqlite3.Error as error:
        return f"{'is damaged' if _code(error) in _DAMAGE else 'cannot be read'}: {error}"
    if found != "ok":
        return f"is damaged: {found}"
    return None if kind == application else FOREIGN


def _code(error: sqlite3.Error) -> int:
    """The primary result code. Our own error has none: it is what the integrity check found."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)) & 0xFF
