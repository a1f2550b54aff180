"""What is said when nobody is there to be asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from aliquot.adapters.host.control import NoDaemonError
from aliquot.adapters.host.home import Home
from aliquot.cli import client
from aliquot.cli.client import NoDaemonRunsError, ask


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
