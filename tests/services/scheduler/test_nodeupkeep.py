"""NodeUpkeep writes what a node lacks, once, as the leader, and backs off from conflicts."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from typing import Any

import msgspec
import pytest

from aliquot.adapters.kubernetes.kube import ApiError, Unreachable
from aliquot.dialects.wire.objects import NodeObject
from aliquot.model.refusal import Invalid
from aliquot.services.daemon.events import ObjectRef
from aliquot.services.scheduler.nodeupkeep import NodeUpkeep
from kit.clusters.fakeapi import Api, Clock, forbidden
from kit.values.manifests import QGPU, XGN, a_node

Json = dict[str, Any]
TAINT = {"key": "sched.tensorstack.dev/xgn-mode", "value": "true", "effect": "NoSchedule"}


class Recorder:
    """Records the events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []

    def emit(self, about: ObjectRef, reason: str, message: str, *, type: str = "Warning", action: str = "") -> None:
        assert about.kind == "Node"
        self.events.append((about.name, reason, type))


class Rig:
    """A NodeUpkeep over a fake API."""

    def __init__(self, *nodes: Json, leader: bool = True, **settings: Any) -> None:
        self.api, self.clock, self.recorder, self.leader = Api(), Clock(), Recorder(), leader
        self.upkeep = NodeUpkeep(
            self.api.kube, self.recorder, is_leader=lambda: self.leader, clock=self.clock, **settings
        )
        for node in nodes:
            self.put(node)

    def put(self, node: Json) -> None:
        node["metadata"]["resourceVersion"] = f"v{len(self.api.calls)}"
        self.api.objects[f"/api/v1/nodes/{node['metadata']['name']}"] = node
        self.upkeep.observe(msgspec.convert(node, NodeObject))

    def node(self, name: str = "n1") -> Json:
        return self.api.objects[f"/api/v1/nodes/{name}"]

    def step(self, after: float = 0.0) -> float:
        self.clock.sleep(after)
        return asyncio.run(self.upkeep.step())


def unhealthy_node(**more: Any) -> Json:
    node = a_node("n1", labels=QGPU, **more)
    cards = [{"index": 0, "memory_mib": 1024, "healthy": False}, {"index": 1, "memory_mib": 1024}]
    node["metadata"]["annotations"] = {"aliquot.dev/inventory": json.dumps({"v": 1, "cards": cards})}
    node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    return node


def test_taint_follows_label() -> None:
    rig = Rig(a_node("n1", labels=XGN))
    rig.step()
    assert rig.node()["spec"]["taints"] == [TAINT]
    rig.put({**rig.node(), "metadata": {"name": "n1"}})
    rig.step(after=5)
    assert rig.node()["spec"]["taints"] == []
    assert [reason for _, reason, _ in rig.recorder.events] == ["TaintAdded", "TaintRemoved"]


def test_node_with_cards_gets_qgpu_label() -> None:
    rig = Rig(a_node("n1", 16))
    rig.step()
    assert rig.node()["metadata"]["labels"] == QGPU


@pytest.mark.parametrize(("manager", "kept"), [("aliquot", False), ("kubectl-label", True)])
def test_automatic_qgpu_label_gives_way_to_whole_cards(manager: str, kept: bool) -> None:
    node = a_node("n1", 16, labels={**QGPU, **XGN}, taints=[TAINT])
    fields: Json = {"f:metadata": {"f:labels": {"f:qgpu-device-enable": {}}}}
    node["metadata"]["managedFields"] = [{"manager": manager, "fieldsV1": fields}]
    rig = Rig(node)
    rig.step()
    assert ("qgpu-device-enable" in rig.node()["metadata"]["labels"]) == kept
    rig.step(after=100)
    assert len(rig.api.sent("patch")) == (not kept)


def test_complete_node_is_not_read() -> None:
    rig = Rig(a_node("n1"), a_node("n2", 16, labels=QGPU), a_node("n3", labels=XGN, taints=[TAINT]))
    assert rig.step() == 60.0
    assert rig.api.calls == []


