"""The scheduler's parts, put together: a taken port is told, the dashboard stands by itself."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import aiohttp
import pytest

from aliquot.adapters.kubernetes.kube import Server
from aliquot.dialects.wire.webhooks import ServiceRef
from aliquot.services.dashboard.access import Listen
from aliquot.services.scheduler.service import Scheduler, Settings
from aliquot.services.scheduler.webhook import WebhookSettings
from kit.virtualclock import play


def test_a_port_that_is_taken_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = Settings(port=taken.getsockname()[1], bind_address="127.0.0.1")

        async def scene() -> None:
            await Scheduler(Server("http://127.0.0.1:9"), settings).run()

        with pytest.raises(OSError, match="in use"):
            asyncio.run(scene())


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


async def _told_by(settings: Settings, url: str) -> dict[str, Any]:
    """What one that never reaches its API server answers there."""
    running = asyncio.create_task(Scheduler(Server("http://127.0.0.1:9"), settings).run())
    try:
        return await _until_it_answers(url)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _until_it_answers(url: str) -> dict[str, Any]:
    async with aiohttp.ClientSession() as session, asyncio.timeout(30):
        while True:
            try:
                async with session.get(url) as answer:
                    found: dict[str, Any] = await answer.json()
                    return found
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.02)


def test_the_dashboard_is_there_although_the_api_server_is_not() -> None:
    port = _free_port()
    settings = Settings(port=_free_port(), bind_address="127.0.0.1", dashboard=Listen("127.0.0.1", port))

    state = asyncio.run(_told_by(settings, f"http://127.0.0.1:{port}/api/v1/state"))
    assert (state["kind"], state["name"], state["leading"]) == ("cluster", "127.0.0.1:9", False)
    assert state["totals"]["nodes"] == 0


def test_without_its_usual_place_there_is_no_dashboard_and_all_else_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        usual = Listen("127.0.0.1", taken.getsockname()[1], usual=True)
        port = _free_port()
        settings = Settings(port=port, bind_address="127.0.0.1", dashboard=usual)

        assert "version" in asyncio.run(_told_by(settings, f"http://127.0.0.1:{port}/version"))
    assert "--dashboard chooses another" in caplog.text


def _ended_after(where: ServiceRef | str) -> dict[str, float]:
    """Seconds from being told to end until each part does: the webhook, the rest."""
    ended: dict[str, float] = {}

    async def part(name: str) -> None:
        loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        try:
            await asyncio.Event().wait()
        finally:
            ended[name] = loop.time() - began

    async def scene() -> None:
        scheduler = Scheduler(
            Server("http://127.0.0.1:9"), Settings(leader_elect=False, webhook=WebhookSettings(443, where))
        )
        parts = {scheduler._webhook: "webhook", scheduler.pods.run: "rest"}
        tasks = {work: asyncio.create_task(part(name)) for work, name in parts.items()}
        await asyncio.sleep(0)
        await scheduler._end(tasks)
        assert scheduler.extender.stopping, "its Service is told by /readyz to send nobody here any more"

    play(scene())
    return ended


def test_behind_a_service_reviews_are_answered_until_api_servers_have_heard_that_it_ends() -> None:
    assert _ended_after(ServiceRef("kube-system", "aliquot-webhook")) == {"webhook": 3.0, "rest": 0.0}


def test_where_nobody_but_it_can_answer_reviews_it_ends_at_once() -> None:
    assert _ended_after("https://127.0.0.1:443/review") == {"webhook": 0.0, "rest": 0.0}
