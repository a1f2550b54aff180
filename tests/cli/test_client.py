"""What commands say when no daemon answers."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from aliquot.adapters.host.control import NoDaemonError
from aliquot.adapters.host.control import connect as really_connect
from aliquot.adapters.host.home import Home
from aliquot.cli import client
from aliquot.cli.client import NoDaemonRunsError, Watch, ask, events
from aliquot.cli.errors import InputError


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No daemon and no agent, on a machine with a kubelet."""

    def connect(homes: list[Home], *, obeys: bool) -> None:
        raise NoDaemonError

    monkeypatch.setattr(client, "connect", connect)
    monkeypatch.setattr(client, "_KUBELET", str(tmp_path))


def said(monkeypatch: pytest.MonkeyPatch, run: str) -> str:
    monkeypatch.setattr(client, "homes", lambda: [Home(run, run)])
    with pytest.raises(NoDaemonRunsError) as refused:
        ask({"op": "status"})
    return str(refused.value)


def test_client_on_kubernetes_node_refers_to_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "run `aliquot doctor` to see why the agent is missing" in said(monkeypatch, "/run/aliquot")


def test_client_with_own_home_refers_to_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert said(monkeypatch, str(tmp_path)).startswith("no daemon runs on this machine")


def test_client_without_kubelet_refers_to_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(client, "_KUBELET", str(tmp_path / "none"))
    assert said(monkeypatch, "/run/aliquot").startswith("no daemon runs on this machine")


def test_client_says_how_to_end_a_daemon_that_hangs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`aliquot down` asks the daemon too, and does not help then."""
    home = Home(str(tmp_path), str(tmp_path))
    monkeypatch.setattr(client, "connect", really_connect)
    monkeypatch.setattr(client, "homes", lambda: [home])
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(home.control)
        listener.listen()
        with pytest.raises(InputError) as silent:
            list(events({"op": "status"}, timeout=0.1))
    assert str(silent.value).startswith(f"the daemon (pid {os.getpid()}) does not answer: ")
    assert f"`kill -9 {os.getpid()}` ends it (tenants keep running)" in str(silent.value)


def test_watch_counts_from_the_first_look_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`top --every 60` looks once a minute, and a command that Ctrl-Z stopped not at all."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    watch = Watch()
    assert watch.look(lambda: 1) == 1
    now = 60.0
    assert watch.look(_no_daemon) is None
    now = 76.0
    with pytest.raises(NoDaemonRunsError):
        watch.look(_no_daemon)


def test_watch_is_settled_a_while_after_a_daemon_has_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that wait must ask the new daemon first: until then it does not know them."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    watch = Watch()
    assert watch.settled
    watch.look(_no_daemon)
    watch.look(lambda: 1)
    assert not watch.settled
    now = 10.0
    assert watch.settled


def _no_daemon() -> int:
    raise NoDaemonRunsError("none")
