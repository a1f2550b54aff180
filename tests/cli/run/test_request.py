"""What a run does when the daemon dies."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from aliquot.adapters.host.control import Connection, NoDaemonError
from aliquot.adapters.host.home import POD_VARIABLE
from aliquot.adapters.host.messages import RunMessage
from aliquot.cli.run import request
from kit.machines.fakedaemon import Answer, FakeDaemon


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


def test_run_in_a_pod_starts_no_daemon(lost: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end with the Pod."""
    monkeypatch.setenv(POD_VARIABLE, "some-uid")
    with pytest.raises(request.RunError, match="did not restart"):
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


WAITS: Answer = [
    {"event": {"waiting": {"name": "x", "position": 1, "of": 1, "kept_for": None, "refusals": []}, "log": None}}
]
OPTIONS = {"--listen": "0", "--control": "gate", "--log-limit": "1024MiB", "--policy": "fixed-share", "--other": "x"}


def started_with(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, *, user: int = 0) -> list[str] | None:
    """With which options a run starts the next daemon when this one, of that user, dies while the run waits."""
    asked: list[list[str]] = []

    def start(up: list[str], _: object) -> Connection:
        asked.append(up)
        raise StartedError

    monkeypatch.setattr(request, "connect_to_daemon", start)
    daemon.answers["run"] = WAITS
    connection = Connection(str(daemon.home / "control.sock"))
    connection.user += user
    message: RunMessage = {"op": "run", "command": ["x"], "class": "normal", "wait": True, "detach": False}
    with pytest.raises((StartedError, request.RunError)):
        request.wait_for_grant(connection, message, None, lambda _: None, ["--simulate", "1x24GiB"])
    return asked[0] if asked else None


def test_run_starts_the_next_daemon_with_the_options_of_its_own(
    lost: Connection, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are stored, as the policy, may have been changed since."""
    daemon.answers["hello"] = {"pid": 1, "options": OPTIONS}
    told = ["--listen", "0", "--control", "gate", "--log-limit", "1024MiB"]
    assert started_with(daemon, monkeypatch) == told
    assert len(daemon.requests("hello")) == 1


@pytest.mark.parametrize("about", [{"pid": 1}, {"options": "x"}, [], [{"ok": []}], [{"error": {"kind": "failed"}}]])
def test_run_starts_the_next_daemon_with_its_own_options_if_the_last_said_none(
    lost: Connection, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, about: Answer
) -> None:
    daemon.answers["hello"] = about
    assert started_with(daemon, monkeypatch) == ["--simulate", "1x24GiB"]


def test_run_asks_no_daemon_of_another_user_for_options(
    lost: Connection, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.answers["hello"] = {"pid": 1, "options": OPTIONS}
    assert started_with(daemon, monkeypatch, user=1) is None
    assert daemon.requests("hello") == []
