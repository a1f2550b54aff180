"""More memory booked than a card has: an offline Pod is parked when an online Pod needs the room."""

from __future__ import annotations

from typing import Any

from testbed.cards import MEM, QMEM
from testbed.objects import get_node
from testbed.processes import wait_until
from testbed.programs.fleet import GPUSHARE, MIXED, OVERSUBSCRIBE, Fleet
from testbed.realnodes.nodes import probe

GREEDY = "tke.cloud.tencent.com/qgpu-core-greedy"
CLASS = "tke.cloud.tencent.com/app-class"
HERE = {"kubernetes.io/hostname": "n1"}
GIB = 1 << 30


def _offered(fleet: Fleet) -> int:
    return int(get_node(fleet.plane, "n1")["status"]["allocatable"].get(QMEM, "0"))


def _residency(fleet: Fleet) -> dict[str, Any]:
    """Of each Pod whose memory may leave the card."""
    tenants = fleet.agents["n1"].status()["tenants"]
    return {tenant["pod"]: card["residency"] for tenant in tenants for card in tenant["cards"] if card.get("residency")}


def test_online_pod_gets_the_room_of_an_offline_pod_on_a_card_booked_beyond_its_memory(fleet: Fleet) -> None:
    """22 GiB booked and 18 GiB used on a card of 16 GiB; the other cards are full."""
    agent = fleet.agents["n1"]
    fleet.label("n1", {**MIXED, **GPUSHARE, OVERSUBSCRIBE: "1.5"})
    with agent.instead([*agent.command, "--host-pool=32GiB"]):
        wait_until(lambda: _offered(fleet) == 4 * 24, 60, "the kubelet offers it", saw=lambda: _offered(fleet))
        full = [f"full-{number}" for number in range(3)]
        fleet.create(*(probe(name, limits={MEM: 16}, nodeSelector=HERE) for name in full))
        fleet.wired.bound(*full)
        for name, booked, used in (("first", 8, "7GiB"), ("second", 8, "6GiB")):
            limits = {GREEDY: 20, QMEM: booked}
            fleet.create(
                probe(name, "alloc", used, "idle", limits=limits, annotations={CLASS: "offline"}, nodeSelector=HERE)
            )
            assert fleet.line(name, "alloc")["result"] == 0
        online = {CLASS: "online"}
        fleet.create(probe("online", "alloc", "5GiB", "idle", limits={QMEM: 6}, annotations=online, nodeSelector=HERE))
        assert fleet.line("online", "alloc")["result"] == 0
        found = _residency(fleet)
        parked = {name: shown for name, shown in found.items() if shown["parked_bytes"]}
        assert (set(found), len(parked)) == ({"first", "second"}, 1), found
        assert [shown["why"] for shown in parked.values()] == ["room"]
        assert 0 < agent.status()["pool"]["used_bytes"] <= 8 * GIB  # it may still be on its way
        fleet.tidy()  # while its agent has the pool
