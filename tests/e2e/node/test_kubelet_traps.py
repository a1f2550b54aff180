"""What a kubelet does that one would not think, each by itself, on a real one."""

from __future__ import annotations

import asyncio
import re
import shutil
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from aliquot.adapters.kubelet.checkpoint import CHECKPOINT, read_checkpoint
from kit.values.manifests import T9K_CARDS
from testbed import objects
from testbed.cards import QCORE, QMEM
from testbed.gpus import TOLERATION
from testbed.judges import holdings
from testbed.judges.inside import (
    DATABASE,
    denied,
    end_container,
    granted,
    recorded,
    restarts,
    wait_offered,
    wait_restarted,
    wait_running,
    wrong_cards,
)
from testbed.processes import wait_until
from testbed.programs.fleet import EXCLUSIVE, Fleet
from testbed.realnodes.nodes import RealNode, probe

PLUGINS = "/var/lib/kubelet/device-plugins"
CDI, TENANTS = "/var/run/cdi", "/run/aliquot/t"
POD_RESOURCES = "/var/lib/kubelet/pod-resources/kubelet.sock"
SMALL = {QCORE: 20, QMEM: 4}


def _here(node: RealNode) -> dict[str, Any]:
    return {"kubernetes.io/hostname": node.name}


@pytest.fixture
def node(fleet: Fleet) -> RealNode:
    return fleet.nodes[0]


@contextmanager
def _agent_away(fleet: Fleet, node: RealNode) -> Iterator[None]:
    agent = fleet.agents[node.name]
    agent.program.kill()
    yield
    agent.start()


# Init containers


@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param(SMALL, SMALL, id="as-large-as-the-other"),
        pytest.param({QCORE: 10, QMEM: 2}, {QCORE: 30, QMEM: 6}, id="smaller"),
        pytest.param({QCORE: 60, QMEM: 12}, SMALL, id="larger"),
    ],
)
def test_an_init_container_that_the_kubelet_lists_nowhere_sees_the_card_of_its_pod(
    fleet: Fleet, first: dict[str, int], then: dict[str, int]
) -> None:
    init = [objects.container("first", first, args=["exit", "0"])]
    fleet.create(*(probe(f"steps-{number}", limits=then, init=init) for number in range(2)))
    wait_running(fleet, ["steps-0", "steps-1"])
    assert list(granted(objects.get_pod(fleet.plane, "steps-0"))) == ["first", "main"]
    assert wrong_cards(fleet, ["steps-0", "steps-1"]) == []


# PodResources


@contextmanager
def _pestered(node: RealNode) -> Iterator[list[int]]:
    """Another client asks the kubelet for its Pods' resources more often than it answers. Returns the refusals."""
    refused, end = [0], threading.Event()

    async def pester() -> None:
        async with grpc.aio.insecure_channel(f"unix:{node.path(POD_RESOURCES)}") as channel:
            ask: Any = channel.unary_unary("/v1.PodResourcesLister/List")
            while not end.is_set():
                answers = await asyncio.gather(*(ask(b"") for _ in range(20)), return_exceptions=True)
                refused[0] += sum(isinstance(answer, grpc.RpcError) for answer in answers)
                await asyncio.sleep(0.1)

    thread = threading.Thread(target=lambda: asyncio.run(pester()))
    thread.start()
    try:
        yield refused
    finally:
        end.set()
        thread.join()


def test_containers_start_though_the_kubelet_refuses_to_say_so_often_whose_devices_are_whose(
    fleet: Fleet, node: RealNode
) -> None:
    names = [f"rated-{number}" for number in range(8)]
    with _pestered(node) as refused:
        wait_until(lambda: refused[0], 10, "the kubelet refuses")
        for name in names:
            fleet.create(probe(name, limits=SMALL, nodeSelector=_here(node)))
        wait_running(fleet, names)
    assert wrong_cards(fleet, names) == []


# The same devices in other hands


