"""What an agent leaves on its host is taken away, and nothing that others made."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.adapters.storage.filecleanup import SweepError, sweep
from aliquot.adapters.storage.podstore import PodStore

OURS = (
    "run/aliquot/lock",
    "run/aliquot/control.sock",
    "run/aliquot/t/uid-1/page",
    "run/aliquot/a/link",
    "var/lib/aliquot/state.db",
    "var/lib/aliquot/shim/0.1.0-abc/libaliquot.so",
    "var/lib/kubelet/device-plugins/aliquot-qgpu-core-1.sock",
    "var/run/cdi/aliquot.dev-gpu-x.yaml".replace("aliquot.dev-", "aliquot."),
    "var/run/cdi/.aliquot-x.17",
)
OTHERS = ("var/lib/kubelet/device-plugins/kubelet.sock", "var/run/cdi/nvidia.yaml", "var/lib/other/state.db")


@pytest.fixture
def host(tmp_path: Path) -> Path:
    for name in (*OURS, *OTHERS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def files(host: Path) -> set[str]:
    return {str(path.relative_to(host)) for path in host.rglob("*") if path.is_file()}


def test_all_of_ours_goes_and_all_of_others_stays(host: Path) -> None:
    sweep(host, keep_running=False)
    assert files(host) == set(OTHERS)
    assert not (host / "run/aliquot").exists()
    assert not (host / "var/lib/aliquot").exists()


def test_saying_it_twice_changes_nothing(host: Path) -> None:
    assert sweep(host, keep_running=False).removed
    again = sweep(host, keep_running=False)
    assert (again.removed, again.kept) == ([], [])


def test_what_running_containers_need_is_kept_where_that_is_said(host: Path) -> None:
    swept = sweep(host, keep_running=True)
    assert swept.kept == [
        "/run/aliquot/a",
        "/run/aliquot/t",
        "/var/lib/aliquot/shim",
        "/var/run/cdi/aliquot.gpu-x.yaml",
    ]
    kept = {"run/aliquot/t/uid-1/page", "run/aliquot/a/link", "var/lib/aliquot/shim/0.1.0-abc/libaliquot.so"}
    assert files(host) == {*OTHERS, *kept, "var/run/cdi/aliquot.gpu-x.yaml"}


def test_a_host_whose_agent_runs_is_refused_with_who_it_is(host: Path) -> None:
    lock = host / "run/aliquot/lock"
    lock.write_text("4711\n")
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(SweepError, match=r"pid 4711.*stop it first"):
            sweep(host, keep_running=False)
    assert set(OURS) <= files(host)


@pytest.fixture
def player(host: Path) -> Iterator[Path]:
    """Somebody who plays cards, and listens."""
    (host / "run/aliquot/player.json").touch()
    before = os.getcwd()
    os.chdir(host / "run/aliquot")  # a socket's name is short
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind("player.sock")
        os.chdir(before)
        listening.listen()
        yield host / "run/aliquot"


def test_simulated_cards_that_are_still_played_stay(host: Path, player: Path) -> None:
    if len(str(player / "player.sock")) > 100:
        pytest.skip("the folder's name is too long for a socket in it")
    sweep(host, keep_running=False)
    assert sorted(path.name for path in player.iterdir()) == ["player.json", "player.sock"]


def test_those_of_a_player_that_is_gone_go(host: Path) -> None:
    (host / "run/aliquot/player.json").touch()
    sweep(host, keep_running=False)
    assert not (host / "run/aliquot").exists()


class TestTheVendorsFolder:
    """In which the vendor's DaemonSet has our database, and the library beside it."""

    def test_ours_goes_with_the_folder(self, host: Path) -> None:
        folder = host / "var/lib/qgpu"
        (folder / "shim").mkdir(parents=True)
        PodStore(folder / "meta.db").close()
        assert "/var/lib/qgpu/meta.db" in sweep(host, keep_running=False).removed
        assert not folder.exists()

    def test_what_another_program_has_there_stays(self, host: Path) -> None:
        folder = host / "var/lib/qgpu"
        (folder / "shim").mkdir(parents=True)
        with contextlib.closing(sqlite3.connect(folder / "meta.db")) as database:
            database.execute("CREATE TABLE vendors (x)")
        sweep(host, keep_running=False)
        assert sorted(path.name for path in folder.iterdir()) == ["meta.db", "shim"]
