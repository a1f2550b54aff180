"""What the daemon knows after a restart."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from aliquot.adapters.storage import store as store_module
from aliquot.adapters.storage.database import Database
from aliquot.adapters.storage.store import Store, StoreError
from aliquot.adapters.storage.tenantstore import TenantStore
from aliquot.model.claim import AppClass
from aliquot.model.grant import Share
from aliquot.model.tenancy import Tenancy, allotments_of


def tenancy(name: str = "train-1", **more: object) -> Tenancy:
    shares = (Share(0, 4096, 300, None, False, "GPU-0"), Share(1, 4096, None, 500, True, "GPU-1"))
    command = ("python", "train.py", "--naïve\n")
    return Tenancy(f"id-{name}", "", name, AppClass.OFFLINE, shares, 1.5, 1000, 4242, 777, command)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "t").mkdir()
    return tmp_path


def a_store(folder: Path) -> Store:
    return Store(str(folder / "state.db"), str(folder / "t"))


def test_store_keeps_tenancies_over_a_restart(folder: Path) -> None:
    store = a_store(folder)
    store.add(tenancy("a"))
    store.add(tenancy("b"))
    store.remove("id-b")
    store.remove("id-b")  # saying it twice changes nothing
    store.set("policy", "fixed-share")
    again = a_store(folder)
    assert again.tenancies() == [tenancy("a")]
    assert again.setting("policy") == "fixed-share"
    assert again.setting("nothing") is None
    assert [path.name for path in (folder / "t").iterdir()] == ["id-a.json"]


def test_store_keeps_after_how_long_a_run_may_be_parked(folder: Path) -> None:
    store = a_store(folder)
    store.add(replace(tenancy("a"), app_class=AppClass.ONLINE, park_after=30.0))
    (kept,) = a_store(folder).tenancies()
    assert (kept.park_after, kept.tenant.park_after) == (30.0, 30.0)


def test_store_keeps_the_accepted_latency_and_the_release_delay_of_a_tenant(folder: Path) -> None:
    store = a_store(folder)
    store.add(replace(tenancy("a"), app_class=AppClass.ONLINE, latency=0.002, release_delay=0.1))
    (kept,) = a_store(folder).tenancies()
    assert (kept.tenant.latency, kept.tenant.release_delay) == (0.002, 0.1)


def test_copy_of_an_earlier_release_has_no_time_of_parking(folder: Path) -> None:
    store = a_store(folder)
    store.add(tenancy("a"))
    store.close()
    copy, later = folder / "t" / "id-a.json", ("park_after", "latency", "release_delay")
    copy.write_text(json.dumps({key: value for key, value in json.loads(copy.read_text()).items() if key not in later}))
    for path in folder.glob("state.db*"):
        path.unlink()
    (folder / "state.db").write_bytes(b"no database")
    assert a_store(folder).tenancies() == [tenancy("a")]


def test_allotments_of_whole_and_offline_shares() -> None:
    one, whole = allotments_of(tenancy().shares)
    assert (one.memory_bytes, one.quota_milli) == (4 << 30, 300)
    assert (whole.memory_bytes, whole.quota_milli) == (None, None)
    (offline,) = allotments_of((Share(0, 1024, None, 500, False, "GPU-0"),))
    assert offline.quota_milli == 500


@pytest.mark.parametrize("damage", [b"", b"no database", b"SQLite format 3\0" + b"\xff" * 5000])
def test_store_reads_copies_after_damage(folder: Path, damage: bytes) -> None:
    store = a_store(folder)
    store.add(tenancy("a"))
    store.close()
    for path in folder.glob("state.db*"):
        path.unlink()
    (folder / "state.db").write_bytes(damage)
    mended = a_store(folder)
    assert mended.tenancies() == [tenancy("a")]
    assert len(mended.notes) == 2
    if damage:
        assert next(folder.glob("state.db.damaged-*")).read_bytes() == damage
    else:  # an empty file is a new database: nothing is damaged, but the tenants are there
        assert "was missing or empty" in mended.notes[0]
        assert not list(folder.glob("state.db.damaged-*"))


def test_store_that_lacks_files_for_the_copies_loses_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon would start without the run, and remove its folder and its copy."""
    store = a_store(folder)
    store.add(tenancy("a"))
    store.close()
    for path in folder.glob("state.db*"):
        path.unlink()

    def lacks_files(path: Path, *_: object, **__: object) -> str:
        raise OSError(errno.ENFILE, "Too many open files in system", str(path))

    with monkeypatch.context() as scarce:
        scarce.setattr(Path, "read_text", lacks_files)
        with pytest.raises(StoreError, match=r"id-a.json: Too many open files in system"):
            a_store(folder)
    assert a_store(folder).tenancies() == [tenancy("a")]


def test_store_reads_copies_if_the_file_is_gone(folder: Path) -> None:
    store = a_store(folder)
    store.set("boot", "this one")
    store.add(tenancy("a"))
    store.close()
    for path in folder.glob("state.db*"):
        path.unlink()
    assert a_store(folder).tenancies() == [tenancy("a")]


