"""What a node's agent sees, asked over HTTP: within a moment, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from aliquot.model.claim import AppClass
from aliquot.model.residency import ParkReason, Where
from aliquot.model.status.dashboard import Card, Node, Tenant
from aliquot.services.scheduler.dashboard import agentclient
from aliquot.services.scheduler.dashboard.agentclient import AgentClient, merged

NODE = Node("n1", [], "best-effort", 0.1)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def asked(handler: Handler, *names: str) -> list[Node | None]:
    """What an agent with that handler is understood to say, asked so often at once."""

    async def run() -> list[Node | None]:
        app = web.Application()
        app.router.add_get("/api/v1/node", handler)
        async with TestServer(app) as server:
            client = AgentClient({"n1": "127.0.0.1"}, server.port or 0)
            try:
                return [*await asyncio.gather(*(client(name) for name in names))]
            finally:
                await client.close()

    return asyncio.run(run())


async def well(request: web.Request) -> web.StreamResponse:
    return web.Response(body=msgspec.json.encode(NODE), content_type="application/json")


def test_agent_client_asks_nodes_with_a_known_address() -> None:
    assert asked(well, "n1", "elsewhere") == [NODE, None]


def test_agent_client_asks_once_for_many_visitors() -> None:
    questions = []

    async def counting(request: web.Request) -> web.StreamResponse:
        questions.append(request.path)
        return await well(request)

    assert asked(counting, *["n1"] * 20) == [NODE] * 20
    assert len(questions) == 1


def test_agent_client_does_not_wait_for_a_hanging_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agentclient, "_PATIENCE", 0.05)

    async def hanging(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(5)
        return await well(request)

    assert asked(hanging, "n1") == [None]


@pytest.mark.parametrize("body", ["", "nonsense", "[1]", "7", '{"name": "n1", "cards": 7}', "[" * 100_000])
def test_agent_client_ignores_answers_that_are_no_node(body: str) -> None:
    async def odd(request: web.Request) -> web.StreamResponse:
        return web.Response(text=body)

    assert asked(odd, "n1") == [None]


def test_agent_client_keeps_codes_of_a_newer_agent() -> None:
    """Agents are upgraded one by one: a code that the scheduler does not know must not hide all that an agent sees."""
    note = {"code": "of-a-newer-release", "text": "the card is too hot", "number": 95}
    note["refusals"] = [{"reason": "of-a-newer-release", "text": "too hot", "nodes": 1, "example": None}]
    tenant = {
        "key": "ns/a",
        "class": "interactive",
        "dialect": "qgpu",
        "memory_mib": 1,
        "memory_used_mib": 1,
        "core": None,
    }
    tenant |= {"greedy": False, "exclusive": False, "state": "floating", "why_parked": "moonlight"}
    tenant |= {"where": "elsewhere", "way": "by-air"}
    card = {"index": 0, "uuid": "GPU-0", "model": "T4", "healthy": True, "why_out": note, "memory_mib": 1, "busy": None}
    card |= {"memory_booked_mib": 0, "memory_used_mib": 0, "core_booked": 0.0, "greedy_booked": 0.0, "exclusive": False}
    lane = {"key": "ns/a", "class": "interactive", "shares": [1], "paused": [0]}
    timeline = {"until": 1.0, "step": 1.0, "buckets": 1, "cards": {"GPU-0": {"tenants": [lane], "preemptions": []}}}
    body = {
        "name": "n1",
        "offers": [],
        "policy": "best-effort",
        "notes": [note],
        "cards": [{**card, "tenants": [tenant]}],
        "timeline": timeline,
    }

    async def newer(request: web.Request) -> web.StreamResponse:
        return web.json_response(body)

    (node,) = asked(newer, "n1")
    assert node is not None
    shown = msgspec.to_builtins(merged(msgspec.structs.replace(node, notes=[]), node))
    assert shown["notes"] == [note]
    assert shown["cards"][0]["why_out"] == note
    (shown_tenant,) = shown["cards"][0]["tenants"]
    assert (shown_tenant["state"], shown_tenant["why_parked"]) == ("floating", "moonlight")


def test_tenant_is_shown_parked_where_its_agent_says_so() -> None:
    booked = Tenant("ns/a", AppClass.OFFLINE, "qgpu", 4096, None, None, False, False)
    moves = {"where": Where.PARKED, "parked_mib": 2048, "moves": 3, "why_parked": ParkReason.TURN}
    card = Card(0, "GPU-0", "T4", True, None, 16384, 4096, None, 0.0, 0.0, None, False, [booked])
    live = msgspec.structs.replace(card, tenants=[msgspec.structs.replace(booked, **moves)])
    with_card = msgspec.structs.replace(NODE, cards=[card])
    (shown,) = merged(with_card, msgspec.structs.replace(NODE, cards=[live])).cards[0].tenants
    assert {name: getattr(shown, name) for name in moves} == moves


def test_agent_client_ignores_other_programs_at_the_port() -> None:
    async def refusing(request: web.Request) -> web.StreamResponse:
        return web.Response(status=403, text="no")

    assert asked(refusing, "n1") == [None]


@pytest.mark.parametrize(
    "address", ["127.0.0.1:{port}/elsewhere?", "me@127.0.0.1", "localhost", "::1%lo", "127.0.0.1#", ""]
)
def test_agent_client_asks_plain_addresses_only(address: str) -> None:
    """It may say of itself what it likes: only what is an address is asked, and only what an agent answers."""

    async def run() -> Node | None:
        app = web.Application()
        app.router.add_get("/{path:.*}", well)
        async with TestServer(app) as server:
            client = AgentClient({"n1": address.format(port=server.port)}, server.port or 0)
            try:
                return await client("n1")
            finally:
                await client.close()

    assert asyncio.run(run()) is None
