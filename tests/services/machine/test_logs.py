"""The logs of runs: bounded in size and number."""

from __future__ import annotations

import os
from pathlib import Path

from aliquot.services.machine.logs import OF_A_USER, RunLogs


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
