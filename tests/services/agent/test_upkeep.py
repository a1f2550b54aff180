"""What an agent offers to the kubelet and tells from second to second, whatever goes wrong beside it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pytest
from msgspec import structs

from aliquot.adapters.storage.podstore import PodStore, StoreError
from aliquot.dialects import Rules
from aliquot.dialects.native import INVENTORY
from aliquot.dialects.qgpu import POLICY_LABEL
from aliquot.dialects.wire import advertising
from aliquot.dialects.wire.objects import NodeObject
from aliquot.model.node import Isolation
from aliquot.model.residency import Arrival, ParkReason, Where
from aliquot.model.tenant import Finding, FindingKind, Level, SharingRules, Standing, State
from kit.agents.agentnode import AgentNode, play
from kit.agents.grantedpods import NODE, a_qgpu_pod
from kit.values.manifests import QGPU, QGPU_CORE, QGPU_MEMORY

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"


def offered(agent_node: AgentNode) -> dict[str, dict[str, bool]]:
    """By resource: each device, and whether it may be given away."""
    play(agent_node.agent.upkeep.advertise())
    return {
        resource: {token.id: token.healthy for token in tokens}
        for resource, tokens in agent_node.agent.advertiser.offered.items()
    }


def falls_sick(agent_node: AgentNode, card: int) -> None:
    cards = tuple(structs.replace(known, healthy=known.index != card) for known in agent_node.health.cards)
    agent_node.health.cards, agent_node.health.why = cards, {f"GPU-{card}": "Xid 79"}


def one_round(agent_node: AgentNode) -> None:
    """The agent looks around once, and rests."""
    agent_node.agent.restored.set()

    async def act() -> None:
        upkeep = asyncio.create_task(agent_node.agent._keep_up())
        for _ in range(100):  # nothing here takes time; the next round is a second later
            await asyncio.sleep(0)
        assert not upkeep.done()
        upkeep.cancel()
        await asyncio.gather(upkeep, return_exceptions=True)

    play(act())


def test_advertises_a_device_per_unit_of_enabled_resources(agent_node: AgentNode) -> None:
    found = offered(agent_node)
    assert {resource: len(devices) for resource, devices in found.items()} == {QGPU_CORE: 200, QGPU_MEMORY: 32}


def test_advertises_nothing_without_labels(agent_node: AgentNode) -> None:
    agent_node.agent.reporter.changed(msgspec.convert({"metadata": {"name": NODE}}, NodeObject))
    assert offered(agent_node) == {}


def of_nvidia_gpu(agent_node: AgentNode, label: str, capacity: str, allocatable: str) -> int:
    """How many devices of nvidia.com/gpu are offered on a node with that label and status."""
    agent_node.agent.settings = replace(agent_node.agent.settings, rules=Rules(served=frozenset({"qgpu", "hami"})))
    status = {"capacity": {GPU: capacity}, "allocatable": {GPU: allocatable}}
    metadata = {"name": NODE, "labels": {**QGPU, "aliquot.dev/serve-nvidia-gpu": label}}
    agent_node.agent.reporter.changed(msgspec.convert({"metadata": metadata, "status": status}, NodeObject))
    found = offered(agent_node)
    assert found.keys() - {GPU, SHARED} == {QGPU_CORE, QGPU_MEMORY}
    assert len(found.get(SHARED, {})) == len(found.get(GPU, {}))
    return len(found.get(GPU, {}))


def test_nvidia_gpu_is_advertised_only_by_label_and_never_beside_another_plugin(agent_node: AgentNode) -> None:
    assert of_nvidia_gpu(agent_node, "false", "0", "0") == 0
    assert of_nvidia_gpu(agent_node, "true", "2", "2") == 0  # NVIDIA's plugin serves it
    assert of_nvidia_gpu(agent_node, "true", "2", "0") == 0  # the kubelet has restarted, and that plugin comes back
    agent_node.agent.advertiser._nvidia_gpu_free_at = 0.0
    assert of_nvidia_gpu(agent_node, "true", "0", "0") == 200
    assert of_nvidia_gpu(agent_node, "true", "200", "200") == 200  # our own
    assert of_nvidia_gpu(agent_node, "true", "2", "2") == 0  # NVIDIA's plugin registered after us
    agent_node.agent.advertiser._nvidia_gpu_free_at = 0.0
    assert of_nvidia_gpu(agent_node, "true", "2", "0") == 200


def test_too_many_devices_are_not_advertised_and_the_agent_is_not_ready(
    agent_node: AgentNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advertising, "MOST_DEVICES", 20)
    labels = {"gpushare": "true"}
    agent_node.agent.reporter.changed(msgspec.convert({"metadata": {"name": NODE, "labels": labels}}, NodeObject))
    agent_node.agent.pods.synced.set()
    agent_node.agent.restored.set()
    assert offered(agent_node) == {}
    assert "no resource can be advertised: " in str(agent_node.agent.ready())
    assert "32 is not allowed: no more than 20 devices" in str(agent_node.agent.ready())


def test_devices_are_not_rebuilt_while_nothing_changes(agent_node: AgentNode) -> None:
    offered(agent_node)
    before = agent_node.agent.advertiser.offered
    offered(agent_node)
    assert agent_node.agent.advertiser.offered is before


def test_unhealthy_card_makes_its_free_devices_unhealthy(agent_node: AgentNode) -> None:
    agent_node.run(pod := a_qgpu_pod(card=1, core=20, gib=4))
    falls_sick(agent_node, 1)
    for resource, amount in ((QGPU_CORE, 80), (QGPU_MEMORY, 12)):
        out = {device for device, healthy in offered(agent_node)[resource].items() if not healthy}
        assert len(out) == amount
        assert not out & agent_node.kubelet.held[pod["metadata"]["uid"]]["main", resource]


def test_device_ids_of_two_resources_are_distinct(agent_node: AgentNode) -> None:
    """Every resource has devices of the same names: the memory of the first is called as the core of the second."""
    agent_node.run(a_qgpu_pod("no-core", card=0, core=0, gib=4))
    agent_node.run(a_qgpu_pod("both", card=1, core=20, gib=4))
    falls_sick(agent_node, 1)
    found = {resource: list(devices.values()).count(False) for resource, devices in offered(agent_node).items()}
    assert found == {QGPU_CORE: 80, QGPU_MEMORY: 12}


def test_unhealthy_card_is_advertised_without_device_holders(agent_node: AgentNode) -> None:
    agent_node.kubelet.unreachable = True
    falls_sick(agent_node, 1)
    assert list(offered(agent_node)[QGPU_MEMORY].values()).count(False) == 16


def test_policy_label_applies_at_once_and_a_bad_one_changes_nothing(
    agent_node: AgentNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent_node.run(a_qgpu_pod())
    received: list[SharingRules] = []
    monkeypatch.setattr(agent_node.arbiter, "configure", received.append)
    for label in ({POLICY_LABEL: "fixed-share"}, {POLICY_LABEL: "fixed"}, {POLICY_LABEL: "bs"}, {}):
        node = {"metadata": {"name": NODE, "labels": {**QGPU, **label}}}
        agent_node.agent.reporter.changed(msgspec.convert(node, NodeObject))
    assert [policy.isolation for policy in received] == [
        Isolation.FIXED_SHARE,
        Isolation.BURST_SHARE,
        Isolation.BEST_EFFORT,
    ]
    assert len({policy.release_delay for policy in received}) == 1


def test_upkeep_continues_when_the_database_cannot_be_written(
    agent_node: AgentNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise StoreError("database or disk is full")

    monkeypatch.setattr(PodStore, "set_cards", full)
    for _ in range(3):
        agent_node.agent.upkeep.persist_cards()
    assert caplog.text.count("cards_not_persisted") == 1


@pytest.mark.parametrize(
    ("runtime", "kubelet", "by_cdi"),
    [
        ("containerd://2.1.0", "v1.31.2", True),
        ("containerd://1.7.20", "v1.31.2", False),
        ("containerd://2.1.0", "v1.28.0", False),  # drops the names that device plugins answer
        ("containerd://2.1.0", "", False),
    ],
)
def test_cdi_is_used_when_runtime_and_kubelet_support_it(
    agent_node: AgentNode, runtime: str, kubelet: str, by_cdi: bool
) -> None:
    agent_node.cdi = None
    agent_node.store.close()
    agent_node.start()
    info = {"containerRuntimeVersion": runtime, "kubeletVersion": kubelet}
    node = {"metadata": {"name": NODE, "labels": QGPU}, "status": {"nodeInfo": info}}
    agent_node.agent.reporter.changed(msgspec.convert(node, NodeObject))
    assert bool(agent_node.allocator.allocate(QGPU_CORE, frozenset({"GPU-0-_-1"})).cdi) == by_cdi


def test_upkeep_reports_memory_limits(agent_node: AgentNode, monkeypatch: pytest.MonkeyPatch) -> None:
    agent_node.run(pod := a_qgpu_pod("greedy"))
    uid = pod["metadata"]["uid"]
    refused = Standing(uid, "GPU-0", State.IDLE, Level.HARDWARE, 0.0, 0, 5 << 30, (), 0, 0.0, 7)
    monkeypatch.setattr(agent_node.arbiter, "standings", lambda: [refused])
    one_round(agent_node)
    text = "allocations were refused past its limit of 5 GiB on card 0 (GPU-0): 7 so far"
    assert ("greedy", "GPUMemoryLimit", text) in agent_node.emitted


def test_upkeep_reports_memory_that_left_its_card(agent_node: AgentNode) -> None:
    agent_node.run(pod := a_qgpu_pod("sleeper"))
    uid = pod["metadata"]["uid"]
    agent_node.arbiter.arrivals.append(Arrival(uid, "GPU-0", Where.PARKED, 5 << 30, 0.2, ParkReason.ROOM))
    one_round(agent_node)
    text = "5 GiB of its memory left card 0 (GPU-0) for the host pool in 200ms: work that goes first needed the room"
    assert ("sleeper", "GPUMemoryParked", text) in agent_node.emitted
    assert not agent_node.arbiter.arrivals


def test_upkeep_reports_findings(agent_node: AgentNode, monkeypatch: pytest.MonkeyPatch) -> None:
    agent_node.run(pod := a_qgpu_pod("escapes"))
    uid = pod["metadata"]["uid"]
    nobodys = Finding("GPU-0", 7, FindingKind.STRANGER, "belongs to no Pod")
    its = Finding("GPU-0", 8, FindingKind.UNREGISTERED, "has not registered", uid)
    monkeypatch.setattr(agent_node.arbiter, "findings", lambda: [nobodys, its])
    one_round(agent_node)
    assert (NODE, "GPUFinding", "card GPU-0: process 7 belongs to no Pod") in agent_node.emitted
    assert ("escapes", "GPUFinding", "card GPU-0: process 8 has not registered") in agent_node.emitted


def test_upkeep_spares_pods_that_another_plugin_admitted(
    agent_node: AgentNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent_node.run(pod := a_qgpu_pod("foreign"))
    uid = pod["metadata"]["uid"]
    monkeypatch.setattr(agent_node.agent.foreign_pods, "_uids", {uid})
    assert agent_node.arbiter.spared is None
    one_round(agent_node)
    assert agent_node.arbiter.spared == {uid}


def test_upkeep_reports_and_publishes_an_unhealthy_card(agent_node: AgentNode) -> None:
    agent_node.run(a_qgpu_pod("has-it", card=1))
    agent_node.run(a_qgpu_pod("has-another", card=0))
    falls_sick(agent_node, 1)
    one_round(agent_node)
    received = {name for name, reason, text in agent_node.emitted if reason == "GPUUnhealthy" and "Xid 79" in text}
    assert received == {NODE, "has-it"}
    assert parse_inventory(agent_node.agent.reporter._inventory) == {0: True, 1: False}
    assert len(agent_node.tenants.tenancies) == 2  # who has it stays accounted


def parse_inventory(annotations: Mapping[str, str]) -> dict[int, bool]:
    """Which cards are well."""
    return {card["index"]: card.get("healthy", True) for card in json.loads(annotations[INVENTORY])["cards"]}


def test_upkeep_releases_ended_pods(agent_node: AgentNode) -> None:
    agent_node.run(pod := a_qgpu_pod())
    agent_node.deleted(pod, quietly=True)
    agent_node.watch()
    one_round(agent_node)
    assert agent_node.remains()["database"] == agent_node.remains()["folders"] == agent_node.remains()["specs"] == set()


@pytest.mark.parametrize("steps", range(4))
def test_upkeep_ends_when_cancelled_while_it_wakes(agent_node: AgentNode, steps: int) -> None:
    """`asyncio.wait_for` goes on then, and an agent that is ended looks around for ever."""
    agent_node.agent.restored.set()

    async def act() -> None:
        upkeep = asyncio.create_task(agent_node.agent._keep_up())
        await asyncio.sleep(0.05)
        agent_node.agent.wake()
        for _ in range(steps):
            await asyncio.sleep(0)
        upkeep.cancel()
        done, _ = await asyncio.wait([upkeep], timeout=0.5)
        upkeep.cancel()
        await asyncio.wait([upkeep])
        assert done

    play(act())
