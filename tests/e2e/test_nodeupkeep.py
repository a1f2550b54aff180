"""The node keeper and its events on a real API server: taints, labels and conditions follow what nodes say."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aliquot.dialects.wire.objects import NodeObject
from aliquot.services.daemon.events import Events, ObjectRef
from aliquot.services.scheduler.nodeupkeep import NodeUpkeep
from e2e.aside import Aside
from kit.running.logged import warnings
from testbed import objects
from testbed.client import MERGE_PATCH
from testbed.plane import ControlPlane

TAINT = {"key": "sched.tensorstack.dev/xgn-mode", "value": "true", "effect": "NoSchedule"}
MODE = "sched.tensorstack.dev/node-alloc-mode"
XGN = {"sched.tensorstack.dev/accelerator": "nvidia-gpu", MODE: "xgn"}

Object = dict[str, Any]


def inventory(*healthy: bool) -> dict[str, str]:
    cards = [
        {"index": index, "uuid": f"GPU-{index}", "memory_mib": 16384, "healthy": well}
        for index, well in enumerate(healthy)
    ]
    return {"aliquot.dev/inventory": json.dumps({"v": 1, "cards": cards})}


class Kept:
    """A control plane whose nodes are kept. Changes are told as the reflector would tell them."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.aside: Aside
        self.keeper: NodeUpkeep
        self.events: Events

    def tell(self, name: str) -> None:
        node = msgspec.convert(objects.get_node(self.plane, name), NodeObject, strict=False)
        self.aside.do(self.keeper.observe, node)

    def create(self, node: Object) -> None:
        objects.create(self.plane, node)
        self.tell(node["metadata"]["name"])

    def change(self, name: str, **metadata: Any) -> None:
        self.plane.api("PATCH", f"/api/v1/nodes/{name}", {"metadata": metadata}, content_type=MERGE_PATCH)
        self.tell(name)

    def taints(self, name: str) -> list[Object]:
        taints: list[Object] = objects.get_node(self.plane, name)["spec"].get("taints", [])
        return taints

    def condition(self, name: str) -> Object:
        conditions = objects.get_node(self.plane, name)["status"]["conditions"]
        found: Object = {condition["type"]: condition for condition in conditions}.get("GPUHealthy", {})
        return found

    def event_reasons(self, name: str) -> list[str]:
        """By our own events: the controller-manager's, of a node of that name before, may come late."""
        reasons = [reason for reason, _ in objects.events_of(self.plane, name)]
        return [reason for reason in reasons if reason not in ("RegisteredNode", "RemovingNode")]


@contextmanager
def keeping(plane: ControlPlane, account: Path | None = None) -> Iterator[Kept]:
    kept = Kept(plane)

    async def work(kube: Any) -> None:
        kept.events = Events(kube, "aliquot-scheduler", time.time)
        kept.keeper = NodeUpkeep(kube, kept.events, is_leader=lambda: True, clock=time.time)
        await asyncio.gather(kept.events.run(), kept.keeper.run())

    with Aside(plane, work, account=account) as kept.aside:
        objects.wait_until(lambda: hasattr(kept, "keeper"), 5, "the keeper runs")
        yield kept


@pytest.fixture
def kept(clean: ControlPlane) -> Iterator[Kept]:
    with keeping(clean) as running:
        yield running


def soon(kept: Kept, what: str, holds: Any, saw: Any) -> None:
    objects.wait_until(lambda: holds(saw()), 15, what, saw=saw)


def test_taint_follows_label(kept: Kept) -> None:
    other = {"key": TAINT["key"], "value": "x", "effect": "NoExecute"}  # one key, two effects: the other stays
    kept.create(objects.node("n1", labels=XGN, taints=[other]))
    soon(kept, "the taint is there", lambda taints: TAINT in taints, lambda: kept.taints("n1"))
    assert other in kept.taints("n1")
    kept.change("n1", labels={MODE: None})
    soon(kept, "the taint is gone", lambda taints: taints == [other], lambda: kept.taints("n1"))
    soon(
        kept,
        "events tell of both",
        lambda seen: {"TaintAdded", "TaintRemoved"} <= set(seen),
        lambda: kept.event_reasons("n1"),
    )


def test_node_with_cards_gets_qgpu_label_unless_disabled(kept: Kept) -> None:
    def labels(name: str) -> str | None:
        found: str | None = objects.get_node(kept.plane, name)["metadata"]["labels"].get("qgpu-device-enable")
        return found

    kept.create(objects.node("no", annotations=inventory(True), labels={"qgpu-device-enable": "disable"}))
    kept.create(objects.node("yes", annotations=inventory(True)))
    soon(kept, "the node is enabled", lambda label: label == "enable", lambda: labels("yes"))
    assert labels("no") == "disable"


