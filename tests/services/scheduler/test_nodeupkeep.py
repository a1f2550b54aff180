"""The node keeper: writes what a node lacks, once, as the leader, and gives in to nobody's conflict."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import msgspec
import pytest

from aliquot.adapters.kubernetes.kube import ApiError, Unreachable
from aliquot.dialects.wire.objects import NodeObject
from aliquot.model.refusal import Invalid
from aliquot.services.daemon.events import ObjectRef
from aliquot.services.scheduler.nodeupkeep import NodeKeeper
from kit.fakeapi import Api, Clock, forbidden
from kit.manifests import QGPU, XGN, a_node

Json = dict[str, Any]
TAINT = {"key": "sched.tensorstack.dev/xgn-mode", "value": "true", "effect": "NoSchedule"}


class Told:
    """Takes the events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []

    def emit(self, about: ObjectRef, reason: str, message: str, *, type: str = "Warning", action: str = "") -> None:
        assert about.kind == "Node"
        self.events.append((about.name, reason, type))


class Rig:
    """A keeper over an API that is not there."""

    def __init__(self, *nodes: Json, leader: bool = True, **settings: Any) -> None:
        self.api, self.clock, self.told, self.leader = Api(), Clock(), Told(), leader
        self.keeper = NodeKeeper(self.api.kube, self.told, is_leader=lambda: self.leader, clock=self.clock, **settings)
        for node in nodes:
            self.put(node)

    def put(self, node: Json) -> None:
        node["metadata"]["resourceVersion"] = f"v{len(self.api.calls)}"
        self.api.objects[f"/api/v1/nodes/{node['metadata']['name']}"] = node
        self.keeper.observe(msgspec.convert(node, NodeObject))

    def node(self, name: str = "n1") -> Json:
        return self.api.objects[f"/api/v1/nodes/{name}"]

    def step(self, after: float = 0.0) -> float:
        self.clock.sleep(after)
        return asyncio.run(self.keeper.step())


def sick_node(**more: Any) -> Json:
    node = a_node("n1", labels=QGPU, **more)
    cards = [{"index": 0, "memory_mib": 1024, "healthy": False}, {"index": 1, "memory_mib": 1024}]
    node["metadata"]["annotations"] = {"aliquot.dev/inventory": json.dumps({"v": 1, "cards": cards})}
    node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    return node


def test_the_taint_comes_and_goes_with_the_label() -> None:
    rig = Rig(a_node("n1", labels=XGN))
    rig.step()
    assert rig.node()["spec"]["taints"] == [TAINT]
    rig.put({**rig.node(), "metadata": {"name": "n1"}})
    rig.step(after=5)
    assert rig.node()["spec"]["taints"] == []
    assert [reason for _, reason, _ in rig.told.events] == ["TaintAdded", "TaintRemoved"]


def test_a_node_with_cards_is_labelled() -> None:
    rig = Rig(a_node("n1", 16))
    rig.step()
    assert rig.node()["metadata"]["labels"] == QGPU


def test_a_node_that_lacks_nothing_is_not_even_read() -> None:
    rig = Rig(a_node("n1"), a_node("n2", 16, labels=QGPU), a_node("n3", labels=XGN, taints=[TAINT]))
    assert rig.step() == 60.0
    assert rig.api.calls == []


def test_a_sick_card_becomes_a_condition_beside_the_others_and_an_event() -> None:
    rig = Rig(sick_node())
    rig.step()
    assert [condition["type"] for condition in rig.node()["status"]["conditions"]] == ["Ready", "GPUHealthy"]
    assert rig.api.sent("patch")[0][0] == "/api/v1/nodes/n1/status"
    assert rig.told.events == [("n1", "SickCards", "Warning")]


def test_a_configmap_takes_cards_out_and_gives_them_back() -> None:
    rig = Rig(a_node("n1", 16, 16, labels=QGPU))
    rig.step()
    rig.keeper.observe_unhealthy("n1", frozenset({1}))
    rig.step()
    assert rig.node()["status"]["conditions"][0]["message"] == "1 of 2 cards sick: 1"
    rig.keeper.observe_unhealthy("n1", frozenset())
    rig.step(after=10)
    assert rig.node()["status"]["conditions"][0]["status"] == "True"
    assert [reason for _, reason, _ in rig.told.events] == ["SickCards", "CardsHealthy"]


def test_the_same_configmap_again_is_no_work() -> None:
    rig = Rig()
    rig.keeper.observe_unhealthy("n1", frozenset())
    assert rig.keeper.behind == 0


# Who writes.


