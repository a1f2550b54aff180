"""What an agent reports about itself before anything else has answered it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aliquot.adapters.kubernetes.kube import Server
from aliquot.adapters.storage.podstore import PodStore
from aliquot.arbiter.timeline import Record
from aliquot.cli.machine.top import view
from aliquot.model.cardstate.control import CardControl
from aliquot.model.containers.edits import Edits
from aliquot.model.device import Card
from aliquot.model.residency import Arrival
from aliquot.model.status.machine import Status
from aliquot.model.tenant import Finding, SharingRules, Standing, Tenant
from aliquot.services.agent.api.metrics import agent_exposition
from aliquot.services.agent.injection import Libraries
from aliquot.services.agent.service import Agent
from aliquot.services.agent.settings import Parts, Settings


class _Arbiter:
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def add(self, tenant: Tenant, directory: Path) -> None: ...
    def remove(self, tenant_id: str) -> None: ...
    def configure(self, rules: SharingRules) -> None: ...
    def spare(self, tenants: frozenset[str]) -> None: ...
    def standings(self) -> list[Standing]:
        return []

    def take_arrivals(self) -> list[Arrival]:
        return []

    def findings(self) -> list[Finding]:
        return []

    def controls(self) -> dict[str, CardControl]:
        return {}

    def alive(self, tenant_id: str) -> bool:
        return False

    def keep_trace(self, wanted: bool) -> None: ...

    def records(self) -> dict[str, list[Record]]:
        return {}


class _Health:
    def __init__(self) -> None:
        self.cards = (Card(0, 16384, "GPU-a", "A30", healthy=False),)
        self.why = {"GPU-a": "Xid 79"}
        self.xids = {"GPU-a": 79}

    def start(self) -> None: ...
    def stop(self) -> None: ...


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    for folder in ("t", "a", "cdi"):
        (tmp_path / folder).mkdir()
    store = PodStore(tmp_path / "state.db")
    libraries = Libraries((), {}, lambda uuids: Edits({}))
    settings: dict[str, Any] = {"cdi_folder": tmp_path / "cdi", "kubelet": tmp_path, "simulated": "1x16GiB"}
    yield Agent(
        Server("https://127.0.0.1:1"),
        Settings("n1", tmp_path / "t", tmp_path / "a", **settings),
        Parts(store, _Arbiter(), _Health(), libraries),
    )
    store.close()


def test_agent_about_names_its_paths(agent: Agent, tmp_path: Path) -> None:
    about = agent.about
    assert (about.node, about.home, about.kubelet) == ("n1", str(tmp_path), str(tmp_path))
    assert (about.database, about.simulated) == (str(tmp_path / "state.db"), "1x16GiB")


def test_agent_with_unknown_node_name_is_not_ready(agent: Agent) -> None:
    agent.nodes.synced.set()
    agent.reporter.listed(0)
    assert agent.ready() == "Node n1 does not exist: set --nodename to its name"


def test_agent_status_can_be_shown_and_scraped_at_any_time(agent: Agent) -> None:
    status = agent.status()
    assert msgspec.json.decode(msgspec.json.encode(status), type=Status) == status
    assert status.agent
    assert status.agent.waits_for == "the Node and its Pods have not been read from the API server yet"
    assert "OUT: Xid 79" in view(status)
    assert b"aliquot_agent_ready 0.0" in agent_exposition(status, agent.calls, agent.delay.families())