def test_unhealthy_card_sets_condition_until_recovery(kept: Kept) -> None:
    kept.create(objects.node("n1", annotations=inventory(True, False)))
    soon(kept, "the node is sick", lambda said: said.get("status") == "False", lambda: kept.condition("n1"))
    assert kept.condition("n1")["message"] == "1 of 2 cards unhealthy: 1 (GPU-1)"
    kept.change("n1", annotations=inventory(True, True))
    soon(kept, "the node is well", lambda said: said["status"] == "True", lambda: kept.condition("n1"))
    conditions = objects.get_node(kept.plane, "n1")["status"]["conditions"]
    assert {condition["type"] for condition in conditions} == {"Ready", "GPUHealthy"}
    soon(
        kept,
        "events tell of it",
        lambda seen: {"SickCards", "CardsHealthy"} <= set(seen),
        lambda: kept.event_reasons("n1"),
    )
    assert "SickCards" in kept.plane.kubectl("describe", "node", "n1")


def test_a_configmap_takes_a_card_out(kept: Kept) -> None:
    kept.create(objects.node("n1", annotations=inventory(True, True)))
    kept.aside.do(kept.keeper.observe_unhealthy, "n1", frozenset({0}))
    soon(kept, "the node is sick", lambda said: said.get("status") == "False", lambda: kept.condition("n1"))


def test_a_node_that_others_write_all_the_time_still_gets_its_taint(kept: Kept) -> None:
    kept.create(objects.node("n1"))
    kept.change("n1", labels=XGN)
    for number in range(60):
        kept.plane.api(
            "PATCH", "/api/v1/nodes/n1", {"metadata": {"annotations": {"n": str(number)}}}, content_type=MERGE_PATCH
        )
    soon(kept, "the taint is there", lambda taints: TAINT in taints, lambda: kept.taints("n1"))
    assert objects.get_node(kept.plane, "n1")["metadata"]["annotations"]["n"] == "59"


# Events.


def test_an_event_of_a_pod_is_shown_by_kubectl_and_counted(kept: Kept) -> None:
    (pod,) = objects.create(kept.plane, objects.pod("web", {"cpu": "1"}))
    about = ObjectRef("Pod", "web", "default", pod["metadata"]["uid"])
    for _ in range(3):
        kept.aside.do(kept.events.emit, about, "Waiting", "no card has room")
    soon(kept, "the event is there", lambda seen: seen == ["Waiting"], lambda: kept.event_reasons("web"))
    said = kept.plane.kubectl("describe", "pod", "web")
    assert "no card has room" in said
    assert "aliquot-scheduler" in said


SEEDS_EVENTS_RULE = {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]}
NODES_RULE = {"apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ["get", "patch"]}


@pytest.mark.parametrize("rules", [[SEEDS_EVENTS_RULE, NODES_RULE]], ids=["the seeds' role, and nodes"])
def test_events_work_with_core_api_only(clean: ControlPlane, rules: list[Object]) -> None:
    account = clean.kubeconfig_for("kube-system/seeds")
    group = "/apis/rbac.authorization.k8s.io/v1"
    role = {"metadata": {"name": "seeds"}, "rules": rules}
    binding = {
        "metadata": {"name": "seeds"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "seeds"},
        "subjects": [{"kind": "ServiceAccount", "name": "seeds", "namespace": "kube-system"}],
    }
    clean.api("POST", f"{group}/clusterroles", role)
    clean.api("POST", f"{group}/clusterrolebindings", binding)
    try:
        with keeping(clean, account) as kept:
            kept.create(objects.node("n1", labels=XGN))
            soon(kept, "the event is there", lambda seen: seen == ["TaintAdded"], lambda: kept.event_reasons("n1"))
            assert kept.taints("n1") == [TAINT]
    finally:
        clean.api("DELETE", f"{group}/clusterrolebindings/seeds")
        clean.api("DELETE", f"{group}/clusterroles/seeds")


def test_missing_rights_are_logged_once_per_kind(clean: ControlPlane, caplog: pytest.LogCaptureFixture) -> None:
    account = clean.kubeconfig_for("kube-system/nobody")
    with keeping(clean, account) as kept:
        kept.create(objects.node("n1", labels=XGN))
        kept.create(objects.node("n2", labels=XGN))
        kept.aside.do(kept.events.emit, ObjectRef("Node", "n1"), "Any", "thing")
        objects.wait_until(lambda: len(caplog.records) >= 2, 15, "two warnings")
    (event, node) = sorted(warnings(caplog))
    assert event[0].startswith("event")
    assert node[0] == "node_upkeep_failed"
    assert "the role lacks get on nodes" in node[1]
