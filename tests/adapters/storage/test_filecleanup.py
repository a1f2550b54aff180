"""What an agent leaves on its host is taken away, and nothing that others made."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.adapters.host.home import pool_name
from aliquot.adapters.storage.filecleanup import SweepError, sweep
from aliquot.adapters.storage.folders import remove_folder, wait_removed
from aliquot.adapters.storage.podstore import PodStore

OURS = (
    "run/aliquot/lock",
    "run/aliquot/control.sock",
    "run/aliquot/t/uid-1/page",
    "run/aliquot/a/link",
    "var/lib/aliquot/state.db",
    "var/lib/aliquot/shim/0.1.0-abc/libaliquot.so",
    "var/lib/kubelet/device-plugins/aliquot-qgpu-core-1.sock",
    "var/lib/kubelet/plugins/aliquot.dev/1f.sock",
    "var/lib/kubelet/plugins_registry/aliquot.dev-1f-reg.sock",
    "var/lib/kubelet/device-plugins/aliquot/run/lock",
    "var/lib/kubelet/device-plugins/aliquot/state/state.db",
    "var/run/cdi/aliquot.dev-gpu-x.yaml".replace("aliquot.dev-", "aliquot."),
    "var/run/cdi/.aliquot-x.17",
)
OTHERS = (
    "var/lib/kubelet/device-plugins/kubelet.sock",
    "var/lib/kubelet/plugins_registry/gpu.nvidia.com-reg.sock",
    "var/run/cdi/nvidia.yaml",
    "var/lib/other/state.db",
)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    for name in (*OURS, *OTHERS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def files(host: Path) -> set[str]:
    return {str(path.relative_to(host)) for path in host.rglob("*") if path.is_file()}


def test_sweep_removes_our_files_and_no_others(host: Path) -> None:
    sweep(host, keep_running=False)
    assert files(host) == set(OTHERS)
    assert not (host / "run/aliquot").exists()
    assert not (host / "var/lib/aliquot").exists()


def test_sweep_removes_the_pool_unless_running_pods_are_parked_in_it(host: Path) -> None:
    pool, other = host / "dev/shm" / pool_name("/var/lib/aliquot", 0), host / "dev/shm/aliquot-1000-0123456789ab"
    for folder in (pool, other):
        (folder / "parked").mkdir(parents=True)
        (folder / "memory").touch()
    log = pool / "parked/uid-1@0@1@GPU-1"
    log.touch()
    assert f"/dev/shm/{pool.name}" in sweep(host, keep_running=True).kept
    log.unlink()
    assert f"/dev/shm/{pool.name}" in sweep(host, keep_running=True).removed
    assert (pool.exists(), (other / "memory").exists()) == (False, True)


def test_sweep_removes_folders_that_are_nested_deeply(host: Path) -> None:
    """A Pod's process may have made them in its tenant's folder, deeper than a path can say."""
    at = os.open(host / "run/aliquot/t/uid-1", os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=at)
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)
    try:
        assert "/run/aliquot/t" in sweep(host, keep_running=False).removed
        assert not (host / "run/aliquot").exists()
    finally:
        remove_folder(host / "run/aliquot/t")  # pytest could not
        wait_removed()


def test_sweep_says_what_it_could_not_remove(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unlink(path: str, *, dir_fd: int | None = None) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", path)

    with monkeypatch.context() as patch:
        patch.setattr("os.unlink", unlink)
        with pytest.raises(SweepError, match=r"not permitted.*run this as root"):
            sweep(host, keep_running=False)


def test_sweep_is_idempotent(host: Path) -> None:
    assert sweep(host, keep_running=False).removed
    again = sweep(host, keep_running=False)
    assert (again.removed, again.kept) == ([], [])


def test_sweep_with_keep_running_keeps_what_containers_need(host: Path) -> None:
    swept = sweep(host, keep_running=True)
    assert swept.kept == [
        "/run/aliquot/a",
        "/run/aliquot/t",
        "/var/lib/aliquot/shim",
        "/var/run/cdi/aliquot.gpu-x.yaml",
    ]
    kept = {"run/aliquot/t/uid-1/page", "run/aliquot/a/link", "var/lib/aliquot/shim/0.1.0-abc/libaliquot.so"}
    assert files(host) == {*OTHERS, *kept, "var/run/cdi/aliquot.gpu-x.yaml"}


def test_sweep_refuses_while_an_agent_runs(host: Path) -> None:
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
    (host / "run/aliquot/player").mkdir()
    (host / "run/aliquot/player.state").mkdir()
    os.chdir(host / "run/aliquot/player")  # a socket's name is short
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind("sock")
        os.chdir(before)
        listening.listen()
        yield host / "run/aliquot"


def test_sweep_keeps_a_running_simulator(host: Path, player: Path) -> None:
    if len(str(player / "player/sock")) > 100:
        pytest.skip("the folder's name is too long for a socket in it")
    sweep(host, keep_running=False)
    assert sorted(path.name for path in player.iterdir()) == ["player", "player.json", "player.state"]


def test_sweep_removes_a_stopped_simulator(host: Path) -> None:
    (host / "run/aliquot/player.json").touch()
    sweep(host, keep_running=False)
    assert not (host / "run/aliquot").exists()


class TestVendorFolder:
    """In which the vendor's DaemonSet has our database, and the library beside it."""

    def test_sweep_removes_our_database_and_the_vendors_folder(self, host: Path) -> None:
        folder = host / "var/lib/qgpu"
        (folder / "shim").mkdir(parents=True)
        PodStore(folder / "meta.db").close()
        assert "/var/lib/qgpu/meta.db" in sweep(host, keep_running=False).removed
        assert not folder.exists()

    def test_sweep_keeps_the_database_of_another_program(self, host: Path) -> None:
        folder = host / "var/lib/qgpu"
        (folder / "shim").mkdir(parents=True)
        with contextlib.closing(sqlite3.connect(folder / "meta.db")) as database:
            database.execute("CREATE TABLE vendors (x)")
        sweep(host, keep_running=False)
        assert sorted(path.name for path in folder.iterdir()) == ["meta.db", "shim"]
