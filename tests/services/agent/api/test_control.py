"""The control socket of a node's agent, asked as the commands ask it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aliquot.adapters.host import control
from aliquot.adapters.host.control import AnswerError, NoDaemonError
from aliquot.adapters.host.home import Home
from kit.agents.fakeagent import FakeAgent, RunningControl

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(str(tmp_path), str(tmp_path))


@pytest.fixture
def ask(home: Home) -> Iterator[Ask]:
    with RunningControl(home.control):
        yield lambda **request: control.ask([home], request)


def test_hello_names_the_node(ask: Ask) -> None:
    assert ask(op="hello")["node"] == "n1"


def test_status_is_the_agents(ask: Ask) -> None:
    assert [tenant["name"] for tenant in ask(op="status")["tenants"]] == ["ml/train-0", "web/serve"]


def test_policy_is_readable_and_its_change_refers_to_the_label(ask: Ask) -> None:
    assert ask(op="policy")["policy"] == "best-effort"
    with pytest.raises(AnswerError, match=r"kubectl label node n1 --overwrite tke.*=fixed-share`") as refused:
        ask(op="policy", policy="fixed-share")
    assert refused.value.kind == "denied"


def test_release_delay_change_refers_to_the_option(ask: Ask) -> None:
    with pytest.raises(AnswerError, match="--release-delay") as refused:
        ask(op="policy", release_delay=0.0)
    assert "kubectl label" not in str(refused.value)


@pytest.mark.parametrize(
    ("operation", "instead"),
    [("run", "create a Pod"), ("stop", "kubectl delete pod"), ("logs", "kubectl logs"), ("down", "DaemonSet")],
)
def test_operations_of_kubernetes_are_refused_with_what_to_use(ask: Ask, operation: str, instead: str) -> None:
    with pytest.raises(AnswerError, match="Kubernetes manages the cards of this machine") as refused:
        ask(op=operation, command=["true"])
    assert instead in str(refused.value)


def test_unknown_operation_is_refused_with_the_known_ones(ask: Ask) -> None:
    with pytest.raises(
        AnswerError, match="'dance'; the agent knows hello, status, usage, policy, processes, live, ready"
    ):
        ask(op="dance")


def test_processes_are_counted_by_pod(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aliquot.services.agent.api.control.pods_seen", lambda: {"u1": 3})
    assert ask(op="processes") == {"pods": {"u1": 3}}


def test_live_and_ready_when_nothing_is_missing(ask: Ask) -> None:
    assert ask(op="live") == ask(op="ready") == {}


def test_ready_is_refused_with_what_is_missing(home: Home) -> None:
    with RunningControl(home.control, FakeAgent(waits_for="the kubelet has not accepted it yet")):
        assert control.ask([home], {"op": "live"}) == {}
        with pytest.raises(AnswerError, match="the kubelet has not accepted it yet") as refused:
            control.ask([home], {"op": "ready"})
    assert refused.value.kind == "not-ready"


def test_any_user_may_connect(ask: Ask, home: Home) -> None:
    assert Path(home.control).stat().st_mode & 0o777 == 0o666


def test_socket_is_removed_at_the_end(home: Home) -> None:
    with RunningControl(home.control):
        pass
    assert not Path(home.control).exists()
    with pytest.raises(NoDaemonError):
        control.ask([home], {"op": "hello"})
