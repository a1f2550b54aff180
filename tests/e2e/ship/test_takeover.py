"""A cluster that runs gpushare, with live Pods, is taken over: nothing is drained, nothing restarts; and given back.

gpushare is a stand-in (testbed/others/gpushare.py); kubelets, containerds, kube-scheduler and the API server are real.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from testbed import objects
from testbed.judges import bookings, holdings
from testbed.judges.inside import allocatable, end_container, wait_restarted, wait_running
from testbed.others import gpushare
from testbed.others.gpushare import MEM, Peer
from testbed.plane import ControlPlane
from testbed.processes import wait_until
from testbed.programs.doctor import Doctor
from testbed.programs.fleet import GPUSHARE, Fleet
from testbed.programs.wired import Wired
from testbed.realnodes.nodes import RealNode, probe, remove_pods, standing
from testbed.registries.images import Registry

SIZES = (3, 5, 4, 6, 2)  # GiB; some Pods are alike, as in every cluster
LIVE = 20
GIB = 1 << 30


@pytest.fixture(scope="module")
def plane(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("takeover-plane")) as control_plane:
        yield control_plane


@pytest.fixture(scope="module")
def nodes(
    plane: ControlPlane, registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sequence[RealNode]]:
    found = [RealNode(plane, name, tmp_path_factory.mktemp(name), registry, labels=GPUSHARE) for name in ("n1", "n2")]
    with standing(found):
        yield found
        remove_pods(plane, found)


@pytest.fixture(scope="module")
def peer(plane: ControlPlane, nodes: Sequence[RealNode], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """gpushare with twenty live Pods, half of them placed by an extender that knew the old annotations only."""
    running = Peer(plane, nodes, tmp_path_factory.mktemp("gpushare"), form="old")
    names = [f"live-{n}" for n in range(LIVE)]
    try:
        for at, name in enumerate(names):
            if at == LIVE // 2:
                running.change_form("both")
            words = ["alloc", "1GiB", "idle"] if at % 4 == 0 else ["idle"]
            objects.create(plane, probe(name, *words, limits={MEM: SIZES[at % len(SIZES)]}))
            objects.wait_bound(plane, name)
        wait_until(
            lambda: bookings.all_run(plane, names), 60, "the peer's Pods run", saw=lambda: bookings.not_running(plane)
        )
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def half_way(peer: Peer, plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Peer:
    """One more Pod, placed by our scheduler while the nodes still have the peer's plugin."""
    peer.stop_scheduling()
    wired = Wired(plane, tmp_path_factory.mktemp("half-way"))
    try:
        objects.create(plane, probe("half-way", "idle", limits={MEM: 7}))
        wait_until(lambda: bookings.all_run(plane, ["half-way"]), 30, "the peer's plugin starts our Pod")
    finally:
        wired.stop()
    peer.start_scheduling()
    return peer


@pytest.fixture(scope="module")
def before(half_way: Peer, plane: ControlPlane, nodes: Sequence[RealNode]) -> dict[str, Any]:
    """How the cluster stood under the peer."""
    peer = half_way
    return {
        "inspect": bookings.booked(peer.inspect()),
        "table": bookings.table(plane),
        "processes": {node.name: bookings.processes(node) for node in nodes},
    }


@pytest.fixture(scope="module")
def fleet(
    before: dict[str, Any],
    peer: Peer,
    plane: ControlPlane,
    nodes: Sequence[RealNode],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Fleet]:
    """The peer's two programs ended, ours started in their place. Nothing is drained."""
    peer.stop()
    running = Fleet(plane, nodes, tmp_path_factory.mktemp("fleet"), labels=GPUSHARE)
    yield running
    running.stop()


def test_the_live_pods_run_on_as_they_were(fleet: Fleet, before: dict[str, Any]) -> None:
    names = [f"live-{n}" for n in range(LIVE)]
    assert {node.name: bookings.processes(node) for node in fleet.nodes} == before["processes"]
    assert [bookings.restarts(fleet.plane, name) for name in names] == [0] * LIVE


