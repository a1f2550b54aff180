"""What a node's agent sees, asked over HTTP: within a moment, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from aliquot.services.dashboard.contract import Json
from aliquot.services.scheduler.dashboard import agentclient
from aliquot.services.scheduler.dashboard.agentclient import AgentAsking

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def asked(handler: Handler, *names: str) -> list[Json | None]:
    """What an agent with that handler is understood to say, asked so often at once."""

    async def run() -> list[Json | None]:
        app = web.Application()
        app.router.add_get("/api/v1/node", handler)
        async with TestServer(app) as server:
            asking = AgentAsking({"n1": "127.0.0.1"}, server.port or 0)
            try:
                return [*await asyncio.gather(*(asking(name) for name in names))]
            finally:
                await asking.close()

    return asyncio.run(run())


async def well(request: web.Request) -> web.StreamResponse:
    return web.json_response({"name": "n1"})


def test_a_node_whose_address_is_known_is_asked() -> None:
    assert asked(well, "n1", "elsewhere") == [{"name": "n1"}, None]


def test_many_who_look_at_one_node_are_one_question() -> None:
    questions = []

    async def counting(request: web.Request) -> web.StreamResponse:
        questions.append(request.path)
        return await well(request)

    assert asked(counting, *["n1"] * 20) == [{"name": "n1"}] * 20
    assert len(questions) == 1


def test_an_agent_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agentclient, "_PATIENCE", 0.05)

    async def hanging(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(5)
        return await well(request)

    assert asked(hanging, "n1") == [None]


@pytest.mark.parametrize("body", ["", "nonsense", "[1]", "7", "[" * 100_000])
def test_what_is_no_node_is_nothing(body: str) -> None:
    async def odd(request: web.Request) -> web.StreamResponse:
        return web.Response(text=body)

    assert asked(odd, "n1") == [None]


def test_somebody_else_at_that_port_is_nothing() -> None:
    async def refusing(request: web.Request) -> web.StreamResponse:
        return web.Response(status=403, text="no")

    assert asked(refusing, "n1") == [None]


@pytest.mark.parametrize(
    "told", ["127.0.0.1:{port}/elsewhere?", "me@127.0.0.1", "localhost", "::1%lo", "127.0.0.1#", ""]
)
def test_a_node_does_not_choose_what_the_scheduler_asks_for(told: str) -> None:
    """It may say of itself what it likes: only what is an address is asked, and only what an agent answers."""

    async def run() -> Json | None:
        app = web.Application()
        app.router.add_get("/{path:.*}", well)
        async with TestServer(app) as server:
            asking = AgentAsking({"n1": told.format(port=server.port)}, server.port or 0)
            try:
                return await asking("n1")
            finally:
                await asking.close()

    assert asyncio.run(run()) is None
