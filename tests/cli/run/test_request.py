"""What a run does when the daemon dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from aliquot.adapters.host.control import Connection
from aliquot.cli.run import request
from kit.machines.fakedaemon import FakeDaemon


def test_run_starts_no_daemon_in_place_of_the_machines_own(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Root's daemon restarts and knows what is booked; a second one would book the same cards again."""
    lost = Connection(str(daemon.home / "control.sock"))
    lost.close()
    monkeypatch.setenv("ALIQUOT_HOME", str(tmp_path))
    monkeypatch.setattr(request, "_SYSTEM_RESTART", 0.2)
    with pytest.raises(request.RunError, match="root starts it with `aliquot up -d`"):
        request.reconnect(lost, [])
    assert list(tmp_path.iterdir()) == []
