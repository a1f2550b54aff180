"""The logs of runs: bounded in size and number."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from adapters.storage.test_folders import large
from aliquot.adapters.storage.folders import ASIDE, wait_removed
from aliquot.services.daemon.control import Caller
from aliquot.services.machine.logs import OF_A_USER, RunLogs
from aliquot.services.machine.tenants.runfiles import new_log, remove_log


def test_logs_are_cut_at_the_limit_and_kept_for_the_newest_runs_of_each_user(tmp_path: Path) -> None:
    (tmp_path / "pods").mkdir()
    for at in range(OF_A_USER + 5):
        (tmp_path / f"run-{at}.log").write_bytes(b"x" * 100)
        os.utime(tmp_path / f"run-{at}.log", (at, at))
    (tmp_path / "run-1.log.1").touch()
    (tmp_path / "run-7.log").write_bytes(b"x" * 10_000)
    os.utime(tmp_path / "run-7.log", (7, 7))
    logs = RunLogs(str(tmp_path), 8000, set)
    in_use = {str(tmp_path / "run-0.log")}
    logs.look(in_use)
    left = set(os.listdir(tmp_path))
    assert {f"run-{at}.log" for at in (0, 5, 7, OF_A_USER + 4)} <= left
    assert left.isdisjoint({f"run-{at}.log" for at in (1, 2, 3, 4)} | {"run-1.log.1"})
    assert (tmp_path / "run-7.log").stat().st_size == 0
    assert (tmp_path / "run-7.log.1").stat().st_size == 8000


def test_logs_without_a_limit_are_not_cut(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_bytes(b"x" * 10_000)
    RunLogs(str(tmp_path), None, set).look(set())
    assert (tmp_path / "run.log").stat().st_size == 10_000


def test_missing_folder_of_logs_is_no_error(tmp_path: Path) -> None:
    RunLogs(str(tmp_path / "none"), 1000, set).look(set())


def test_request_for_a_run_neither_cuts_nor_removes_the_large_log_of_an_earlier_one(tmp_path: Path) -> None:
    """The event loop asks; its user can write to the log, and the kernel takes seconds to free many GiB."""
    path, caller = tmp_path / "run.log", Caller(os.getpid(), os.geteuid(), os.getegid())
    large(path)
    large(tmp_path / "run.log.1")
    with path.open("rb") as earlier:
        assert new_log(str(path), "run", caller) == str(path)
        assert os.fstat(earlier.fileno()).st_size == 64 << 20, "it is not cut here"
    assert (path.stat().st_size, (tmp_path / "run.log.1").exists()) == (0, False)
    large(path)
    remove_log(str(path))
    assert not path.exists()
    wait_removed()
    assert list(tmp_path.iterdir()) == []


def test_log_to_which_the_caller_writes_already_is_kept(tmp_path: Path) -> None:
    """A detached run that waits while the daemon restarts asks the new one again."""
    path = tmp_path / "run.log"
    path.write_text("waits\n")
    with path.open("ab") as output:
        waiting = subprocess.Popen(["sleep", "60"], stdout=output)
    try:
        caller = Caller(waiting.pid, os.geteuid(), os.getegid())
        before = path.stat().st_ino
        assert new_log(str(path), "run", caller) == str(path)
        assert (path.stat().st_ino, path.read_text()) == (before, "waits\n")
        new_log(str(path), "run", Caller(os.getpid(), os.geteuid(), os.getegid()))
        assert path.read_text() == ""
    finally:
        waiting.kill()
        waiting.wait()


def test_log_that_a_killed_daemon_put_aside_is_removed(tmp_path: Path) -> None:
    (tmp_path / f"{ASIDE}0").touch()
    RunLogs(str(tmp_path), None, set).look(set())
    assert list(tmp_path.iterdir()) == []
