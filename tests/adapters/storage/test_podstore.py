"""What the node's agent knows after a restart."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from aliquot.adapters.storage.podstore import PodStore, StoreError
from aliquot.adapters.storage.store import Store
from aliquot.model.claim import AppClass
from aliquot.model.device import Card
from aliquot.model.grant import Share
from aliquot.model.tenancy import Tenancy

CARDS = (Card(0, 24576, "GPU-0", "A30", True, 0, 10), Card(1, 24576, "GPU-1", "A30", False))


def tenancy(uid: str = "uid-a", created: float = 1.5, memory: int = 4096) -> Tenancy:
    shares = (Share(1, memory, 300, None, False, "GPU-1"), Share(0, memory, None, 500, True, "GPU-0"))
    return Tenancy(uid, "ml", f"train-{uid}", AppClass.OFFLINE, shares, created)


def a_store(folder: Path, boot: str = "boot-1") -> PodStore:
    return PodStore(folder / "agent.db", boot=boot)


def delete(folder: Path) -> None:
    for path in folder.glob("agent.db*"):
        path.unlink()


def test_podstore_keeps_tenancies_over_a_restart(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    store.add(tenancy("b", created=2.0))
    store.add(tenancy("a", created=1.0))
    store.add(tenancy("c", created=3.0))
    store.remove("c")
    store.remove("c")  # saying it twice changes nothing
    again = a_store(tmp_path)
    assert again.tenancies() == [tenancy("a", created=1.0), tenancy("b", created=2.0)]
    assert again.notes == []


def test_podstore_keeps_after_how_long_a_pod_may_be_parked_and_what_latency_it_accepts(tmp_path: Path) -> None:
    pod = replace(tenancy(), app_class=AppClass.ONLINE, park_after=30.0, latency=0.002)
    a_store(tmp_path).add(pod)
    (kept,) = a_store(tmp_path).tenancies()
    assert kept == pod
    assert (kept.tenant.park_after, kept.tenant.latency) == (30.0, 0.002)


def test_podstore_add_is_idempotent_and_replaces(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    store.add(tenancy(memory=1024))
    store.add(tenancy(memory=1024))
    store.add(tenancy(memory=2048))
    assert store.tenancies() == a_store(tmp_path).tenancies() == [tenancy(memory=2048)]


def test_podstore_keeps_cards_until_a_reboot(tmp_path: Path) -> None:
    store = a_store(tmp_path, boot="boot-1")
    assert store.cards() == ()
    store.set_cards(CARDS)
    assert a_store(tmp_path, boot="boot-1").cards() == CARDS
    rebooted = a_store(tmp_path, boot="boot-2")
    assert rebooted.cards() == ()
    rebooted.set_cards(CARDS[:1])
    assert a_store(tmp_path, boot="boot-2").cards() == CARDS[:1]


def test_podstore_uses_the_kernels_boot_id(tmp_path: Path) -> None:
    PodStore(tmp_path / "agent.db").set_cards(CARDS)
    assert PodStore(tmp_path / "agent.db").cards() == CARDS


def test_podstore_moves_a_damaged_file_aside(tmp_path: Path) -> None:
    (tmp_path / "agent.db").write_bytes(b"no database")
    store = a_store(tmp_path)
    (note,) = store.notes
    assert "agent.db was damaged (file is not a database): it is now" in note
    assert note.endswith("its contents are read from the API server and the kubelet")
    store.add(tenancy())
    assert a_store(tmp_path).tenancies() == [tenancy()]


def test_podstore_finds_a_damaged_page_on_open(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    for at in range(100):
        store.add(tenancy(f"uid-{at}"))
    store.close()
    data = bytearray((tmp_path / "agent.db").read_bytes())
    data[8192:16384] = b"\xff" * 8192
    (tmp_path / "agent.db").write_bytes(data)
    mended = a_store(tmp_path)
    assert mended.tenancies() == []
    assert len(mended.notes) == 1


def test_podstore_and_store_refuse_each_others_file(tmp_path: Path) -> None:
    Store(str(tmp_path / "state.db"), str(tmp_path)).close()
    with pytest.raises(StoreError, match="the state of another program"):
        PodStore(tmp_path / "state.db")
    a_store(tmp_path).close()
    with pytest.raises(StoreError, match="the state of another program"):
        Store(str(tmp_path / "agent.db"), str(tmp_path))


def test_podstore_creates_its_folder(tmp_path: Path) -> None:
    a_store(tmp_path / "var" / "lib").add(tenancy())
    assert a_store(tmp_path / "var" / "lib").tenancies() == [tenancy()]


def test_podstore_on_a_full_disk_keeps_nothing_of_the_write(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    store.add(tenancy("a"))
    store._database.connection.execute("PRAGMA max_page_count = 1")
    with pytest.raises(StoreError, match="full: free some space there; nothing was written"):
        store.add(replace(tenancy("b"), name="x" * 100_000))
    assert store.tenancies() == a_store(tmp_path).tenancies() == [tenancy("a")]


def test_podstore_writes_are_synchronous(tmp_path: Path) -> None:
    database = a_store(tmp_path)._database.connection
    assert database.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


# --- lost while we run -----------------------------------------------------------------------------------------------


def test_podstore_recreates_a_deleted_file_on_the_next_write(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    store.add(tenancy("a"))
    store.set_cards(CARDS)
    delete(tmp_path)
    assert store.tenancies() == [tenancy("a")]
    store.add(tenancy("b"))
    again = a_store(tmp_path)
    assert again.tenancies() == [tenancy("a"), tenancy("b")]
    assert again.cards() == CARDS
    assert store.notes == [f"{tmp_path}/agent.db had disappeared: the agent wrote its state to a new file"]


def test_podstore_recreates_a_deleted_file_on_an_unchanged_write(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    store.add(tenancy("a"))
    delete(tmp_path)
    store.add(tenancy("a"))
    assert a_store(tmp_path).tenancies() == [tenancy("a")]


def test_podstore_survives_a_deleted_log(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    store.add(tenancy("a"))
    (tmp_path / "agent.db-wal").unlink()
    store.add(tenancy("b"))
    assert a_store(tmp_path).tenancies() == [tenancy("a"), tenancy("b")]


def test_podstore_overwrites_a_file_put_in_its_place(tmp_path: Path) -> None:
    old = a_store(tmp_path)
    old.add(tenancy("old"))
    old.close()
    shutil.copy(tmp_path / "agent.db", tmp_path / "backup")
    store = a_store(tmp_path)
    store.remove("old")
    delete(tmp_path)
    shutil.move(tmp_path / "backup", tmp_path / "agent.db")
    store.add(tenancy("new"))
    assert a_store(tmp_path).tenancies() == [tenancy("new")]


def test_podstore_retries_to_recreate_a_deleted_file(tmp_path: Path) -> None:
    folder = tmp_path / "lib"
    store = a_store(folder)
    store.add(tenancy("a"))
    shutil.rmtree(folder)
    folder.write_text("in the way")
    for _ in range(2):
        with pytest.raises(StoreError, match="the folder must exist and be writable"):
            store.add(tenancy("b"))
    assert store.tenancies() == [tenancy("a")]
    folder.unlink()
    store.add(tenancy("b"))
    assert a_store(folder).tenancies() == [tenancy("a"), tenancy("b")]


def test_podstore_fills_a_recreated_file_on_the_next_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = a_store(tmp_path)
    store.add(tenancy("a"))
    delete(tmp_path)

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as broken:
        broken.setattr("aliquot.adapters.storage.podstore._insert_cards", full)
        with pytest.raises(StoreError, match="full"):
            store.remove("nobody")
    store.remove("nobody")
    assert a_store(tmp_path).tenancies() == [tenancy("a")]


# --- killed ----------------------------------------------------------------------------------------------------------

_WRITER = """
import sys
from pathlib import Path
from aliquot.adapters.storage.podstore import PodStore
from aliquot.model.claim import AppClass
from aliquot.model.grant import Share
from aliquot.model.tenancy import Tenancy

