"""gpu-mem in MiB on a node of 8 x 80 GiB: 655,360 MiB are more than the kubelet handles as devices."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from testbed import objects
from testbed.cards import MEM
from testbed.client import Refused
from testbed.judges.inside import wait_running, wrong_in
from testbed.plane import HOST, ControlPlane
from testbed.processes import free_port, wait_until
from testbed.programs.fleet import GPUSHARE, Fleet
from testbed.realnodes.nodes import RealNode, probe, remove_pods, standing
from testbed.registries.images import Registry

PLACE = "aliquot.dev/card-place"
ALL = 8 * 80 * 1024
MIB = 1 << 20
PATIENCE = 90.0
STATUS = "/api/v1/nodes/n1/status"
_WEBHOOK = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/aliquot"


@pytest.fixture(scope="module")
def running(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """On a control plane of its own: a webhook is for the whole cluster."""
    port = free_port()
    webhook = (f"--webhook-port={port}", f"--webhook-url=https://{HOST}:{port}")
    with ControlPlane(tmp_path_factory.mktemp("mib-plane")) as plane:
        node = RealNode(plane, "n1", tmp_path_factory.mktemp("n1"), registry)
        with standing([node]):
            fleet = Fleet(
                plane,
                [node],
                tmp_path_factory.mktemp("fleet"),
                cards="8x80GiB",
                labels=GPUSHARE,
                scheduler=webhook,
                of_agents=("--memory-unit=MiB",),
            )
            wait_until(lambda: amounts(fleet) == (ALL, ALL), PATIENCE, "the node has its amount")
            wait_until(lambda: placed_by_webhook(fleet), PATIENCE, "new Pods get a place")
            yield fleet
            remove_pods(plane, [node])
            fleet.stop()


@pytest.fixture
def fleet(running: Fleet) -> Iterator[Fleet]:
    yield running
    assert running.overbooked() == []
    remove_pods(running.plane, running.nodes)
    for agent in running.agents.values():
        agent.until_empty()


def amounts(fleet: Fleet) -> tuple[int, int]:
    """Of gpu-mem: capacity and allocatable."""
    status = objects.get_node(fleet.plane, "n1")["status"]
    return int(status["capacity"].get(MEM, "0")), int(status["allocatable"].get(MEM, "0"))


def reviewed(plane: ControlPlane, limits: dict[str, int]) -> dict[str, Any]:
    """The Pod as it would be created."""
    pods = "/api/v1/namespaces/default/pods"
    made: dict[str, Any] = plane.api("POST", pods, objects.pod("p", limits), params={"dryRun": "All"})
    return made


def placed_by_webhook(fleet: Fleet) -> bool:
    return bool(reviewed(fleet.plane, {MEM: 1})["spec"]["containers"][0]["resources"]["limits"].get(PLACE) == "1")


def asked(plane: ControlPlane) -> bool:
    """Whether the API server asks the webhook, which refuses such a Pod."""
    try:
        reviewed(plane, {"tke.cloud.tencent.com/qgpu-core": 30})
    except Refused:
        return True
    return False


def test_containers_get_exactly_their_card_and_memory(fleet: Fleet) -> None:
    sizes = {"large": 81_920, "odd": 70_001, "beside": 11_919, "least": 256}
    fleet.create(*(probe(name, limits={MEM: mib}) for name, mib in sizes.items()))
    for name, mib in sizes.items():
        report = fleet.report(name)
        (card,) = report["cuda"]["cards"]
        assert card["total"] == mib * MIB
        assert report["env"]["ALIYUN_COM_GPU_MEM_CONTAINER"] == str(mib)
        assert report["env"]["ALIYUN_COM_GPU_MEM_DEV"] == "81920"
        assert wrong_in(objects.get_pod(fleet.plane, name), "main", report) is None


def test_pods_created_at_once_fill_the_node_and_the_next_one_waits(fleet: Fleet) -> None:
    names = [f"half-{at}" for at in range(16)]
    fleet.create(*(probe(name, limits={MEM: 40_960}) for name in names))
    for name in names:
        assert wrong_in(objects.get_pod(fleet.plane, name), "main", fleet.report(name)) is None
    fleet.create(probe("next", limits={MEM: 1}))
    fleet.wired.await_event("next", "FailedScheduling", "Insufficient aliyun.com/gpu-mem", seconds=PATIENCE)


def test_pod_that_the_webhook_did_not_see_waits_and_gets_advice(fleet: Fleet) -> None:
    plane = fleet.plane
    configuration = plane.api("GET", _WEBHOOK)
    fleet.wired.ours.signal(signal.SIGSTOP)  # else it would tell the API server of its webhook again
    try:
        plane.api("DELETE", _WEBHOOK)
        wait_until(lambda: not asked(plane), 10, "nobody asks the webhook")
        objects.create(plane, probe("unseen", limits={MEM: 4096}))
    finally:
        again = {**configuration, "metadata": {"name": configuration["metadata"]["name"]}}
        plane.api("POST", _WEBHOOK.rpartition("/")[0], again)
        fleet.wired.ours.signal(signal.SIGCONT)
    message = fleet.wired.await_event("unseen", "FailedScheduling", PLACE, seconds=PATIENCE)
    assert "create the Pod again" in message
    assert objects.bound_to(plane, "unseen") is None
    wait_until(lambda: asked(plane), PATIENCE, "the webhook is asked again")


def test_amount_is_there_again_after_the_kubelet_lost_it(fleet: Fleet) -> None:
    fleet.create(probe("stays", "idle", limits={MEM: 4096}))
    fleet.report("stays")
    lost = {"status": {"capacity": {MEM: "0"}, "allocatable": {MEM: "0"}}}
    fleet.plane.api("PATCH", STATUS, lost, content_type="application/merge-patch+json")
    wait_until(lambda: amounts(fleet) == (ALL, ALL), PATIENCE, "the agent counts it again")
    fleet.nodes[0].restart_kubelet(kill=True)
    fleet.agents["n1"].restart()
    wait_until(lambda: amounts(fleet) == (ALL, ALL), PATIENCE, "the amount stays")
    fleet.create(probe("next", limits={MEM: 81_920}))
    assert fleet.report("next")["cuda"]["cards"][0]["total"] == 81_920 * MIB
    wait_running(fleet, ["stays"], PATIENCE)
    assert objects.get_pod(fleet.plane, "stays")["status"]["containerStatuses"][0]["restartCount"] == 0


def test_amount_goes_with_the_label(fleet: Fleet) -> None:
    fleet.label("n1", {})
    wait_until(lambda: amounts(fleet) == (0, 0), PATIENCE, "the node offers nothing")
    fleet.label("n1", GPUSHARE)
    wait_until(lambda: amounts(fleet) == (ALL, ALL), PATIENCE, "the node has its amount again")
