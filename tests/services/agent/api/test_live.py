"""A node's agent, looked at by the cluster's dashboard."""

from __future__ import annotations

import asyncio

import pytest

from aliquot.arbiter.timeline import Came, Record
from aliquot.model.status.dashboard import Node
from aliquot.services.agent.api import live as module
from aliquot.services.agent.api.live import AgentLive
from kit.agents.fakeagent import FakeAgent


class FakeArbiter:
    """Remembers whether it is to trace; hands over what a test wrote into it."""

    def __init__(self) -> None:
        self.wanted: list[bool] = []
        self.news: list[Record] = []

    def keep_trace(self, wanted: bool) -> None:
        self.wanted.append(wanted)

    def records(self) -> dict[str, list[Record]]:
        news, self.news = self.news, []
        return {"GPU-a": news}


def test_live_node_has_the_shape_of_a_machine() -> None:
    async def ask() -> Node:
        return AgentLive(FakeArbiter(), clock=lambda: 100.0).node(FakeAgent().status(), 1060.0)

    node = asyncio.run(ask())
    assert (node.name, node.policy) == ("n1", "best-effort")
    train = node.cards[0].tenants[0]
    assert (train.key, train.share, train.state) == ("ml/train-0", 0.25, "paused")
    why_out = node.cards[1].why_out
    assert why_out is not None
    assert (why_out.code, why_out.number, why_out.text) == ("xid", 79, "Xid 79: it has fallen off the bus")


def test_live_node_traces_until_requests_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FORGET", 0.05)
    trace = FakeArbiter()
    live = AgentLive(trace, clock=lambda: 100.0)

    async def ask() -> Node:
        live.node(FakeAgent().status(), 1060.0)
        trace.news = [Came("p", "u1", offline=True), (99.0, 99.2, {"p": 1.0}, False)]
        node = live.node(FakeAgent().status(), 1060.0)
        assert trace.wanted == [True]
        while len(trace.wanted) < 2:
            await asyncio.sleep(0.01)
        return node

    node = asyncio.run(ask())
    assert trace.wanted == [True, False]
    assert node.timeline is not None
    (track,) = node.timeline.cards["GPU-a"].tenants
    assert (track.key, max(track.shares)) == ("ml/train-0", 100)