def test_boot_is_known_when_the_log_is_lost(folder: Path) -> None:
    """The runs come back from their copies: they would be taken for those of an earlier boot."""
    store = a_store(folder)
    store.set("boot", "before")
    store.close()
    store = a_store(folder)
    store.set("boot", "this one")
    store.add(tenancy("a"))
    left = {path.name: path.read_bytes() for path in folder.glob("state.db*")}  # as after kill -9
    store.close()
    for path in folder.glob("state.db*"):
        path.unlink()
    (folder / "state.db").write_bytes(left["state.db"])
    found = a_store(folder)
    assert (found.setting("boot"), found.tenancies()) == ("this one", [tenancy("a")])


def test_store_that_cannot_keep_what_it_reads_back_does_not_open(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the copy and the folder of a run that lives would be removed."""
    store = a_store(folder)
    store.add(tenancy("a"))
    store.close()
    for path in folder.glob("state.db*"):
        path.unlink()

    def full(*_: object) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(TenantStore, "add", full)
        with pytest.raises(StoreError, match="the disk is full"):
            a_store(folder)
    assert a_store(folder).tenancies() == [tenancy("a")]


def test_new_store_has_nothing_to_note(folder: Path) -> None:
    assert a_store(folder).notes == []


@pytest.mark.parametrize("done", [0, 1, 2])
def test_store_that_was_killed_while_it_read_the_copies_reads_the_rest(
    folder: Path, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    """The damaged file is moved aside by then, and the new one has some of the tenants, or none."""
    store = a_store(folder)
    store.set("boot", "this one")
    for name in ("a", "b", "c"):
        store.add(tenancy(name))
    store.close()
    (folder / "state.db").write_bytes(b"no database")
    written: list[Tenancy] = []

    def add(self: TenantStore, tenancy: Tenancy, original: Callable[..., None] = TenantStore.add) -> None:
        if len(written) == done:
            raise KeyboardInterrupt
        written.append(tenancy)
        original(self, tenancy)

    with monkeypatch.context() as patch:
        patch.setattr(TenantStore, "add", add)
        with pytest.raises(KeyboardInterrupt):
            a_store(folder)
    assert len(written) == done
    assert a_store(folder).tenancies() == [tenancy("a"), tenancy("b"), tenancy("c")]


@pytest.mark.parametrize("left", [0, 100, 0.5])
def test_store_reads_copies_of_what_was_lost_with_its_log(folder: Path, left: float) -> None:
    """Deleted by a person or a repair of the disk: the file itself is intact, and older."""
    store = a_store(folder)
    store.set("boot", "this one")
    store.add(tenancy("a"))
    store.close()
    store = a_store(folder)
    store.add(tenancy("b"))
    store.set("policy", "fixed-share")
    for name in ("state.db", "state.db-wal"):  # as a killed daemon leaves it
        (folder / f"killed-{name}").write_bytes((folder / name).read_bytes())
    store.close()
    for name in ("state.db", "state.db-wal"):
        (folder / f"killed-{name}").replace(folder / name)
    log = folder / "state.db-wal"
    os.truncate(log, int(left * log.stat().st_size) if left < 1 else int(left))
    again = a_store(folder)
    assert again.tenancies() == [tenancy("a"), tenancy("b")]
    assert again.notes in ([f"1 tenant read back from {folder / 't'}"], [])


def test_store_notes_an_unreadable_copy(folder: Path) -> None:
    store = a_store(folder)
    store.add(tenancy("a"))
    store.close()
    (folder / "t" / "bad.json").write_text('{"id": "bad"}')
    (folder / "t" / "worse.json").write_text("[")
    (folder / "state.db").write_bytes(b"no database")
    mended = a_store(folder)
    assert mended.tenancies() == [tenancy("a")]
    assert sum("could not be read" in note for note in mended.notes) == 2


def test_store_refuses_a_file_of_a_later_version(folder: Path) -> None:
    a_store(folder).close()
    database = sqlite3.connect(folder / "state.db")
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(StoreError, match="written by a later version"):
        a_store(folder)


def test_store_refuses_a_tenant_of_an_unknown_class(folder: Path) -> None:
    store = a_store(folder)
    store.add(tenancy("a"))
    store._database.connection.execute("UPDATE tenants SET class = 'interactive'")
    store.close()
    with pytest.raises(StoreError, match="a is of class interactive, which is of a later release"):
        a_store(folder)


def test_store_on_a_full_disk_writes_nothing(folder: Path) -> None:
    store = a_store(folder)
    store._database.connection.execute("PRAGMA max_page_count = 1")  # as if the disk were full
    big = replace(tenancy(), command=("x" * 100_000,))
    with pytest.raises(StoreError, match="full"):
        store.add(big)
    assert store.tenancies() == []
    assert list((folder / "t").iterdir()) == []


def test_store_writes_are_synchronous(folder: Path) -> None:
    database = a_store(folder)._database.connection
    assert database.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_store_keeps_data_of_an_earlier_version(folder: Path) -> None:
    before = Database(str(folder / "state.db"), store_module._STEPS[:1])
    with before.transaction() as database:
        database.execute("INSERT INTO settings VALUES ('policy', 'fixed-share')")
    before.close()
    store = a_store(folder)
    assert (store.setting("policy"), store.notes) == ("fixed-share", [])
    store.close()
