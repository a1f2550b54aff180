"""Cards by ResourceClaims: kube-scheduler allocates them by our slices, and the agent prepares them."""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed import objects
from testbed.cards import MEM, QCORE, QMEM
from testbed.judges.inside import wait_offered, wait_running
from testbed.objects import Object
from testbed.plane import HOST
from testbed.processes import free_port, wait_until
from testbed.programs.fleet import DRA, Fleet
from testbed.programs.product import AliquotScheduler
from testbed.realnodes.nodes import remove_pods

GIB = 1 << 30
V1 = "/apis/resource.k8s.io/v1"
CLAIMS = f"{V1}/namespaces/default/resourceclaims"
PODS = 100
SIZES = {"shared": "4Gi", "huge": "999Gi"}  # of claims on the dashboard
CLASSES = [
    {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {
            "selectors": [{"cel": {"expression": 'device.driver == "aliquot.dev"'}}],
            "config": [{"opaque": {"driver": "aliquot.dev", "parameters": parameters}}] if parameters else [],
        },
    }
    for name, parameters in {
        "aliquot.dev": None,
        "offline.aliquot.dev": {"apiVersion": "aliquot.dev/v1", "kind": "ClaimConfig", "class": "offline"},
    }.items()
]


def _slices(fleet: Fleet) -> list[Object]:
    found: list[Object] = fleet.plane.api("GET", f"{V1}/resourceslices")["items"]
    return [item for item in found if item["spec"]["driver"] == "aliquot.dev"]


@pytest.fixture
def claims_fleet(fleet: Fleet) -> Iterator[Fleet]:
    """The cards of both nodes belong to claims."""
    _apply(fleet, *CLASSES)
    for node in fleet.nodes:
        fleet.label(node.name, DRA)
    wait_until(lambda: len(_slices(fleet)) == 2, 60, "both nodes publish their cards", saw=lambda: _slices(fleet))
    for agent in fleet.agents.values():
        agent.wait_ready(60)
    yield fleet
    remove_pods(fleet.plane, fleet.nodes, seconds=90)
    fleet.plane.api("DELETE", CLAIMS)
    fleet.heal()
    wait_until(lambda: not _slices(fleet), 60, "the slices are deleted", saw=lambda: _slices(fleet))
    wait_offered(fleet, {QMEM: 64, MEM: 64}, seconds=60)  # the cards are back in the other world


def _apply(fleet: Fleet, *things: Object) -> None:
    fleet.plane.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": things}))


def _exactly(memory: str, core: int = 0, *, device_class: str = "aliquot.dev") -> Object:
    requests = {"memory": memory, **({"core": str(core)} if core else {})}
    return {"deviceClassName": device_class, "capacity": {"requests": requests}}


def _claim(name: str, *requests: Object, kind: str = "ResourceClaim") -> Object:
    spec = {"devices": {"requests": list(requests)}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec if kind == "ResourceClaim" else {"spec": spec},
    }


def _user(name: str, *words: str, **claim: str) -> Object:
    """A Pod whose container uses the claim, or one of its own from a template."""
    container = objects.container("main", args=list(words) or ["idle"])
    container["resources"] = {"claims": [{"name": "card"}]}
    claims = [{"name": "card", **claim}]
    return objects.pod(name, containers=[container], resourceClaims=claims, terminationGracePeriodSeconds=1)


def _cards(fleet: Fleet, pod: str) -> list[dict[str, Any]]:
    report = fleet.report(pod)
    assert report["shim_loaded"]
    found: list[dict[str, Any]] = report["cuda"]["cards"]
    return found


def _booked(fleet: Fleet) -> Counter[tuple[str, str]]:
    """GiB of each card that claims have, by the API server alone."""
    booked: Counter[tuple[str, str]] = Counter()
    for claim in fleet.plane.api("GET", CLAIMS)["items"]:
        for result in claim["status"]["allocation"]["devices"]["results"]:
            assert result["consumedCapacity"]["memory"] == "1Gi"
            booked[result["pool"], result["device"]] += 1
    return booked