def test_unhealthy_card_sets_condition_and_emits_event() -> None:
    rig = Rig(unhealthy_node())
    rig.step()
    assert [condition["type"] for condition in rig.node()["status"]["conditions"]] == ["Ready", "GPUHealthy"]
    assert rig.api.sent("patch")[0][0] == "/api/v1/nodes/n1/status"
    assert rig.recorder.events == [("n1", "SickCards", "Warning")]


def test_configmap_changes_health_condition() -> None:
    rig = Rig(a_node("n1", 16, 16, labels=QGPU))
    rig.step()
    rig.upkeep.observe_unhealthy("n1", frozenset({1}))
    rig.step()
    assert rig.node()["status"]["conditions"][0]["message"] == "1 of 2 cards unhealthy: 1"
    rig.upkeep.observe_unhealthy("n1", frozenset())
    rig.step(after=10)
    assert rig.node()["status"]["conditions"][0]["status"] == "True"
    assert [reason for _, reason, _ in rig.recorder.events] == ["SickCards", "CardsHealthy"]


def test_unchanged_configmap_plans_no_write() -> None:
    rig = Rig()
    rig.upkeep.observe_unhealthy("n1", frozenset())
    assert rig.upkeep.behind == 0


# Who writes.


def test_upkeep_writes_only_as_leader() -> None:
    rig = Rig(a_node("n1", labels=XGN), leader=False)
    assert rig.step() == 1.0
    assert rig.api.calls == []
    rig.leader = True
    rig.step()
    assert rig.node()["spec"]["taints"] == [TAINT]


def test_follower_drops_what_the_leader_wrote() -> None:
    rig = Rig(a_node("n1", labels=XGN), leader=False)
    rig.step()
    assert rig.upkeep.behind == 1
    rig.put(a_node("n1", labels=XGN, taints=[TAINT]))
    rig.step()
    assert rig.upkeep.behind == 0


# What can go wrong.


def test_upkeep_reads_node_again_after_conflict() -> None:
    rig = Rig(a_node("n1", labels=XGN))
    conflicts = iter([ApiError(409, "Conflict", "changed")])
    rig.api.refuse = lambda verb, path: next(conflicts, None) if verb == "patch" else None
    rig.step()
    assert "taints" not in rig.node()["spec"]
    rig.step(after=1)
    assert rig.node()["spec"]["taints"] == [TAINT]
    assert len(rig.recorder.events) == 1


def test_upkeep_ignores_stale_cache() -> None:
    """The watch said xgn; the API server knows that the label is gone."""
    rig = Rig(a_node("n1", labels=XGN))
    rig.api.objects["/api/v1/nodes/n1"] = a_node("n1")
    rig.step()
    assert rig.api.sent("patch") == []
    assert rig.upkeep.behind == 0


def test_missing_permission_is_logged_once_per_write(caplog: pytest.LogCaptureFixture) -> None:
    nodes = [a_node(f"n{number}", 16) for number in range(5)]
    rig = Rig(*nodes, unhealthy_node())
    rig.api.refuse = forbidden("patch")
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            rig.step(after=100)
    assert {record.message for record in caplog.records} == {"node_upkeep_failed"}
    assert sorted(vars(record)["data"]["why"].partition(": cannot")[0] for record in caplog.records) == [
        "the role lacks patch on nodes",
        "the role lacks patch on nodes/status",
    ]
    assert rig.recorder.events == []
    rig.api.refuse = lambda verb, path: None
    rig.step(after=300)
    assert rig.upkeep.behind == 0


def test_unreachable_api_server_is_backed_off() -> None:
    rig = Rig(a_node("n1", labels=XGN))
    rig.api.refuse = lambda verb, path: Unreachable("refused")
    for _ in range(600):
        rig.step(after=1)
    assert 8 <= len(rig.api.calls) <= 12
    rig.api.refuse = lambda verb, path: None
    rig.step(after=300)
    assert rig.node()["spec"]["taints"] == [TAINT]


