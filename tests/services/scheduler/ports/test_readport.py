"""The scheduler's read-only port: metrics, probes and status, and none of kube-scheduler's verbs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestClient, TestServer

import aliquot
from aliquot.services.daemon.http import bind_port
from aliquot.services.dashboard.access import Listen
from aliquot.services.scheduler.ports import readport
from aliquot.services.scheduler.ports.readport import read_app, serve_read_port
from kit.running.halfopen import HALF, half_open


def asked(scene: Callable[[TestClient[Any, Any]], Awaitable[None]], unready: str = "") -> None:
    async def run() -> None:
        app = read_app(metrics=lambda: b"aliquot_x 1\n", status=lambda: {"leading": True}, unready=lambda: unready)
        async with TestClient(TestServer(app)) as client:
            await scene(client)

    asyncio.run(run())


def test_read_port_serves_metrics_probes_and_status() -> None:
    async def scene(client: TestClient[Any, Any]) -> None:
        bodies = {"/metrics": "aliquot_x 1\n", "/livez": "ok\n", "/readyz": "ok\n"}
        bodies |= {"/aliquot/status": '{"leading":true}', "/version": f'{{"version":"{aliquot.__version__}"}}'}
        for path, body in bodies.items():
            answer = await client.get(path)
            assert (answer.status, await answer.text()) == (200, body)

    asked(scene)


def test_read_port_says_why_the_scheduler_is_not_ready() -> None:
    async def scene(client: TestClient[Any, Any]) -> None:
        answer = await client.get("/readyz")
        assert (answer.status, await answer.text()) == (503, "stopping\n")
        assert (await client.get("/livez")).status == 200

    asked(scene, "stopping")


def test_read_port_has_no_verb() -> None:
    async def scene(client: TestClient[Any, Any]) -> None:
        for prefix in ("/aliquot", "/gpushare-scheduler", "/scheduler"):
            for verb in ("filter", "prioritize", "bind", "preempt"):
                assert (await client.post(f"{prefix}/{verb}", json={})).status == 404

    asked(scene)


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[int]:
    """The port on which it is served as the scheduler does."""
    with bind_port("127.0.0.1", 0) as free:
        port: int = free.getsockname()[1]
    app = read_app(metrics=lambda: b"", status=dict, unready=lambda: "")
    async with serve_read_port(Listen("127.0.0.1", port), app):
        yield port


def test_half_open_requests_do_not_keep_the_probe_from_its_answer() -> None:
    async def scene() -> str:
        async with (
            served() as port,
            half_open(port, 60),
            ClientSession() as client,
            client.get(f"http://127.0.0.1:{port}/livez") as answer,
        ):
            return await answer.text()

    assert asyncio.run(asyncio.wait_for(scene(), 30)) == "ok\n"


@pytest.mark.parametrize("sent", [b"", HALF], ids=["nothing", "half a request"])
def test_read_port_closes_a_connection_without_a_request(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    assert readport._IDLE == 300.0
    monkeypatch.setattr(readport, "_IDLE", 0.05)

    async def scene() -> list[bytes]:
        async with served() as port, half_open(port, 2, sent) as readers:
            return [await reader.read() for reader in readers]

    assert asyncio.run(asyncio.wait_for(scene(), 30)) == [b"", b""]
