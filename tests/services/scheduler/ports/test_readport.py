"""The scheduler's read-only port: metrics, probes and status, and none of kube-scheduler's verbs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

import aliquot
from aliquot.services.scheduler.ports.readport import read_app


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