store = PodStore(Path(sys.argv[1]), boot="boot-1")
for at in range(100_000):
    store.add(Tenancy(f"uid-{at}", "ml", f"p-{at}", AppClass.NORMAL, (Share(0, at, uuid="GPU-0"),), float(at)))
    print(f"added {at}", flush=True)
    if at % 3 == 2:
        store.remove(f"uid-{at - 1}")
        print(f"removed {at - 1}", flush=True)
"""


@pytest.mark.parametrize("lines", [1, 8, 50])
def test_podstore_killed_during_writes_has_all_that_returned(tmp_path: Path, lines: int) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(tmp_path / "agent.db")], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    printed = [writer.stdout.readline() for _ in range(lines)]
    writer.send_signal(signal.SIGKILL)
    printed += writer.stdout.readlines()  # it may have come further
    writer.stdout.close()
    writer.wait()
    added = [int(line.split()[1]) for line in printed if line.startswith("added") and line.endswith("\n")]
    removed = {int(line.split()[1]) for line in printed if line.startswith("removed") and line.endswith("\n")}
    store = a_store(tmp_path)
    found = {int(tenancy.created): tenancy for tenancy in store.tenancies()}
    assert store.notes == []
    # The disk may have one write more than the store confirmed.
    assert set(added) - removed - found.keys() <= {added[-1] - 1}
    assert found.keys() - set(added) <= {added[-1] + 1}
    assert all(tenancy.shares == (Share(0, at, uuid="GPU-0"),) for at, tenancy in found.items())


# --- any order of events ---------------------------------------------------------------------------------------------

UIDS = st.sampled_from(["a", "b", "c", "d"])
AMOUNTS = st.none() | st.integers(0, 1000)
SHARES = st.lists(
    st.builds(Share, st.integers(0, 3), st.integers(0, 1 << 40), AMOUNTS, AMOUNTS, st.booleans(), st.text(max_size=3)),
    unique_by=lambda share: share.card,
    max_size=3,
).map(tuple)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
PODS = st.builds(Tenancy, UIDS, TEXTS, TEXTS, st.sampled_from(AppClass), SHARES, st.floats(0, 1e12))


class AnyOrder(RuleBasedStateMachine):
    """Against a dict: after any writes, restarts and deleted files, the store answers what the dict has."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.store = a_store(self.folder)
        self.pods: dict[str, Tenancy] = {}
        self.deleted = False

    @rule(pod=PODS)
    def add(self, pod: Tenancy) -> None:
        self.store.add(pod)
        self.pods[pod.id], self.deleted = pod, False

    @rule(uid=UIDS)
    def remove(self, uid: str) -> None:
        self.store.remove(uid)
        self.pods.pop(uid, None)
        self.deleted = False

    @rule()
    def delete_the_file(self) -> None:
        delete(self.folder)
        self.deleted = True

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = a_store(self.folder)
        if self.deleted:  # before anything was written again
            self.pods, self.deleted = {}, False

    @invariant()
    def knows_what_it_was_told(self) -> None:
        assert {pod.id: pod for pod in self.store.tenancies()} == self.pods

    def teardown(self) -> None:
        with contextlib.suppress(AttributeError):
            self.store.close()
            shutil.rmtree(self.folder)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=30, stateful_step_count=15, deadline=None)
