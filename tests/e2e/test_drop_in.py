"""In the place of a peer, wired by the peer's own file; and beside a kube-scheduler that cannot be changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from kit.values.manifests import MEM, QGPU_CORE, QGPU_MEMORY, T9K_CARDS
from testbed import objects
from testbed.gpus import gpushare_node, gpushare_pod, qgpu_node, t9k_pod, xgn_node
from testbed.judges import holdings
from testbed.objects import pod
from testbed.plane import ControlPlane, KubeScheduler
from testbed.programs.product import AliquotScheduler
from testbed.programs.wired import scheduler_config


def _config(extender: dict[str, Any]) -> dict[str, Any]:
    """What the peers' guides have people write."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "extenders": [extender],
    }


def test_gpushare_scheduler_policy_reaches_extender(
    clean: ControlPlane,
    aliquot_scheduler: Callable[..., AliquotScheduler],
    kube_scheduler: Callable[..., KubeScheduler],
) -> None:
    """It has no prioritize: any node will do, and the cards are still ours to choose."""
    objects.create(clean, gpushare_node("n", 8, 8))
    ours = aliquot_scheduler()
    extender = {
        "urlPrefix": f"{ours.url}/gpushare-scheduler",
        "filterVerb": "filter",
        "bindVerb": "bind",
        "enableHTTPS": False,
        "nodeCacheCapable": True,
        "managedResources": [{"name": MEM, "ignoredByScheduler": False}],
        "ignorable": False,
    }
    kube_scheduler(_config(extender))
    for name in ("a", "b", "c", "d"):
        objects.create(clean, gpushare_pod(name, 4))
        objects.wait_bound(clean, name)
    assert [holdings.cards_of(objects.get_pod(clean, name)) for name in ("a", "b", "c", "d")] == [[0], [0], [1], [1]]
    assert json.loads(ours.get("/gpushare-scheduler/inspect"))["nodes"][0]["usedGPU"] == 16


def test_nano_gpu_scheduler_config_reaches_extender(
    clean: ControlPlane,
    aliquot_scheduler: Callable[..., AliquotScheduler],
    kube_scheduler: Callable[..., KubeScheduler],
) -> None:
    """Its prioritize is called priorities, and what the seed's manifest starts is started: a flag, and $PORT."""
    objects.create(clean, qgpu_node("a", 16, 16), qgpu_node("b", 16, 16))
    ours = aliquot_scheduler("--priority=binpack", "--shortlist=0")
    extender = {
        "urlPrefix": f"{ours.url}/scheduler",
        "filterVerb": "filter",
        "prioritizeVerb": "priorities",
        "bindVerb": "bind",
        "weight": 1,
        "enableHTTPS": False,
        "nodeCacheCapable": True,
        "managedResources": [{"name": QGPU_CORE}, {"name": QGPU_MEMORY}],
    }
    kube_scheduler(_config(extender))
    for name in ("p", "q", "r"):
        objects.create(clean, pod(name, {QGPU_CORE: 30, QGPU_MEMORY: 5}))
        objects.wait_bound(clean, name)
    assert json.loads(ours.get("/scheduler/status"))["calls"]["prioritize"]["count"] == 3


def test_second_kube_scheduler_serves_pods_by_name(
    clean: ControlPlane,
    aliquot_scheduler: Callable[..., AliquotScheduler],
    kube_scheduler: Callable[..., KubeScheduler],
) -> None:
    """For control planes that others run."""
    objects.create(clean, gpushare_node("share", 8, 8), xgn_node("xgn"))
    ours = aliquot_scheduler()
    kube_scheduler(scheduler_config(ours.url, "--second"), name="second")
    kube_scheduler(name="own")
    objects.create(
        clean,
        gpushare_pod("by-name", 4, cards=2, scheduler="aliquot-scheduler"),
        t9k_pod("t9k", T9K_CARDS, 2),
        pod("plain"),
    )
    bound = objects.wait_bound(clean, "by-name", "t9k", "plain")
    assert (bound["by-name"], bound["t9k"]) == ("share", "xgn")
    assert holdings.cards_of(objects.get_pod(clean, "by-name")) == [0, 1]
    assert holdings.overbooked(clean) == []
    # The cluster's own does not know of us, and binds what it is given: that is counted too.
    objects.create(clean, gpushare_pod("past", 3))
    objects.wait_bound(clean, "past")
    used = objects.wait_until(
        lambda: _used(ours) == 7 and 7, 5, "what went past us is counted", saw=lambda: _used(ours)
    )
    assert used == 7


def _used(ours: AliquotScheduler) -> int:
    found: int = json.loads(ours.get("/gpushare-scheduler/inspect/share"))["nodes"][0]["usedGPU"]
    return found
