"""The supervisor of a Pod: there is one per Pod, so it must be light."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from aliquot.adapters.host.process.supervisors import SUPERVISOR
from aliquot.model.containers.launch import ContainerLaunch, LaunchSpec
from aliquot.services.machine.pods import supervisor

HEAVY = ("asyncio", "numpy", "click", "aiohttp", "msgspec", "rich", "yaml", "subprocess", "logging", "sqlite3")


def test_supervisor_loads_nothing_heavy() -> None:
    script = f"import {SUPERVISOR}, sys; print([name for name in {HEAVY} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def untouching(monkeypatch: pytest.MonkeyPatch) -> supervisor.Supervisor:
    """One in this process, whose signals are not to be touched."""
    for name in ("signal", "set_wakeup_fd"):
        monkeypatch.setattr(f"signal.{name}", lambda *_, **__: None)
    return supervisor.Supervisor("/no/such/control", "uid")


def granted(log: Path, log_limit: int | None) -> LaunchSpec:
    container = ContainerLaunch("main", init=False, sidecar=False, command=["true"], env={}, folders=[], log=str(log))
    return LaunchSpec("Never", 1.0, [container], log_limit=log_limit)


@pytest.mark.parametrize("limit", [None, 64_000])
def test_supervisor_bounds_the_log_of_a_container(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: int | None
) -> None:
    """Both parts of it together, however much is written: apart from what is written between two looks at it."""
    log, older, line = tmp_path / "main.log", tmp_path / "main.log.1", b"a line of the log" + b"." * 82 + b"\n"
    found = untouching(monkeypatch)
    found._begin(granted(log, limit))
    most = 0
    with log.open("ab", buffering=0) as output:  # as the container has it
        for _ in range(3000):
            output.write(line)
            found._next_look = 0.0  # the next one is due
            found._bound_logs()
            most = max(most, sum(path.stat().st_size for path in (log, older) if path.exists()))
    if limit is None:
        assert (most, older.exists()) == (3000 * len(line), False)
    else:
        assert limit // 2 <= most <= limit + len(line)
        assert older.read_bytes().endswith(line)


def test_supervisor_looks_at_logs_in_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also while nothing else happens: a program that only writes wakes nobody."""
    waited: list[float] = []

    def select(_read: object, _write: object, _other: object, timeout: float) -> tuple[list[int], list[int], list[int]]:
        waited.append(timeout)
        return [], [], []

    found = untouching(monkeypatch)
    found._begin(granted(tmp_path / "main.log", 64_000))
    found._connection = Mock()
    monkeypatch.setattr("select.select", select)
    monkeypatch.setattr(found._lifecycle, "next_due", lambda: None)
    found._wait()
    assert waited == [5.0]


def test_supervisor_does_not_spin_on_unkillable_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's, by sudo say: the grace period is over, and they are still there."""
    waited: list[float] = []

    def select(_read: object, _write: object, _other: object, timeout: float) -> tuple[list[int], list[int], list[int]]:
        waited.append(timeout)
        return [], [], []

    found = untouching(monkeypatch)
    monkeypatch.setattr("select.select", select)
    found._end("enough", None)
    found._kill_at = time.monotonic() - 1
    found._wait()
    assert waited == [0.1]
