"""What an agent offers to the kubelet and tells from second to second, whatever goes wrong beside it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pytest

from aliquot.adapters.storage.podstore import PodStore, StoreError
from aliquot.dialects import MemoryUnit, Rules
from aliquot.dialects.native import INVENTORY
from aliquot.dialects.qgpu import POLICY_LABEL
from aliquot.dialects.wire.objects import NodeObject
from aliquot.model.node import Isolation
from aliquot.model.tenant import Finding, FindingKind, Level, SharingRules, Standing, State
from kit.agentnode import NODE, House, a_qgpu_pod, play
from kit.manifests import QGPU, QGPU_CORE, QGPU_MEMORY


def offered(house: House) -> dict[str, dict[str, bool]]:
    """By resource: each device, and whether it may be given away."""
    play(house.agent._advertise())
    return {
        resource: {token.id: token.healthy for token in tokens} for resource, tokens in house.agent._offered.items()
    }


def falls_sick(house: House, card: int) -> None:
    cards = tuple(replace(each, healthy=each.index != card) for each in house.health.cards)
    house.health.cards, house.health.why = cards, {f"GPU-{card}": "Xid 79"}


def one_round(house: House) -> None:
    """The agent looks around once, and rests."""
    house.agent.restored.set()

    async def act() -> None:
        upkeep = asyncio.create_task(house.agent._upkeep())
        for _ in range(100):  # nothing here takes time; the next round is a second later
            await asyncio.sleep(0)
        assert not upkeep.done()
        upkeep.cancel()
        await asyncio.gather(upkeep, return_exceptions=True)

    play(act())


def test_the_resources_that_its_labels_ask_for_a_device_for_each_unit(house: House) -> None:
    found = offered(house)
    assert {resource: len(devices) for resource, devices in found.items()} == {QGPU_CORE: 200, QGPU_MEMORY: 32}


def test_without_labels_nothing(house: House) -> None:
    house.agent.reporter.changed(msgspec.convert({"metadata": {"name": NODE}}, NodeObject))
    assert offered(house) == {}


def test_more_than_a_kubelet_bears_is_not_offered_and_it_is_not_ready_and_says_why(house: House) -> None:
    house.agent.settings = replace(house.agent.settings, rules=Rules(gpushare_unit=MemoryUnit.MIB))
    labels = {"gpushare": "true"}
    house.agent.reporter.changed(msgspec.convert({"metadata": {"name": NODE, "labels": labels}}, NodeObject))
    house.agent.pods.synced.set()
    house.agent.restored.set()
    assert offered(house) == {}
    assert "no resource can be advertised: " in str(house.agent.ready())
    assert "--memory-unit GiB" in str(house.agent.ready())


def test_the_devices_are_not_made_anew_while_nothing_changes(house: House) -> None:
    offered(house)
    before = house.agent._offered
    offered(house)
    assert house.agent._offered is before


def test_a_sick_card_takes_as_many_free_devices_out_as_nobody_holds_of_it(house: House) -> None:
    house.run(pod := a_qgpu_pod(card=1, core=20, gib=4))
    falls_sick(house, 1)
    for resource, amount in ((QGPU_CORE, 80), (QGPU_MEMORY, 12)):
        out = {each for each, healthy in offered(house)[resource].items() if not healthy}
        assert len(out) == amount
        assert not out & house.kubelet.held[pod["metadata"]["uid"]]["main", resource]


def test_who_holds_a_device_of_one_resource_does_not_hold_the_other_of_that_name(house: House) -> None:
    """Every resource has devices of the same names: the memory of the first is called as the core of the second."""
    house.run(a_qgpu_pod("no-core", card=0, core=0, gib=4))
    house.run(a_qgpu_pod("both", card=1, core=20, gib=4))
    falls_sick(house, 1)
    found = {resource: list(devices.values()).count(False) for resource, devices in offered(house).items()}
    assert found == {QGPU_CORE: 80, QGPU_MEMORY: 12}


def test_a_kubelet_that_does_not_tell_who_holds_what_does_not_hide_a_sick_card(house: House) -> None:
    house.kubelet.deaf = True
    falls_sick(house, 1)
    assert list(offered(house)[QGPU_MEMORY].values()).count(False) == 16


def test_another_policy_on_the_nodes_label_holds_for_those_who_run_and_one_that_is_none_changes_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.run(a_qgpu_pod())
    told: list[SharingRules] = []
    monkeypatch.setattr(house.arbiter, "configure", told.append)
    for label in ({POLICY_LABEL: "fixed-share"}, {POLICY_LABEL: "fixed"}, {POLICY_LABEL: "bs"}, {}):
        node = {"metadata": {"name": NODE, "labels": {**QGPU, **label}}}
        house.agent.reporter.changed(msgspec.convert(node, NodeObject))
    assert [each.isolation for each in told] == [Isolation.FIXED_SHARE, Isolation.BURST_SHARE, Isolation.BEST_EFFORT]
    assert len({each.release_delay for each in told}) == 1


def test_a_database_that_cannot_be_written_keeps_nothing_else_from_being_done(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise StoreError("database or disk is full")

    monkeypatch.setattr(PodStore, "set_cards", full)
    for _ in range(3):
        house.agent._persist_cards()
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
def test_containers_are_led_by_cdi_where_runtime_and_kubelet_both_know_it(
    house: House, runtime: str, kubelet: str, by_cdi: bool
) -> None:
    house.cdi = None
    house.store.close()
    house.start()
    info = {"containerRuntimeVersion": runtime, "kubeletVersion": kubelet}
    node = {"metadata": {"name": NODE, "labels": QGPU}, "status": {"nodeInfo": info}}
    house.agent.reporter.changed(msgspec.convert(node, NodeObject))
    assert bool(house.allocator.allocate(QGPU_CORE, frozenset({"GPU-0-_-1"})).cdi) == by_cdi


def test_a_pod_that_is_refused_memory_hears_of_it_in_an_event(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.run(pod := a_qgpu_pod("greedy"))
    uid = pod["metadata"]["uid"]
    refused = Standing(uid, "GPU-0", State.IDLE, Level.HARDWARE, 0.0, 0, 5 << 30, (), 0, 0.0, 7)
    monkeypatch.setattr(house.arbiter, "standings", lambda: [refused])
    one_round(house)
    text = "allocations were refused past its limit of 5 GiB on card 0 (GPU-0): 7 so far"
    assert ("greedy", "GPUMemoryLimit", text) in house.told


def test_what_is_nobodys_on_a_card_is_told_on_the_node_and_what_is_a_pods_on_that(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.run(pod := a_qgpu_pod("escapes"))
    uid = pod["metadata"]["uid"]
    nobodys = Finding("GPU-0", 7, FindingKind.STRANGER, "is of no Pod")
    its = Finding("GPU-0", 8, FindingKind.UNREGISTERED, "has not registered", uid)
    monkeypatch.setattr(house.arbiter, "findings", lambda: [nobodys, its])
    one_round(house)
    assert (NODE, "GPUFinding", "card GPU-0: process 7 is of no Pod") in house.told
    assert ("escapes", "GPUFinding", "card GPU-0: process 8 has not registered") in house.told


def test_a_card_that_is_out_is_told_on_the_node_and_on_its_pods_and_written_for_the_scheduler(house: House) -> None:
    house.run(a_qgpu_pod("has-it", card=1))
    house.run(a_qgpu_pod("has-another", card=0))
    falls_sick(house, 1)
    one_round(house)
    told = {name for name, reason, text in house.told if reason == "GPUUnhealthy" and "Xid 79" in text}
    assert told == {NODE, "has-it"}
    assert parse_inventory(house.agent.reporter._inventory) == {0: True, 1: False}
    assert len(house.tenants.tenancies) == 2  # who has it stays accounted


def parse_inventory(annotations: Mapping[str, str]) -> dict[int, bool]:
    """Which cards are well."""
    return {card["index"]: card.get("healthy", True) for card in json.loads(annotations[INVENTORY])["cards"]}


def test_a_pod_that_has_ended_is_let_go_of_in_the_next_round(house: House) -> None:
    house.run(pod := a_qgpu_pod())
    house.deleted(pod, quietly=True)
    house.watch()
    one_round(house)
    assert house.remains()["database"] == house.remains()["folders"] == house.remains()["specs"] == set()


@pytest.mark.parametrize("steps", range(4))
def test_one_that_is_told_to_end_as_it_wakes_ends(house: House, steps: int) -> None:
    """`asyncio.wait_for` goes on then, and an agent that is ended looks around for ever."""
    house.agent.restored.set()

    async def act() -> None:
        upkeep = asyncio.create_task(house.agent._upkeep())
        await asyncio.sleep(0.05)
        house.agent._awake.set()
        for _ in range(steps):
            await asyncio.sleep(0)
        upkeep.cancel()
        done, _ = await asyncio.wait([upkeep], timeout=0.5)
        upkeep.cancel()
        await asyncio.wait([upkeep])
        assert done

    play(act())