def test_claims_give_containers_their_card_and_limits_shared_by_pods_and_by_the_first_available_request(
    claims_fleet: Fleet,
) -> None:
    fleet = claims_fleet
    wait_offered(fleet, {QMEM: 0, QCORE: 0, MEM: 0})  # the other world gives nothing away
    shared = _claim("shared", {"name": "gpu", "exactly": _exactly("4Gi", 30, device_class="offline.aliquot.dev")})
    either = [{"name": "huge", **_exactly("999Gi")}, {"name": "small", **_exactly("2Gi")}]
    listed = _claim("listed", {"name": "gpu", "firstAvailable": either})
    _apply(fleet, shared, listed)
    fleet.create(
        _user("one", "alloc", "3GiB", "idle", resourceClaimName="shared"),
        _user("two", resourceClaimName="shared"),
        _user("three", resourceClaimName="listed"),
    )
    (of_one,), (of_two,), (of_three,) = (_cards(fleet, name) for name in ("one", "two", "three"))
    assert of_one["uuid"] == of_two["uuid"]
    assert (of_one["total"], of_two["total"], of_three["total"]) == (4 * GIB, 4 * GIB, 2 * GIB)
    node = fleet.node_of("one")
    assert node is not None
    fleet.line("one", "alloc")
    tenants = [tenant for tenant in fleet.agents[node.name].status()["tenants"] if tenant["name"] == "default/shared"]
    assert [tenant["class"] for tenant in tenants] == ["offline"]  # one tenant for two Pods
    refused = next(line for line in fleet.ask("two", "alloc", "2GiB") if line["event"] == "alloc")
    assert refused["name"] == "CUDA_ERROR_OUT_OF_MEMORY", refused  # 3 of 4 GiB are taken by the other Pod


def test_the_dashboard_shows_claims_their_users_and_those_that_wait(claims_fleet: Fleet, tmp_path: Path) -> None:
    fleet, port = claims_fleet, free_port()
    _apply(fleet, *(_claim(name, {"name": "gpu", "exactly": _exactly(size, 30)}) for name, size in SIZES.items()))
    users = [_user(name, resourceClaimName="shared") for name in ("one", "two")]
    fleet.create(*users, _user("waits", resourceClaimName="huge"))
    wait_running(fleet, ["one", "two"], seconds=90)
    node = fleet.node_of("one")
    assert node is not None
    ours = AliquotScheduler(
        f"--dashboard={HOST}:{port}", kubeconfig=fleet.plane.kubeconfig, log=tmp_path / "standby.log", wait=False
    )

    def asked(path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}/api/v1/{path}", timeout=10) as answer:
                return json.load(answer)
        except OSError:
            return None

    def tenants() -> list[dict[str, Any]]:
        cards = (asked(f"nodes/{node.name}") or {"cards": []})["cards"]
        return [tenant for card in cards for tenant in card["tenants"]]

    def waiting() -> list[dict[str, Any]]:
        found = (asked("state") or {"waiting": {"pods": []}})["waiting"]["pods"]
        return [pod for pod in found if pod["reason"]["code"] == "scheduler-said"]

    try:
        wait_until(tenants, 60, "the dashboard shows the claim", saw=lambda: ours.log)
        (tenant,) = tenants()
        assert (tenant["key"], tenant["memory_mib"], tenant["core"]) == ("default/shared", 4096, 30)
        assert tenant["users"] == ["default/one", "default/two"]
        page = asked("pods/default/one")
        assert (page["node"], page["claims"], page["cards"][0]["memory_mib"]) == (node.name, ["shared"], 4096)
        wait_until(waiting, 60, "kube-scheduler tried the Pod", saw=lambda: asked("state"))
        (pod,) = waiting()
        assert (pod["key"], pod["wants"]["text"]) == ("default/waits", "999 GiB, 30%")
    finally:
        ours.stop()


def test_a_hundred_claims_at_once_while_agents_are_killed(claims_fleet: Fleet) -> None:
    fleet = claims_fleet
    _apply(fleet, _claim("gib", {"name": "gpu", "exactly": _exactly("1Gi")}, kind="ResourceClaimTemplate"))
    names = [f"many-{number}" for number in range(PODS)]
    objects.create_many(fleet.plane, [_user(name, resourceClaimTemplateName="gib") for name in names])
    for _ in range(2):
        for agent in fleet.agents.values():
            agent.restart(wait=False)
        for agent in fleet.agents.values():
            agent.wait_ready(60)
    wait_running(fleet, names, seconds=180)
    booked = _booked(fleet)
    assert sum(booked.values()) == PODS
    assert max(booked.values()) <= 16
    for name in names[:: PODS // 10]:
        assert [card["total"] for card in _cards(fleet, name)] == [GIB]