def _stateful_set(node: RealNode, replicas: int) -> dict[str, Any]:
    pod = probe("", limits={T9K_CARDS: 1}, nodeSelector=_here(node), tolerations=[TOLERATION])
    del pod["spec"]["terminationGracePeriodSeconds"]
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {**pod["spec"], "terminationGracePeriodSeconds": 1}}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "podManagementPolicy": "Parallel",
            "serviceName": "web",
            "selector": {"matchLabels": {"app": "web"}},
            "template": template,
        },
    }


def test_pods_made_anew_under_their_names_with_the_devices_of_others_each_see_their_own_card(
    fleet: Fleet, node: RealNode
) -> None:
    """Four cards, devices and names, each time dealt anew: what an earlier Pod left must not be found."""
    fleet.label(node.name, EXCLUSIVE)
    wait_offered(fleet, {T9K_CARDS: 4}, nodes=[node])
    fleet.plane.api("POST", "/apis/apps/v1/namespaces/default/statefulsets", _stateful_set(node, 4))
    names = [f"web-{number}" for number in range(4)]
    cards_of_name, cards_of_devices = defaultdict(set), defaultdict(set)
    gone: set[str] = set()
    for _ in range(5):
        uids = _wait_new(fleet, names, gone)
        assert wrong_cards(fleet, names) == []
        devices = {entry.pod_uid: entry.ids for entry in read_checkpoint(node.path(PLUGINS) / CHECKPOINT) or ()}
        for name in names:
            (card,) = holdings.cards_of(objects.get_pod(fleet.plane, name))
            cards_of_name[name].add(card)
            cards_of_devices[devices[uids[name]]].add(card)
        gone |= set(uids.values())
        for name in names:
            fleet.plane.api("DELETE", f"/api/v1/namespaces/default/pods/{name}")
    assert max(map(len, cards_of_name.values())) > 1
    assert max(map(len, cards_of_devices.values())) > 1


def _wait_new(fleet: Fleet, names: list[str], gone: set[str]) -> dict[str, str]:
    """UIDs of the Pods of these names, once all run that are not the former ones."""

    def found() -> dict[str, str]:
        pods = {pod["metadata"]["name"]: pod for pod in objects.list_pods(fleet.plane, "default")}
        uids = {name: pods[name]["metadata"]["uid"] for name in names if name in pods}
        return uids if len(uids) == len(names) and gone.isdisjoint(uids.values()) else {}

    uids = wait_until(found, 20, "all were made anew")
    wait_running(fleet, names)
    return uids


# The window after a kubelet has started and before we are registered


def _deployment(name: str, node: RealNode) -> dict[str, Any]:
    pod = probe("", limits={QCORE: 99, QMEM: 16}, nodeSelector=_here(node))
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": pod["spec"]},
        },
    }


def _of(fleet: Fleet, app: str) -> list[dict[str, Any]]:
    return [pod for pod in objects.list_pods(fleet.plane, "default") if pod["metadata"]["labels"].get("app") == app]


def test_the_cards_of_a_pod_that_came_before_we_were_registered_are_free_again_and_its_successor_runs(
    fleet: Fleet, node: RealNode
) -> None:
    wait_offered(fleet, {QCORE: 400}, nodes=[node])
    with _agent_away(fleet, node):
        node.stop_kubelet(kill=True)
        fleet.plane.api("POST", "/apis/apps/v1/namespaces/default/deployments", _deployment("early", node))
        wait_until(lambda: [pod for pod in _of(fleet, "early") if pod["spec"].get("nodeName")], 30, "it is bound")
        node.start_kubelet()
        wait_until(
            lambda: [pod for pod in _of(fleet, "early") if denied(pod)],
            60,
            "the kubelet refuses it",
            saw=lambda: [pod["status"] for pod in _of(fleet, "early")],
        )
    node.wait_ready()

    def running() -> list[str]:
        return [pod["metadata"]["name"] for pod in _of(fleet, "early") if pod["status"]["phase"] == "Running"]

    (name,) = wait_until(running, 120, "its successor runs", saw=lambda: [pod["status"] for pod in _of(fleet, "early")])
    assert wrong_cards(fleet, [name]) == []

    def booked() -> int:
        board = next(entry["cards"] for entry in fleet.wired.status()["nodes"] if entry["name"] == node.name)
        return sum(card["used_memory_mib"] for card in board)

    # The successor may run before the scheduler has heard that the last Pod before it was refused.
    wait_until(lambda: booked() == 16 * 1024, 30, "only the successor is booked", saw=booked)