def test_deleted_node_is_forgotten() -> None:
    rig = Rig(a_node("n1", labels=XGN), a_node("n2", labels=XGN))
    rig.upkeep.forget("n1")
    del rig.api.objects["/api/v1/nodes/n2"]
    rig.step()
    assert rig.upkeep.behind == 0
    assert rig.api.sent("get") == [("/api/v1/nodes/n2", None)]


def test_upkeep_backs_off_from_competing_writer() -> None:
    rig = Rig(a_node("n1", labels=XGN))
    for _ in range(600):
        rig.step(after=1)
        if rig.node()["spec"].get("taints"):
            rig.put(a_node("n1", labels=XGN))
    assert rig.upkeep.writes <= 10


def test_owner_who_changes_the_labels_again_and_again_does_not_wait() -> None:
    """Ten changes within ten minutes: the taint follows each at once. Only a writer that undoes ours is backed off."""
    rig = Rig(a_node("n1"))
    for number in range(10):
        for labels, taints in ((XGN, [TAINT]), ({}, [])):
            rig.put({**rig.node(), "metadata": {"name": "n1", "labels": dict(labels)}})
            rig.step(after=5)
            assert rig.node()["spec"].get("taints", []) == taints, number


def test_change_of_labels_does_not_wait_for_a_write_that_is_backed_off() -> None:
    rig = Rig(a_node("n1", labels=XGN))
    for _ in range(200):
        rig.step(after=1)
        if rig.node()["spec"].get("taints"):
            rig.put(a_node("n1", labels=XGN))
    assert rig.upkeep.behind == 1, "it adds the taint again later"
    node = a_node("n1")
    node["spec"] = {"taints": [TAINT]}
    rig.put(node)
    rig.step()
    assert rig.node()["spec"]["taints"] == []


def test_condition_that_goes_back_and_forth_is_backed_off() -> None:
    rig = Rig(unhealthy_node())
    healthy = json.dumps({"v": 1, "cards": [{"index": 0, "memory_mib": 1024}, {"index": 1, "memory_mib": 1024}]})
    inventories = itertools.cycle([healthy, unhealthy_node()["metadata"]["annotations"]["aliquot.dev/inventory"]])
    for _ in range(600):
        rig.step(after=1)
        node = rig.node()
        node["metadata"]["annotations"]["aliquot.dev/inventory"] = next(inventories)
        rig.put(node)
    assert rig.upkeep.writes <= 12


def test_invalid_node_emits_one_event() -> None:
    rig = Rig()
    node = msgspec.convert(a_node("n1"), NodeObject)
    wrong = Invalid('metadata.labels["mode"]', "mine", "xgn or sgn")
    for _ in range(3):
        rig.upkeep.observe(node, (wrong,))
        rig.step()
    assert rig.recorder.events == [("n1", "InvalidNode", "Warning")]
    rig.upkeep.observe(node)
    rig.step()
    rig.upkeep.observe(node, (wrong,))
    rig.step()
    assert len(rig.recorder.events) == 2
    assert rig.api.calls == []


# How fast.


def test_upkeep_respects_write_rate() -> None:
    rig = Rig(*(a_node(f"n{number}", 16) for number in range(500)), per_second=20, burst=100)
    rig.step()
    assert rig.upkeep.writes == 100
    for _ in range(5):
        rig.step(after=1)
    assert rig.upkeep.writes == pytest.approx(200, abs=2)


def test_upkeep_runs_until_cancelled() -> None:
    async def scenario() -> Rig:
        rig = Rig(a_node("n1", labels=XGN))
        task = asyncio.create_task(rig.upkeep.run())
        while not rig.upkeep.writes:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return rig

    assert asyncio.run(scenario()).node()["spec"]["taints"] == [TAINT]
