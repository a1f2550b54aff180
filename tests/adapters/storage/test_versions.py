"""State from release to release: what an earlier one wrote is taken over, what a later one wrote is not lost."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from aliquot.adapters.storage import podstore
from aliquot.adapters.storage.database import Database, StoreError
from aliquot.adapters.storage.podstore import PodStore
from aliquot.model.claim import AppClass
from aliquot.model.device import Card
from aliquot.model.grant import Share
from aliquot.model.tenancy import Tenancy

# The agent's file as release 0.1.0 made it, to the letter. Nothing here may ever be changed.
FIRST_AGENT = """
    PRAGMA journal_mode = WAL;
    CREATE TABLE tenancies (
        uid TEXT PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL, class TEXT NOT NULL, created REAL NOT NULL
    ) STRICT;
    CREATE TABLE shares (
        pod TEXT NOT NULL REFERENCES tenancies (uid) ON DELETE CASCADE, card INTEGER NOT NULL,
        memory_mib INTEGER NOT NULL, core_milli INTEGER, greedy_milli INTEGER, exclusive INTEGER NOT NULL,
        uuid TEXT NOT NULL, PRIMARY KEY (pod, card)
    ) STRICT;
    CREATE TABLE cards (
        number INTEGER PRIMARY KEY, memory_mib INTEGER NOT NULL, uuid TEXT NOT NULL, model TEXT NOT NULL,
        healthy INTEGER NOT NULL, numa INTEGER, max_slices INTEGER
    ) STRICT;
    CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
    INSERT INTO tenancies VALUES ('uid-a', 'ml', 'train-0', 'offline', 1700000000.5);
    INSERT INTO shares VALUES ('uid-a', 1, 4096, 300, NULL, 0, 'GPU-1');
    INSERT INTO cards VALUES (0, 24576, 'GPU-0', 'A30', 1, 0, 6), (1, 24576, 'GPU-1', 'A30', 0, NULL, NULL);
    INSERT INTO settings VALUES ('boot', 'boot-1');
    PRAGMA application_id = 1097625936;
    PRAGMA user_version = 1;
"""
TRAIN = Tenancy("uid-a", "ml", "train-0", AppClass.OFFLINE, (Share(1, 4096, 300, uuid="GPU-1"),), 1700000000.5)
CARDS = (Card(0, 24576, "GPU-0", "A30", True, 0, 6), Card(1, 24576, "GPU-1", "A30", False))

ONE = "CREATE TABLE things (name TEXT PRIMARY KEY);"
TWO = "ALTER TABLE things ADD COLUMN size INTEGER;"
THREE = "ALTER TABLE things ADD COLUMN colour TEXT NOT NULL DEFAULT 'grey';"


def written(path: Path, script: str) -> Path:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript(script)
    return path


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """A file of the first release."""
    return written(tmp_path / "state.db", FIRST_AGENT)


class TestAnEarlierFile:
    def test_of_the_agent_is_read_whole_by_this_release(self, first: Path) -> None:
        store = PodStore(first, boot="boot-1")
        assert (store.tenancies(), store.cards(), store.notes) == ([TRAIN], CARDS, [])

    def test_takes_the_steps_that_are_new_and_keeps_its_rows(
        self, first: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        more = "ALTER TABLE tenancies ADD COLUMN held INTEGER NOT NULL DEFAULT 1;"
        monkeypatch.setattr(podstore, "_STEPS", (*podstore._STEPS, more))
        store = PodStore(first, boot="boot-1")
        assert store.tenancies() == [TRAIN]
        assert store._database.all("SELECT uid, held FROM tenancies") == [("uid-a", 1)]

    def test_that_was_killed_between_two_steps_takes_the_rest(self, tmp_path: Path) -> None:
        path = str(tmp_path / "a.db")
        Database(path, (ONE, TWO), oldest=1).close()
        assert Database(path, (ONE, TWO, THREE), oldest=1).all("SELECT name, size, colour FROM things") == []


class TestALaterFile:
    def test_whose_steps_only_added_is_used_as_it_is_and_what_was_added_stays(self, tmp_path: Path) -> None:
        path = str(tmp_path / "a.db")
        later = Database(path, (ONE, TWO, THREE), oldest=1)
        with later.transaction() as connection:
            connection.execute("INSERT INTO things VALUES ('a', 3, 'red')")
        later.close()
        ours = Database(path, (ONE,), oldest=1)
        with ours.transaction() as connection:
            connection.execute("INSERT INTO things (name) VALUES ('b')")
        ours.close()
        again = Database(path, (ONE, TWO, THREE), oldest=1)
        assert again.all("SELECT * FROM things ORDER BY name") == [("a", 3, "red"), ("b", None, "grey")]
        assert again.damage is None

    def test_that_is_not_for_us_is_left_alone(self, tmp_path: Path) -> None:
        path = str(tmp_path / "a.db")
        Database(path, (ONE, TWO, THREE), oldest=2).close()
        Database(path, (ONE, TWO), oldest=2).close()
        with pytest.raises(StoreError, match="written by a later version of aliquot: use that version"):
            Database(path, (ONE,))

    def test_of_the_agent_keeps_columns_that_we_do_not_know_also_of_pods_that_change(self, first: Path) -> None:
        PodStore(first, boot="boot-1").close()  # all steps of this release
        later = "ALTER TABLE tenancies ADD COLUMN note TEXT NOT NULL DEFAULT ''; UPDATE tenancies SET note = 'kept';"
        written(first, f"{later} PRAGMA user_version = {1 << 16 | len(podstore._STEPS) + 1};")
        store = PodStore(first, boot="boot-1")
        assert store.tenancies() == [TRAIN]
        store.add(Tenancy("uid-a", "ml", "train-0", AppClass.ONLINE, TRAIN.shares, TRAIN.created))
        assert store._database.all("SELECT class, note FROM tenancies") == [("online", "kept")]

    def test_of_the_agent_that_is_not_for_us_is_kept_aside_and_a_new_one_begun(self, first: Path) -> None:
        """Who is here, the API server and the folders tell: the agent must come up."""
        written(first, "PRAGMA user_version = 9;")
        before = first.read_bytes()
        store = PodStore(first, boot="boot-1")
        assert store.tenancies() == []
        (note,) = store.notes
        ours = len(podstore._STEPS)
        assert f"of a later release of aliquot (version 9, and this one has version {ours}): it is kept as" in note
        assert [path.read_bytes() for path in first.parent.glob("state.db.later-*")] == [before]
        store.add(TRAIN)
        assert PodStore(first, boot="boot-1").tenancies() == [TRAIN]

    def test_of_the_agent_with_a_class_of_pods_that_we_do_not_know_leaves_them_where_they_are(
        self, first: Path
    ) -> None:
        written(first, "INSERT INTO tenancies VALUES ('uid-b', 'ml', 'other', 'interactive', 1.0);")
        store = PodStore(first, boot="boot-1")
        assert store.tenancies() == [TRAIN]
        assert "ml/other is of class interactive, which is of a later release" in store.notes[0]
        assert store._database.all("SELECT class FROM tenancies WHERE uid = 'uid-b'") == [("interactive",)]