def test_only_the_leader_writes_and_a_new_leader_knows_what_is_left() -> None:
    rig = Rig(a_node("n1", labels=XGN), leader=False)
    assert rig.step() == 1.0
    assert rig.api.calls == []
    rig.leader = True
    rig.step()
    assert rig.node()["spec"]["taints"] == [TAINT]


def test_what_the_leader_did_is_struck_off_by_the_others() -> None:
    rig = Rig(a_node("n1", labels=XGN), leader=False)
    rig.step()
    assert rig.keeper.behind == 1
    rig.put(a_node("n1", labels=XGN, taints=[TAINT]))
    rig.step()
    assert rig.keeper.behind == 0


# What can go wrong.


def test_a_node_that_changed_meanwhile_is_read_again() -> None:
    rig = Rig(a_node("n1", labels=XGN))
    conflicts = iter([ApiError(409, "Conflict", "changed")])
    rig.api.refuse = lambda verb, path: next(conflicts, None) if verb == "patch" else None
    rig.step()
    assert "taints" not in rig.node()["spec"]
    rig.step(after=1)
    assert rig.node()["spec"]["taints"] == [TAINT]
    assert len(rig.told.events) == 1


def test_an_old_cache_does_no_harm() -> None:
    """The watch said xgn; the API server knows that the label is gone."""
    rig = Rig(a_node("n1", labels=XGN))
    rig.api.objects["/api/v1/nodes/n1"] = a_node("n1")
    rig.step()
    assert rig.api.sent("patch") == []
    assert rig.keeper.behind == 0


def test_a_role_without_the_right_is_told_once_for_each_kind_of_write(caplog: pytest.LogCaptureFixture) -> None:
    nodes = [a_node(f"n{number}", 16) for number in range(5)]
    rig = Rig(*nodes, sick_node())
    rig.api.refuse = forbidden("patch")
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            rig.step(after=100)
    assert sorted(record.message.partition(": cannot")[0] for record in caplog.records) == [
        "nodes are not looked after: the role lacks patch on nodes",
        "nodes are not looked after: the role lacks patch on nodes/status",
    ]
    assert rig.told.events == []
    rig.api.refuse = lambda verb, path: None
    rig.step(after=300)
    assert rig.keeper.behind == 0


def test_an_api_server_that_is_away_is_asked_again_ever_more_seldom() -> None:
    rig = Rig(a_node("n1", labels=XGN))
    rig.api.refuse = lambda verb, path: Unreachable("refused")
    for _ in range(600):
        rig.step(after=1)
    assert 8 <= len(rig.api.calls) <= 12
    rig.api.refuse = lambda verb, path: None
    rig.step(after=300)
    assert rig.node()["spec"]["taints"] == [TAINT]


def test_a_node_that_is_gone_is_forgotten() -> None:
    rig = Rig(a_node("n1", labels=XGN), a_node("n2", labels=XGN))
    rig.keeper.forget("n1")
    del rig.api.objects["/api/v1/nodes/n2"]
    rig.step()
    assert rig.keeper.behind == 0
    assert rig.api.sent("get") == [("/api/v1/nodes/n2", None)]


def test_what_another_undoes_again_and_again_is_not_fought_over() -> None:
    rig = Rig(a_node("n1", labels=XGN))
    for _ in range(600):
        rig.step(after=1)
        if rig.node()["spec"].get("taints"):
            rig.put(a_node("n1", labels=XGN))
    assert rig.keeper.writes <= 10


def test_a_node_that_breaks_a_rule_is_told_of_once() -> None:
    rig = Rig()
    node = msgspec.convert(a_node("n1"), NodeObject)
    wrong = Invalid('metadata.labels["mode"]', "mine", "xgn or sgn")
    for _ in range(3):
        rig.keeper.observe(node, (wrong,))
        rig.step()
    assert rig.told.events == [("n1", "InvalidNode", "Warning")]
    rig.keeper.observe(node)
    rig.step()
    rig.keeper.observe(node, (wrong,))
    rig.step()
    assert len(rig.told.events) == 2
    assert rig.api.calls == []


# How fast.


def test_five_thousand_nodes_at_once_are_written_at_the_pace() -> None:
    rig = Rig(*(a_node(f"n{number}", 16) for number in range(500)), per_second=20, burst=100)
    rig.step()
    assert rig.keeper.writes == 100
    for _ in range(5):
        rig.step(after=1)
    assert rig.keeper.writes == pytest.approx(200, abs=2)


def test_it_runs_until_it_is_cancelled() -> None:
    async def scenario() -> Rig:
        rig = Rig(a_node("n1", labels=XGN))
        task = asyncio.create_task(rig.keeper.run())
        while not rig.keeper.writes:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return rig

    assert asyncio.run(scenario()).node()["spec"]["taints"] == [TAINT]
