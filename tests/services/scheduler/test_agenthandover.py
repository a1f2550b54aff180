"""An agent that goes is answered when nothing is under way to its node, by the leader, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aliquot.adapters.kubernetes.kube import ApiError, Unreachable
from aliquot.dialects.wire.objects import NodeObject
from aliquot.services.scheduler.agenthandover import Farewells
from kit.fakeapi import Api
from kit.watchobjects import a_cluster, claim_of, live_node, live_pod

NODE = "/api/v1/nodes/n1"


def away(*, seen: bool = False) -> NodeObject:
    node = live_node()
    more = {"aliquot.dev/agent": "away", **({"aliquot.dev/seen": "true"} if seen else {})}
    node.metadata.annotations = {**(node.metadata.annotations or {}), **more}
    return node


class Desk:
    def __init__(self) -> None:
        self.api = Api({NODE: {"metadata": {"name": "n1"}}})
        self.cluster = a_cluster(live_node())
        self.leads = True
        self.farewells = Farewells(self.api.kube, self.cluster, leading=lambda: self.leads)

    def hear(self, node: NodeObject) -> None:
        self.cluster.set_node(node)
        self.farewells.observe(node)

    @property
    def answered(self) -> bool:
        return "aliquot.dev/seen" in self.api.objects[NODE]["metadata"].get("annotations", {})

    def run(self, *steps: Callable[[], None]) -> None:
        """A few turns of it, with something done after each."""

        async def turns() -> None:
            task = asyncio.create_task(self.farewells.run())
            for step in steps:
                await asyncio.sleep(0.12)
                step()
            await asyncio.sleep(0.12)
            task.cancel()

        asyncio.run(turns())


def test_it_is_answered_on_the_status_of_its_node() -> None:
    desk = Desk()
    desk.hear(away())
    desk.run()
    assert [path for path, _ in desk.api.sent("patch")] == [f"{NODE}/status"]
    assert desk.answered


def test_one_that_is_here_or_was_answered_is_not_written_to() -> None:
    desk = Desk()
    desk.hear(live_node())
    desk.hear(away(seen=True))
    desk.run()
    assert desk.api.calls == []


def test_a_bind_that_is_under_way_comes_first() -> None:
    desk = Desk()
    desk.cluster.assume(claim_of(desk.cluster, live_pod()), "n1")
    desk.hear(away())
    asked: list[bool] = []
    desk.run(lambda: asked.append(desk.answered), lambda: desk.cluster.unassume("uid-p"), lambda: None)
    assert asked == [False]
    assert desk.answered


def test_only_the_leader_answers_and_one_that_becomes_it_does() -> None:
    desk = Desk()
    desk.leads = False
    desk.hear(away())
    asked: list[bool] = []

    def lead() -> None:
        asked.append(desk.answered)
        desk.leads = True

    desk.run(lead)
    assert asked == [False]
    assert desk.answered


def test_an_api_server_that_is_away_is_asked_again() -> None:
    desk = Desk()
    desk.api.refuse = lambda verb, path: Unreachable("no answer")
    desk.hear(away())

    def back() -> None:
        desk.api.refuse = lambda verb, path: None

    desk.run(back)
    assert desk.answered


def test_a_role_that_may_not_is_told_of_once_and_the_agent_goes_without() -> None:
    desk = Desk()
    desk.api.refuse = lambda verb, path: ApiError(403, "Forbidden", "no")
    desk.hear(away())
    desk.run(lambda: None, lambda: None)
    assert len(desk.api.calls) == 1
