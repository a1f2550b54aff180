"""HAMi's and KAI's manifests on a real kubelet: nvidia.com/gpu is ours on nodes with our label, never beside another
plugin."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from testbed import objects
from testbed.judges import holdings
from testbed.judges.inside import wait_running
from testbed.others.otherplugin import GPU, start_other_plugin
from testbed.plane import ControlPlane
from testbed.processes import wait_until
from testbed.programs.fleet import HAMI, KAI, Fleet
from testbed.realnodes.nodes import RealNode, probe, remove_pods, standing
from testbed.registries.images import Registry

MEM, CORES, PERCENT = "nvidia.com/gpumem", "nvidia.com/gpucores", "nvidia.com/gpumem-percentage"
SHARED = "nvidia.com/gpu.shared"
MIB = 1 << 20
PATIENCE = 90.0


@pytest.fixture(scope="module")
def fleet(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One node with four cards of 16 GiB that serves the dialects of HAMi and KAI."""
    with ControlPlane(tmp_path_factory.mktemp("hami-plane")) as plane:
        node = RealNode(plane, "n1", tmp_path_factory.mktemp("n1"), registry)
        with standing([node]):
            fleet = Fleet(
                plane, [node], tmp_path_factory.mktemp("fleet"), labels={**HAMI, **KAI}, dialect="all+hami+kai"
            )
            yield fleet
            remove_pods(plane, [node])
            fleet.stop()


def capacity(fleet: Fleet) -> str:
    return str(objects.get_node(fleet.plane, "n1")["status"]["capacity"].get(GPU, "0"))


def test_pods_of_hami_get_their_part_of_as_many_cards(fleet: Fleet) -> None:
    wait_until(lambda: capacity(fleet) == "400", PATIENCE, "the node advertises our devices")
    fleet.create(
        probe("default-use", limits={GPU: 1, MEM: 3000, CORES: 30}),
        probe("memory-fraction", limits={GPU: 2, PERCENT: 50, CORES: 30}),
        probe("as-normal", limits={GPU: 1}),
    )
    report = fleet.report("default-use")
    (card,) = report["cuda"]["cards"]
    assert report["env"]["NVIDIA_VISIBLE_DEVICES"] == card["uuid"]
    assert card["total"] == card["total_mem"] == 3000 * MIB
    halves = fleet.report("memory-fraction")["cuda"]["cards"]
    assert len({half["uuid"] for half in halves}) == 2
    assert [half["total"] for half in halves] == [8192 * MIB] * 2
    (whole,) = fleet.report("as-normal")["cuda"]["cards"]
    assert whole["total"] == 16384 * MIB
    assert whole["uuid"] not in {card["uuid"], *(half["uuid"] for half in halves)}
    fleet.create(probe("shared", limits={SHARED: 1}))
    (quarter,) = fleet.report("shared")["cuda"]["cards"]
    assert quarter["total"] == 4096 * MIB
    assert quarter["uuid"] != whole["uuid"]
    assert fleet.overbooked() == []
    remove_pods(fleet.plane, fleet.nodes)


def half(name: str) -> dict[str, Any]:
    """As the webhook leaves it (tests/e2e/test_webhook.py)."""
    pod = probe(name, limits={"aliquot.dev/card-place": 1})
    pod["metadata"]["annotations"] = {"gpu-fraction": "0.5"}
    pod["spec"]["schedulerName"] = "kai-scheduler"
    return pod


def test_halves_of_kai_created_at_once_fill_the_cards_and_overbook_none(fleet: Fleet) -> None:
    names = [f"half-{at}" for at in range(8)]
    fleet.create(*map(half, names))
    for name in names:
        (card,) = fleet.report(name)["cuda"]["cards"]
        assert card["total"] == 8192 * MIB
    assert sorted(holdings.cards_of(objects.get_pod(fleet.plane, name)) for name in names) == [
        [at] for at in range(4) for _ in range(2)
    ]
    fleet.create(half("ninth"))
    fleet.wired.await_event("ninth", "FailedScheduling", "(aliquot:memory)", seconds=PATIENCE)
    assert fleet.overbooked() == []
    remove_pods(fleet.plane, fleet.nodes)


