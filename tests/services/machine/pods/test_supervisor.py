"""The supervisor of a Pod: there is one per Pod, so it must be light."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from aliquot.adapters.host.supervisors import SUPERVISOR
from aliquot.services.machine.pods import supervisor

HEAVY = ("asyncio", "numpy", "click", "aiohttp", "msgspec", "rich", "yaml", "subprocess", "logging", "sqlite3")


def test_supervisor_loads_nothing_heavy() -> None:
    script = f"import {SUPERVISOR}, sys; print([name for name in {HEAVY} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_supervisor_does_not_spin_on_unkillable_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's, by sudo say: the grace period is over, and they are still there."""
    waited: list[float] = []

    def select(_read: object, _write: object, _other: object, timeout: float) -> tuple[list[int], list[int], list[int]]:
        waited.append(timeout)
        return [], [], []

    for name in ("signal", "set_wakeup_fd"):  # ours are not to be touched
        monkeypatch.setattr(f"signal.{name}", lambda *_, **__: None)
    found = supervisor.Supervisor("/no/such/control", "uid")
    monkeypatch.setattr("select.select", select)
    found._end("enough", None)
    found._kill_at = time.monotonic() - 1
    found._wait()
    assert waited == [0.1]