def test_every_card_is_booked_as_the_peer_had_booked_it(fleet: Fleet, before: dict[str, Any]) -> None:
    def ours() -> object:
        return bookings.booked(json.loads(fleet.wired.ours.get("/gpushare-scheduler/inspect")))

    wait_until(lambda: ours() == before["inspect"], 10, "the same bookings", saw=lambda: (ours(), before["inspect"]))
    # The kubelets tell the API server of devices that are well again a moment after their plugin is there.
    wait_until(
        lambda: bookings.table(fleet.plane) == before["table"],
        20,
        "the same table",
        saw=lambda: bookings.table(fleet.plane),
    )
    doubts = [pod for node in fleet.wired.status()["nodes"] for pod in node["pods"] if pod.get("doubt")]
    assert doubts == []


def test_a_pod_of_ours_that_their_plugin_started_has_the_card_we_chose(fleet: Fleet) -> None:
    node = fleet.node_of("half-way")
    assert node is not None
    report = node.report("half-way")
    assert [int(report["env"][gpushare.IDX])] == holdings.cards_of(objects.get_pod(fleet.plane, "half-way"))
    assert [report["env"][gpushare.VISIBLE]] == _uuids(report)


def test_agents_book_adopted_pods(fleet: Fleet, before: dict[str, Any]) -> None:
    for name, agent in fleet.agents.items():
        booked = {card["index"]: card["memory_booked_bytes"] // GIB for card in agent.status()["cards"]}
        assert booked == before["inspect"][name]


def test_what_the_nodes_offer_stays_what_it_was(fleet: Fleet) -> None:
    for node in fleet.nodes:
        assert allocatable(node, MEM) == 64


def test_adopted_pods_are_known_but_not_enforced(fleet: Fleet) -> None:
    def messages() -> list[str]:
        return [text for reason, text in objects.events_of(fleet.plane, "live-0") if reason == "GPUNotHeld"]

    (text,) = wait_until(messages, 15, "the Pod's owner is told")
    assert "another device plugin" in text
    for agent in fleet.agents.values():
        assert agent.status()["findings"] == []
    assert _events(fleet.plane, "GPUFinding") == []


def test_the_doctor_finds_nothing_wrong(fleet: Fleet) -> None:
    for node in fleet.nodes:
        Doctor(node, "--node").quiet()


def test_new_pods_fit_only_into_what_is_left(fleet: Fleet) -> None:
    left = {
        (node["name"], card["id"]): card["totalGPU"] - card["usedGPU"]
        for node in json.loads(fleet.wired.ours.get("/gpushare-scheduler/inspect"))["nodes"]
        for card in node["devs"]
    }
    fits, too_large = max(left.values()), max(left.values()) + 1
    objects.create(fleet.plane, probe("new", limits={MEM: fits}), probe("too-large", limits={MEM: too_large}))
    wait_running(fleet, ["new"])
    assert fleet.report("new")["shim_loaded"]
    fleet.wired.waits("too-large")
    assert bookings.overbooked(fleet.plane) == []
    assert fleet.overbooked() == []


def test_a_container_of_theirs_that_restarts_starts_on_its_card_as_before(fleet: Fleet) -> None:
    name = "live-1"
    node = fleet.node_of(name)
    assert node is not None
    first = node.report(name)
    end_container(node, name)
    wait_restarted(fleet, name, 0)
    again = wait_until(lambda: [line for line in node.lines(name) if line["start"] == 1], 20, "its second report")[-1]
    assert again["env"] == first["env"]
    assert _uuids(again) == _uuids(first)
    assert not again["shim_loaded"]
    assert not [text for reason, text in objects.events_of(fleet.plane, name) if reason == "GPURefused"]


def test_a_pod_of_theirs_that_is_deleted_frees_its_card(fleet: Fleet) -> None:
    name = "live-2"
    node = fleet.node_of(name)
    assert node is not None
    size, before = 4, _used(fleet)
    fleet.plane.kubectl("delete", "pod", name, "--grace-period=1")
    wait_until(lambda: sum(_used(fleet).values()) == sum(before.values()) - size, 20, "its memory is free")
    agent = fleet.agents[node.name]
    gone = f"default/{name}"
    wait_until(lambda: gone not in [tenant["name"] for tenant in agent.status()["tenants"]], 20, "the agent let it go")


def test_killed_agent_finds_adopted_pods_again(fleet: Fleet) -> None:
    agent = fleet.agents["n1"]
    before = [(card["index"], card["memory_booked_bytes"]) for card in agent.status()["cards"]]
    agent.restart(kill=True)
    assert [(card["index"], card["memory_booked_bytes"]) for card in agent.status()["cards"]] == before
    assert agent.status()["findings"] == []


def test_given_back_node_by_node_the_peer_counts_our_pods_and_nothing_is_paused_or_ended(
    fleet: Fleet, peer: Peer, plane: ControlPlane, nodes: Sequence[RealNode]
) -> None:
    processes, booked = {node.name: bookings.processes(node) for node in nodes}, _used(fleet)
    plane.kubectl("delete", "pod", "too-large", "--grace-period=0", "--force")
    first, second = nodes
    fleet.wired.stop()
    fleet.agents[first.name].stop()
    back = Peer(plane, [first], peer.folder)
    try:
        assert {node.name: bookings.processes(node) for node in nodes} == processes
        assert bookings.by_card(back.inspect()) == booked
        _placed_by_the_peer_where_our_agent_is(plane, second)
        fleet.agents[second.name].stop()
        back.start_plugin(second)
        wait_until(lambda: {allocatable(node, MEM) for node in nodes} == {64}, 20, "the peer offers both nodes")
        _restart_under_the_peer(plane, nodes)
        left = max(16 - used for used in bookings.by_card(back.inspect()).values())
        objects.create(plane, probe("after", "idle", limits={MEM: left}))
        wait_until(
            lambda: bookings.all_run(plane, ["after"]), 30, "a new Pod runs", saw=lambda: bookings.not_running(plane)
        )
        assert bookings.overbooked(plane) == []
    finally:
        back.stop()


def _placed_by_the_peer_where_our_agent_is(plane: ControlPlane, node: RealNode) -> None:
    """In flight at the switch: their extender's annotation, our plugin's answer. It is ours, and held."""
    here = {"kubernetes.io/hostname": node.name}
    objects.create(plane, probe("between", "idle", limits={MEM: 1}, nodeSelector=here))
    report = node.report("between")
    assert report["shim_loaded"]

    def annotations() -> dict[str, str]:
        found: dict[str, str] = objects.get_pod(plane, "between")["metadata"]["annotations"]
        return found

    assert gpushare.IDX in annotations()
    wait_until(lambda: holdings.GRANT in annotations(), 10, "it carries our annotation too", saw=annotations)


def _restart_under_the_peer(plane: ControlPlane, nodes: Sequence[RealNode]) -> None:
    """A container of ours: the kubelet kept our answer, which names a CDI spec that must still be there."""
    name = "new"
    where = objects.get_pod(plane, name)["spec"]["nodeName"]
    node = next(node for node in nodes if node.name == where)
    end_container(node, name)
    again = wait_until(lambda: [line for line in node.lines(name) if line["start"] == 1], 30, f"{name} starts again")
    assert again[-1]["shim_loaded"]
    assert again[-1]["cuda"]["cards"]


# --- what is looked at -----------------------------------------------------------------------------------------------


def _uuids(report: dict[str, Any]) -> list[str]:
    return [card["uuid"] for card in report["cuda"]["cards"]]


def _used(fleet: Fleet) -> dict[tuple[str, int], int]:
    return bookings.by_card(json.loads(fleet.wired.ours.get("/gpushare-scheduler/inspect")))


def _events(plane: ControlPlane, reason: str) -> list[str]:
    params = {"fieldSelector": f"reason={reason}"}
    return [item["message"] for item in plane.api("GET", "/api/v1/events", params=params)["items"]]
