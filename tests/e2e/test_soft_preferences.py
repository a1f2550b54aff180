"""What Pods prefer, and how replicas spread, on a real kube-scheduler: as without us. Our policy decides what that
leaves equal. `second` is the kube-scheduler of the chart, `in place` the cluster's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kit.values.manifests import MEM
from testbed import objects
from testbed.gpus import gpushare_node, gpushare_pod
from testbed.plane import ControlPlane, KubeScheduler
from testbed.programs.wired import Wired

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
ZONES = {"a": "z1", "b": "z1", "c": "z2"}
REPLICAS = 6
IMAGE = "registry.example/engine:1"
_ON_DISK = {"images": [{"names": [IMAGE], "sizeBytes": 9_000_000_000}]}


def prefers(*names: str) -> dict[str, Any]:
    """A soft affinity to these nodes."""
    term = {"matchExpressions": [{"key": HOST, "operator": "In", "values": list(names)}]}
    wanted = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": term}]}
    return {"affinity": {"nodeAffinity": wanted}}


def spreads(key: str) -> dict[str, Any]:
    selector = {"matchLabels": {"app": "six"}}
    one = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector}
    return {"topologySpreadConstraints": [one]}


WISHES = {"nothing": {}, "a preferred node": prefers("c"), "hosts": spreads(HOST), "zones": spreads(ZONE)}


@pytest.fixture(scope="module", params=["second", "in place"])
def wired(
    plane: ControlPlane, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Wired]:
    running = Wired(plane, tmp_path_factory.mktemp("wired"), second=request.param == "second")
    yield running
    running.stop()
    objects.remove_all(plane)


@pytest.fixture
def own(wired: Wired) -> bool:
    """Whether the kube-scheduler is for GPU Pods only."""
    return wired.scheduler != "default-scheduler"


def three_nodes(plane: ControlPlane, *, zones: bool) -> None:
    for name, zone in ZONES.items():
        objects.create(plane, gpushare_node(name, 32, labels={ZONE: zone} if zones else {}))


def replicas_of(plane: ControlPlane, wish: dict[str, Any], scheduler: str | None) -> list[str]:
    """The nodes of a Deployment's replicas, all of which one card could hold."""
    pod = objects.pod("six", {MEM: 2}, scheduler=scheduler, labels={"app": "six"}, **wish)
    template = {"metadata": {"labels": pod["metadata"]["labels"]}, "spec": pod["spec"]}
    spec = {"replicas": REPLICAS, "selector": {"matchLabels": {"app": "six"}}, "template": template}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "six"}, "spec": spec}
    plane.api("POST", "/apis/apps/v1/namespaces/default/deployments", body)

    def nodes() -> list[str]:
        return [pod["spec"]["nodeName"] for pod in objects.list_pods(plane, "default") if pod["spec"].get("nodeName")]

    objects.wait_until(lambda: len(nodes()) == REPLICAS, 60, "all replicas are bound", saw=nodes)
    return nodes()


@pytest.mark.parametrize("wish", WISHES)
def test_deployment_of_six_goes_where_kube_scheduler_alone_sends_it(cluster: Wired, wish: str) -> None:
    three_nodes(cluster.plane, zones=wish == "zones")
    found = replicas_of(cluster.plane, WISHES[wish], cluster.scheduler)
    assert _per_place(found, wish) == _ALONE[wish]


@pytest.mark.parametrize("wish", WISHES)
def test_kube_scheduler_alone(clean: ControlPlane, kube_scheduler: Callable[..., KubeScheduler], wish: str) -> None:
    kube_scheduler()
    three_nodes(clean, zones=wish == "zones")
    found = replicas_of(clean, WISHES[wish], None)
    for kind in ("deployments", "replicasets"):
        clean.api("DELETE", f"/apis/apps/v1/namespaces/default/{kind}", {"propagationPolicy": "Background"})
    assert _per_place(found, wish) == _ALONE[wish]


_ALONE = {
    "nothing": {"a": 2, "b": 2, "c": 2},
    "a preferred node": {"c": 6},
    "hosts": {"a": 2, "b": 2, "c": 2},
    "zones": {"z1": 3, "z2": 3},
}


def _per_place(nodes: list[str], wish: str) -> Counter[str]:
    return Counter(ZONES[node] if wish == "zones" else node for node in nodes)


def test_policy_decides_among_the_nodes_that_a_preference_leaves(cluster: Wired, own: bool) -> None:
    """The fullest of those preferred, though fuller ones are there: every node has a rank of its own."""
    for at in range(12):
        cluster.create(gpushare_node(f"n{at:02d}", 32), gpushare_pod(f"there-{at}", 26 - at, node=f"n{at:02d}"))
    cluster.wait_heard()
    wanted = prefers("n09", "n08", "n10", "n11")
    places = cluster.placed(*(gpushare_pod(f"p{at}", 1, scheduler=cluster.scheduler, **wanted) for at in range(3)))
    assert {node for node, _ in places} <= ({"n08"} if own else {"n08", "n09", "n10", "n11"})


def test_pods_without_replicas_are_packed(cluster: Wired, own: bool) -> None:
    """Also where a packed node has less CPU left, if kube-scheduler is our own."""
    cluster.create(gpushare_node("a", 32), gpushare_node("b", 32))
    pods = [gpushare_pod(f"p{at}", 4, scheduler=cluster.scheduler) for at in range(6)]
    for pod in pods:
        pod["spec"]["containers"][0]["resources"]["limits"] |= {"cpu": "12"} if own else {}
    assert len({node for node, _ in cluster.placed(*pods)}) == 1


def test_node_with_a_soft_taint_comes_last(cluster: Wired) -> None:
    taint = {"key": "spot", "value": "", "effect": "PreferNoSchedule"}
    cluster.create(gpushare_node("spot", 32, taints=[taint]), gpushare_node("other", 32))
    cluster.create(gpushare_pod("there", 8, node="spot"))
    cluster.wait_heard()
    assert cluster.placed(gpushare_pod("p", 2, scheduler=cluster.scheduler)) == [("other", [0])]


def test_node_that_has_the_image_comes_first(cluster: Wired) -> None:
    with_image = gpushare_node("image", 32)
    with_image["status"] |= _ON_DISK
    cluster.create(with_image, gpushare_node("other", 32), gpushare_pod("there", 8, node="other"))
    cluster.wait_heard()
    pod = gpushare_pod("p", 2, scheduler=cluster.scheduler)
    pod["spec"]["containers"][0]["image"] = IMAGE
    assert cluster.placed(pod) == [("image", [0])]