def test_a_container_that_is_started_again_before_we_are_registered_finds_what_it_had(
    fleet: Fleet, node: RealNode
) -> None:
    fleet.create(probe("again", limits=SMALL, nodeSelector=_here(node)))
    wait_running(fleet, ["again"])
    with _agent_away(fleet, node):
        node.restart_kubelet(kill=True)
        # A Pod that ends before the kubelet has seen that it ran is refused for good.
        wait_until(lambda: re.search('SyncLoop ADD.*"default/again"', node.kubelet.said), 20, "it is taken up again")
        end_container(node, "again")
        wait_restarted(fleet, "again", 0)
        assert wrong_cards(fleet, ["again"]) == []
    end_container(node, "again")
    wait_restarted(fleet, "again", 1)
    assert wrong_cards(fleet, ["again"]) == []


# What only the kubelet still knows


def test_an_agent_that_lost_its_state_learns_from_the_kubelet_who_is_on_the_cards(fleet: Fleet, node: RealNode) -> None:
    fleet.create(probe("stays", limits=SMALL, nodeSelector=_here(node)))
    wait_running(fleet, ["stays"])
    with _agent_away(fleet, node):
        for file in [*node.path(CDI).iterdir(), *node.path(DATABASE).parent.glob("state.db*")]:
            file.unlink()
        for folder in node.path(TENANTS).iterdir():
            shutil.rmtree(folder)
    assert recorded(node) == ["stays"]
    (tenant,) = fleet.agents[node.name].status()["tenants"]
    assert (tenant["pod"], tenant["cards"][0]["memory_limit_bytes"]) == ("stays", 4 << 30)
    end_container(node, "stays")
    wait_restarted(fleet, "stays", 0)
    assert wrong_cards(fleet, ["stays"]) == []


# What the kubelet does when we refuse


def test_a_refused_start_is_tried_again_and_heals_even_where_nothing_is_to_be_restarted(
    fleet: Fleet, node: RealNode
) -> None:
    """Bound past the scheduler, it has no grant; when it has one (here by hand), it starts."""
    fleet.create(probe("granted", limits=SMALL, nodeSelector=_here(node)))
    wait_running(fleet, ["granted"])
    fleet.create(probe("past-us", limits=SMALL, node=node.name, restartPolicy="Never"))
    fleet.wired.await_event("past-us", "GPURefused", "aliquot granted no card to this Pod")
    fleet.wired.await_event("past-us", "Failed", "aliquot granted no card to this Pod")
    assert objects.get_pod(fleet.plane, "past-us")["status"]["phase"] == "Pending"
    grant = objects.get_pod(fleet.plane, "granted")["metadata"]["annotations"][holdings.GRANT]
    path = "/api/v1/namespaces/default/pods/past-us"
    fleet.wired.patch(path, {"metadata": {"annotations": {holdings.GRANT: grant}}})
    wait_running(fleet, ["past-us"])
    assert wrong_cards(fleet, ["past-us"]) == []
    assert restarts(fleet, "past-us") == 0


def test_a_pod_that_asks_for_no_card_is_left_alone(fleet: Fleet, node: RealNode) -> None:
    fleet.create(probe("plain", nodeSelector=_here(node)), probe("beside", limits=SMALL, nodeSelector=_here(node)))
    wait_running(fleet, ["plain", "beside"])
    report = fleet.report("plain")
    assert (report["preload"], report["shim_there"], report["shim_loaded"]) == (None, False, False)
    assert (report["cuda"], report["mounts"]) == (None, {})
    assert [key for key in report["env"] if not key.startswith("LD_")] == []
    (spec,) = [tenant["name"] for tenant in fleet.agents[node.name].status()["tenants"]]
    assert spec == "default/beside"
