"""A real node on the cluster's dashboard: what its agent sees on the cards, beside what the scheduler knows."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.cards import QCORE, QMEM
from testbed.plane import HOST
from testbed.processes import free_port, wait_until
from testbed.programs.agents import AliquotAgent
from testbed.programs.fleet import Fleet
from testbed.programs.product import AliquotScheduler
from testbed.realnodes.nodes import probe

HERE = {"kubernetes.io/hostname": "n1"}
EVERYWHERE = "0.0.0.0"  # an agent's own default


@pytest.fixture
def agent(fleet: Fleet) -> AliquotAgent:
    return fleet.agents["n1"]


@pytest.fixture
def node_shown(fleet: Fleet, agent: AliquotAgent, tmp_path: Path) -> Iterator[Callable[[], dict[str, Any]]]:
    """n1 on the dashboard of a scheduler that stands by: it shows the same as the one that leads."""
    port = free_port()
    ours = AliquotScheduler(
        f"--dashboard={HOST}:{port}",
        f"--agent-port={agent.port}",
        kubeconfig=fleet.plane.kubeconfig,
        log=tmp_path / "standby.log",
        wait=False,
    )

    def shown() -> dict[str, Any]:
        with urllib.request.urlopen(f"http://{HOST}:{port}/api/v1/nodes/n1", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def answers() -> bool:
        try:
            return bool(shown()["cards"])
        except OSError:
            return False

    try:
        wait_until(answers, 30, "the dashboard shows n1", saw=lambda: ours.log)
        yield shown
    finally:
        ours.stop()


def _tenant(node: dict[str, Any], key: str) -> dict[str, Any] | None:
    tenants = [tenant for card in node["cards"] for tenant in card["tenants"]]
    return next((tenant for tenant in tenants if tenant["key"] == key), None)


def test_what_the_agent_measures_and_who_held_the_card_is_on_the_nodes_page(
    fleet: Fleet, agent: AliquotAgent, node_shown: Callable[[], dict[str, Any]]
) -> None:
    command = [word for word in agent.command if not word.startswith("--bind-address")]
    with agent.instead([*command, f"--bind-address={EVERYWHERE}"]):
        fleet.create(probe("busy", "burn", "0", "5", limits={QCORE: 60, QMEM: 4}, nodeSelector=HERE))
        fleet.report("busy")

        def lanes(node: dict[str, Any]) -> list[dict[str, Any]]:
            cards = (node["timeline"] or {"cards": {}})["cards"].values()
            return [lane for card in cards for lane in card["tenants"] if lane["key"] == "default/busy"]

        def busy() -> bool:
            node = node_shown()
            tenant = _tenant(node, "default/busy")
            measured = tenant is not None and tenant["state"] == "running" and (tenant["share"] or 0) > 0.5
            return measured and any(sum(lane["shares"]) > 500 for lane in lanes(node))

        wait_until(busy, 20, "share and timeline are told", saw=node_shown)
        node = node_shown()
        assert node["release_delay_seconds"] is not None
        (tenant,) = [_tenant(node, "default/busy")]
        assert tenant is not None
        assert (tenant["dialect"], tenant["core"], tenant["memory_mib"]) == ("qgpu", 60, 4096)
        assert tenant["memory_used_mib"] is not None


def test_an_agent_that_answers_on_loopback_only_is_not_reached_from_elsewhere(
    fleet: Fleet, agent: AliquotAgent, node_shown: Callable[[], dict[str, Any]]
) -> None:
    """Then the page has what the scheduler knows, and no more."""
    address = agent.node.address
    assert address != HOST
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address, agent.port), timeout=5)
    fleet.create(probe("there", limits={QCORE: 20, QMEM: 4}, nodeSelector=HERE))
    fleet.report("there")
    tenant = wait_until(lambda: _tenant(node_shown(), "default/there"), 10, "the scheduler knows it")
    assert tenant is not None
    assert (tenant["core"], tenant["share"], node_shown()["timeline"]) == (20, None, None)
