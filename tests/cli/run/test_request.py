"""What a run does when the daemon dies."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from aliquot.adapters.host.control import Connection, NoDaemonError
from aliquot.cli.run import request
from kit.machines.fakedaemon import FakeDaemon


@pytest.fixture
def lost(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> Connection:
    """A connection to a daemon of this user, which is gone."""
    monkeypatch.setattr(request, "_RESTART", 0.2)
    monkeypatch.setattr(request, "_OWN_RESTART", 0.2)
    monkeypatch.setattr(request, "connect_to_daemon", _started)
    connection = Connection(str(daemon.home / "control.sock"))
    connection.close()
    monkeypatch.setattr(request, "wait_for_daemon", _none_comes)
    return connection


class StartedError(Exception):
    """The run would start a daemon."""


def _started(*_: object) -> Connection:
    raise StartedError


def _none_comes(patience: float) -> tuple[Connection, object]:
    time.sleep(max(0.0, patience))
    raise NoDaemonError("nowhere")


def test_run_starts_the_next_daemon_in_place_of_its_own(lost: Connection) -> None:
    with pytest.raises(StartedError):
        request.reconnect(lost, [])


def test_run_starts_no_daemon_in_place_of_the_machines_own(
    lost: Connection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Root's daemon restarts and knows what is booked; a second one would book the same cards again."""
    monkeypatch.setenv("ALIQUOT_HOME", str(tmp_path))
    with pytest.raises(request.RunError, match="root starts it with `aliquot up -d`"):
        request.reconnect(lost, [])


def test_run_starts_no_daemon_in_a_home_where_another_user_had_one(lost: Connection) -> None:
    lost.user += 1
    with pytest.raises(request.RunError, match="root starts it with `aliquot up -d`"):
        request.reconnect(lost, [])


def test_run_starts_no_daemon_after_one_that_was_ended(lost: Connection) -> None:
    with pytest.raises(request.RunError, match="did not restart within 0 s: start it with `aliquot up -d`"):
        request.reconnect(lost, [], may_start=False)


def test_run_waits_for_the_next_daemon_no_longer_than_its_timeout(
    lost: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "_OWN_RESTART", 60.0)
    with pytest.raises(TimeoutError):
        request.reconnect(lost, [], time.monotonic() + 0.1)
