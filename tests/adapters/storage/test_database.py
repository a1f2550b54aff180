"""SQLite as both stores use it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from aliquot.adapters.storage import database as module
from aliquot.adapters.storage.database import Database, StoreError, examine

ONE = "CREATE TABLE things (name TEXT PRIMARY KEY);"
TWO = "ALTER TABLE things ADD COLUMN size INTEGER;"


def a_database(folder: Path, *steps: str, application: int = 7) -> Database:
    return Database(str(folder / "a.db"), steps or (ONE,), application=application)


def put(database: Database, name: str) -> None:
    with database.transaction() as connection:
        connection.execute("INSERT INTO things (name) VALUES (?)", (name,))


def _put_twice(database: Database, name: str) -> None:
    with database.transaction() as connection:
        for _ in range(2):
            connection.execute("INSERT INTO things (name) VALUES (?)", (name,))


def test_a_later_version_takes_only_the_steps_that_are_new(tmp_path: Path) -> None:
    first = a_database(tmp_path, ONE)
    put(first, "a")
    first.close()
    assert a_database(tmp_path, ONE, TWO).all("SELECT name, size FROM things") == [("a", None)]
    with pytest.raises(StoreError, match="written by a later version of aliquot: use that version, or remove the file"):
        a_database(tmp_path, ONE)


def test_the_file_of_another_program_of_ours_is_not_taken_for_one_s_own(tmp_path: Path) -> None:
    a_database(tmp_path, application=7).close()
    with pytest.raises(StoreError, match="the state of another program: choose another file"):
        a_database(tmp_path, application=0)


def test_a_damaged_file_is_put_aside_and_a_new_one_begun(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(b"no database")
    database = a_database(tmp_path)
    assert database.damage is not None
    assert "was damaged (file is not a database)" in database.damage
    assert [path.read_bytes() for path in tmp_path.glob("a.db.damaged-*")] == [b"no database"]
    put(database, "a")


def test_the_file_of_any_other_program_is_left_as_it_is(tmp_path: Path) -> None:
    """Most number no versions, so that theirs is 0 as that of an empty file is."""
    other = sqlite3.connect(tmp_path / "a.db")
    other.execute("CREATE TABLE theirs (other TEXT)")
    other.close()
    before = (tmp_path / "a.db").read_bytes()
    with pytest.raises(StoreError, match="the state of another program: choose another file"):
        a_database(tmp_path)
    assert (tmp_path / "a.db").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]


def theirs(folder: Path, *more: str) -> sqlite3.Connection:
    """A file of a program that knows nothing of us, open."""
    other = sqlite3.connect(folder / "a.db", isolation_level=None)
    for statement in (*more, "CREATE TABLE theirs (other TEXT)", "INSERT INTO theirs VALUES ('kept')"):
        other.execute(statement)
    return other


def expendable(folder: Path) -> Database:
    return Database(str(folder / "a.db"), (ONE,), application=7, expendable=True)


@pytest.mark.parametrize(
    "more",
    [(), ("PRAGMA journal_mode = WAL",), ("PRAGMA application_id = 252006673", "PRAGMA user_version = 3")],
)
def test_the_file_of_any_other_program_is_put_aside_where_ours_can_be_found_again(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    theirs(tmp_path, *more).close()
    database = expendable(tmp_path)
    put(database, "a")
    (aside,) = tmp_path.glob("a.db.foreign-*")
    assert database.damage == f"{tmp_path}/a.db is the state of another program: it is kept as {aside}"
    assert sqlite3.connect(aside).execute("SELECT other FROM theirs").fetchall() == [("kept",)]


@pytest.mark.parametrize("more", [("PRAGMA user_version = 2",), (f"PRAGMA application_id = {0x416C7100}",)])
def test_what_may_be_the_file_of_another_program_of_ours_is_never_put_aside(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    theirs(tmp_path, *more).close()
    with pytest.raises(StoreError, match="the state of another program: choose another file"):
        expendable(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]


@pytest.mark.parametrize("more", ["PRAGMA journal_mode = WAL", "PRAGMA locking_mode = EXCLUSIVE"])
def test_the_file_of_another_program_that_uses_it_is_not_put_aside(
    tmp_path: Path, more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would go on writing under the old name, beside ours."""
    monkeypatch.setattr(module, "PATIENCE", 0.01)
    other = theirs(tmp_path, more)
    with pytest.raises(StoreError, match="database is locked: another process uses it: stop that process"):
        expendable(tmp_path)
    other.close()
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]


def test_tables_that_are_not_the_ones_it_should_have_are_damage(tmp_path: Path) -> None:
    first = a_database(tmp_path, ONE)
    first.connection.execute("DROP TABLE things")
    first.close()
    assert "no such table" in (a_database(tmp_path, ONE, TWO).damage or "")


def test_a_file_that_is_only_locked_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.01)
    holder = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    holder.execute("CREATE TABLE theirs (a)")
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreError, match="database is locked: another process uses it: stop that process"):
        a_database(tmp_path)
    holder.close()
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]


def test_a_folder_that_is_not_there_is_no_damage(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="unable to open database file: the folder must exist"):
        a_database(tmp_path / "none")


def test_a_full_disk_is_reported_and_the_next_write_works(tmp_path: Path) -> None:
    database = a_database(tmp_path)
    database.connection.execute("PRAGMA max_page_count = 1")
    with pytest.raises(StoreError, match="full: free some space there; nothing was written"):
        put(database, "a" * 100_000)
    database.connection.execute("PRAGMA max_page_count = 1000")
    put(database, "b")
    assert database.all("SELECT name FROM things") == [("b",)]


def test_what_fails_in_the_middle_is_not_there_at_all(tmp_path: Path) -> None:
    database = a_database(tmp_path)
    with pytest.raises(StoreError, match="UNIQUE"):
        _put_twice(database, "a")
    assert database.all("SELECT name FROM things") == []


def test_it_notices_that_its_file_or_its_log_is_gone_or_another(tmp_path: Path) -> None:
    database = a_database(tmp_path)
    assert database.is_present()
    put(database, "a")
    assert database.is_present()
    (tmp_path / "a.db-wal").unlink()
    assert not database.is_present()
    database.close()
    database = a_database(tmp_path)
    assert database.is_present()
    (tmp_path / "a.db").rename(tmp_path / "b.db")
    assert not database.is_present()
    (tmp_path / "a.db").touch()
    assert not database.is_present()


def test_a_file_that_was_opened_again_is_there_too(tmp_path: Path) -> None:
    a_database(tmp_path).close()
    assert a_database(tmp_path).is_present()


def test_a_file_that_was_let_go_of_is_not_there_though_another_may_have_its_inode(tmp_path: Path) -> None:
    first, second = a_database(tmp_path), a_database(tmp_path)
    first.close()
    assert second.is_present()
    assert not first.is_present()


# --- looked at by another --------------------------------------------------------------------------------------------


def test_a_file_that_is_whole_can_be_looked_at_while_it_is_in_use_and_afterwards(tmp_path: Path) -> None:
    database = a_database(tmp_path)
    put(database, "one")
    assert examine(database.path, application=7) is None
    database.close()
    assert examine(database.path, application=7) is None
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"], "looking leaves nothing behind"


def test_what_is_wrong_with_a_file_is_reported_and_nothing_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    assert examine(str(path), application=7) == "is not there"
    path.write_bytes(b"not a database at all" * 60)
    assert examine(str(path), application=7) == "is damaged: file is not a database"
    assert path.read_bytes().startswith(b"not a database")
    path.unlink()
    a_database(tmp_path).close()
    assert examine(str(path), application=8) == "is the state of another program"
