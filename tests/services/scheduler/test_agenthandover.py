"""Agent handover: the leader acknowledges when no bind to the node is in progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aliquot.adapters.kubernetes.kube import ApiError, Unreachable
from aliquot.dialects.wire.objects import NodeObject
from aliquot.services.scheduler.agenthandover import AgentHandover
from kit.clusters.fakeapi import Api
from kit.clusters.watchobjects import a_cluster, claim_of, live_node, live_pod

NODE = "/api/v1/nodes/n1"


def away(*, seen: bool = False) -> NodeObject:
    node = live_node()
    more = {"aliquot.dev/agent": "away", **({"aliquot.dev/seen": "true"} if seen else {})}
    node.metadata.annotations = {**(node.metadata.annotations or {}), **more}
    return node


class Rig:
    def __init__(self) -> None:
        self.api = Api({NODE: {"metadata": {"name": "n1"}}})
        self.cluster = a_cluster(live_node())
        self.leads = True
        self.handover = AgentHandover(self.api.kube, self.cluster, leading=lambda: self.leads)

    def observe(self, node: NodeObject) -> None:
        self.cluster.set_node(node)
        self.handover.observe(node)

    @property
    def acknowledged(self) -> bool:
        return "aliquot.dev/seen" in self.api.objects[NODE]["metadata"].get("annotations", {})

    def run(self, *steps: Callable[[], None]) -> None:
        """A few turns of it, with something done after each."""

        async def turns() -> None:
            task = asyncio.create_task(self.handover.run())
            for step in steps:
                await asyncio.sleep(0.12)
                step()
            await asyncio.sleep(0.12)
            task.cancel()

        asyncio.run(turns())


def test_handover_is_acknowledged_on_the_node_status() -> None:
    rig = Rig()
    rig.observe(away())
    rig.run()
    assert [path for path, _ in rig.api.sent("patch")] == [f"{NODE}/status"]
    assert rig.acknowledged


def test_handover_ignores_present_and_acknowledged_agents() -> None:
    rig = Rig()
    rig.observe(live_node())
    rig.observe(away(seen=True))
    rig.run()
    assert rig.api.calls == []


def test_handover_waits_for_binds_in_progress() -> None:
    rig = Rig()
    rig.cluster.assume(claim_of(rig.cluster, live_pod()), "n1")
    rig.observe(away())
    asked: list[bool] = []
    rig.run(lambda: asked.append(rig.acknowledged), lambda: rig.cluster.unassume("uid-p"), lambda: None)
    assert asked == [False]
    assert rig.acknowledged


def test_handover_is_acknowledged_only_by_the_leader() -> None:
    rig = Rig()
    rig.leads = False
    rig.observe(away())
    asked: list[bool] = []

    def lead() -> None:
        asked.append(rig.acknowledged)
        rig.leads = True

    rig.run(lead)
    assert asked == [False]
    assert rig.acknowledged


def test_handover_retries_while_the_api_server_is_unreachable() -> None:
    rig = Rig()
    rig.api.refuse = lambda verb, path: Unreachable("no answer")
    rig.observe(away())

    def back() -> None:
        rig.api.refuse = lambda verb, path: None

    rig.run(back)
    assert rig.acknowledged


def test_handover_gives_up_without_permission() -> None:
    rig = Rig()
    rig.api.refuse = lambda verb, path: ApiError(403, "Forbidden", "no")
    rig.observe(away())
    rig.run(lambda: None, lambda: None)
    assert len(rig.api.calls) == 1