def test_node_on_which_another_plugin_serves_nvidia_gpu_is_not_taken_over(fleet: Fleet) -> None:
    node = fleet.nodes[0]
    fleet.wired.label_node("n1", {**dict.fromkeys(HAMI, "false")})
    wait_until(lambda: capacity(fleet) == "0", PATIENCE, "our devices are withdrawn")
    program = start_other_plugin(node, ["GPU-theirs-0", "GPU-theirs-1"])
    try:
        wait_until(lambda: capacity(fleet) == "2", PATIENCE, "the other plugin advertises", saw=program.tail)
        fleet.wired.label_node("n1", HAMI)
        fleet.create(probe("ours", limits={GPU: 1, MEM: 3000}))
        fleet.wired.await_event("ours", "FailedScheduling", "(aliquot:other-plugin)", seconds=PATIENCE)
        assert capacity(fleet) == "2"
    finally:
        program.stop()
    wait_running(fleet, ["ours"], 400)  # the kubelet forgets the other plugin, and the agent registers by itself
    assert capacity(fleet) == "400"
    assert holdings.cards_of(objects.get_pod(fleet.plane, "ours")) == [0]


def test_pods_that_hami_placed_keep_their_cards_when_aliquot_takes_over(fleet: Fleet) -> None:
    """HAMi is its stand-in here: a plugin with its device IDs, and a Pod bound with its annotation."""
    remove_pods(fleet.plane, fleet.nodes)
    node, agent = fleet.nodes[0], fleet.agents["n1"]
    inventory = objects.get_node(fleet.plane, "n1")["metadata"]["annotations"][holdings.INVENTORY]
    uuids = [card["uuid"] for card in json.loads(inventory)["cards"]]
    fleet.wired.label_node("n1", dict.fromkeys(HAMI, "false"))
    wait_until(lambda: capacity(fleet) == "0", PATIENCE, "our devices are withdrawn")
    program = start_other_plugin(node, [f"{uuid}-{part}" for uuid in uuids for part in range(10)])
    try:
        wait_until(lambda: capacity(fleet) == "40", PATIENCE, "HAMi's stand-in advertises", saw=program.tail)
        theirs = probe("theirs", "idle", limits={GPU: 1, MEM: 12000}, node="n1")
        theirs["metadata"]["annotations"] = {"hami.io/vgpu-devices-allocated": f"{uuids[2]},NVIDIA,12000,0:;"}
        fleet.create(theirs)
        wait_running(fleet, ["theirs"], PATIENCE)
    finally:
        program.stop()
    fleet.wired.label_node("n1", HAMI)
    wait_until(lambda: capacity(fleet) == "400", PATIENCE, "our agent serves the node")
    wait_until(
        lambda: [tenant["name"] for tenant in agent.status()["tenants"]] == ["default/theirs"],
        PATIENCE,
        "the agent counts the Pod",
        saw=agent.status,
    )
    names = [f"whole-{at}" for at in range(4)]
    fleet.create(*(probe(name, limits={GPU: 1}) for name in names), probe("beside", limits={GPU: 1, MEM: 4000}))
    wait_running(fleet, ["beside"], PATIENCE)
    assert holdings.cards_of(objects.get_pod(fleet.plane, "beside")) == [2]  # only 4,384 MiB are left there

    def bound() -> list[str]:
        return [name for name in names if fleet.node_of(name)]

    wait_until(lambda: len(bound()) == 3, PATIENCE, "three Pods have the three free cards", saw=bound)
    cards = [holdings.cards_of(objects.get_pod(fleet.plane, name)) for name in bound()]
    assert sorted(cards) == [[0], [1], [3]]
    status = objects.get_pod(fleet.plane, "theirs")["status"]
    assert (status["phase"], status["containerStatuses"][0]["restartCount"]) == ("Running", 0)
