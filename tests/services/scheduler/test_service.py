"""The scheduler as a whole: a taken port is reported, the dashboard works without the API server."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import aiohttp
import pytest

from aliquot.adapters.kubernetes.kube import Server
from aliquot.dialects import MemoryUnit
from aliquot.dialects.wire.webhook.configuration import ServiceRef
from aliquot.services.dashboard.access import NO_DASHBOARD, Listen
from aliquot.services.scheduler.ports.verbstls import VerbsTls
from aliquot.services.scheduler.ports.webhook import WebhookSettings
from aliquot.services.scheduler.service import Scheduler
from aliquot.services.scheduler.settings import Settings
from kit.running.ports import free_port
from kit.running.virtualclock import play


def test_scheduler_reports_taken_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = Settings(port=taken.getsockname()[1], bind_address="127.0.0.1", metrics=NO_DASHBOARD)

        async def scene() -> None:
            await Scheduler(Server("http://127.0.0.1:9"), settings).run()

        with pytest.raises(OSError, match="in use"):
            asyncio.run(scene())


async def _answer_of(settings: Settings, url: str) -> dict[str, Any]:
    """What a scheduler without a reachable API server answers at `url`."""
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


def test_dashboard_is_served_without_api_server() -> None:
    port = free_port()
    settings = Settings(
        port=free_port(), bind_address="127.0.0.1", metrics=NO_DASHBOARD, dashboard=Listen("127.0.0.1", port)
    )

    state = asyncio.run(_answer_of(settings, f"http://127.0.0.1:{port}/api/v1/state"))
    assert (state["kind"], state["name"], state["leading"]) == ("cluster", "127.0.0.1:9", False)
    assert state["totals"]["nodes"] == 0


def test_scheduler_runs_without_dashboard_if_default_port_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        usual = Listen("127.0.0.1", taken.getsockname()[1], usual=True)
        port = free_port()
        settings = Settings(port=port, bind_address="127.0.0.1", metrics=NO_DASHBOARD, dashboard=usual)

        assert "version" in asyncio.run(_answer_of(settings, f"http://127.0.0.1:{port}/version"))
    assert "dashboard_port_taken" in caplog.text


def test_scheduler_that_serves_kai_without_webhook_says_so(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    settings = Settings(port=port, bind_address="127.0.0.1", metrics=NO_DASHBOARD, served=frozenset({"kai"}))
    asyncio.run(_answer_of(settings, f"http://127.0.0.1:{port}/version"))
    assert "kai_without_webhook" in caplog.text


def test_scheduler_serves_metrics_on_a_port_of_their_own() -> None:
    port = free_port()
    settings = Settings(port=free_port(), bind_address="127.0.0.1", metrics=Listen("127.0.0.1", port))
    assert "version" in asyncio.run(_answer_of(settings, f"http://127.0.0.1:{port}/version"))


def test_scheduler_runs_without_metrics_if_default_port_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port, usual = free_port(), Listen("127.0.0.1", taken.getsockname()[1], usual=True)
        settings = Settings(port=port, bind_address="127.0.0.1", metrics=usual)
        assert "version" in asyncio.run(_answer_of(settings, f"http://127.0.0.1:{port}/version"))
    assert "metrics_port_taken" in caplog.text


@pytest.mark.parametrize(
    ("tls", "advertise", "address"),
    [
        (None, "", "127.0.0.1:12345"),
        (None, "h:1", "h:1"),
        (VerbsTls(12348, "127.0.0.1"), "", "https://127.0.0.1:12348"),
        (VerbsTls(12348, "127.0.0.1"), "h:1", "https://h:1"),
    ],
)
def test_replicas_learn_the_port_with_tls(tls: VerbsTls | None, advertise: str, address: str) -> None:
    async def scene() -> str:
        return Scheduler(Server("http://127.0.0.1:9"), Settings(tls=tls, advertise=advertise)).election.address

    assert asyncio.run(scene()) == address


def test_scheduler_is_ready_when_every_port_listens() -> None:
    async def scene() -> list[str]:
        scheduler, found = Scheduler(Server("http://127.0.0.1:9"), Settings()), []
        for name, why in (("a", ""), ("b", "no keys"), ("a", None), ("b", None)):
            scheduler.ports.set_state(name, why)
            found.append(scheduler.extender.unready())
        return found

    assert asyncio.run(scene()) == [
        "a does not listen yet",
        "a does not listen yet; b does not listen yet: no keys",
        "b does not listen yet: no keys",
        "the cluster is not read yet",
    ]


def _ended_after(where: ServiceRef | str) -> dict[str, float]:
    """Seconds from the start of the shutdown until the webhook and the rest end."""
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
        parts = {scheduler._webhook: "webhook", scheduler.watches.pods.run: "rest"}
        tasks = {work: asyncio.create_task(part(name)) for work, name in parts.items()}
        await asyncio.sleep(0)
        await scheduler._shut_down(tasks)
        assert scheduler.extender.stopping, "/readyz takes it out of its Service"

    play(scene())
    return ended


def test_webhook_behind_service_answers_during_shutdown() -> None:
    assert _ended_after(ServiceRef("kube-system", "aliquot-webhook")) == {"webhook": 3.0, "rest": 0.0}


def test_webhook_with_url_stops_at_once() -> None:
    assert _ended_after("https://127.0.0.1:443/review") == {"webhook": 0.0, "rest": 0.0}


def test_no_pod_is_evicted_where_any_client_may_call_the_verbs() -> None:
    def evicts(**settings: Any) -> bool:
        scheduler = Scheduler(Server("http://127.0.0.1:9"), Settings(metrics=NO_DASHBOARD, **settings))
        return scheduler.evictor.enabled

    async def scene() -> None:
        assert evicts()
        assert evicts(tls=VerbsTls(port=12348, bind_address="0.0.0.0", namespace="kube-system"))
        assert not evicts(preemption=False)
        assert not evicts(bind_address="0.0.0.0")

    asyncio.run(scene())


def test_unit_that_is_given_holds_before_the_first_node_comes() -> None:
    async def scene() -> list[bool]:
        units = (MemoryUnit.MIB, MemoryUnit.GIB, None)
        made = (Scheduler(Server("http://127.0.0.1:9"), Settings(memory_unit=unit)) for unit in units)
        return [scheduler.cluster.admission_rules.counted for scheduler in made]

    assert asyncio.run(scene()) == [True, False, False]


@pytest.mark.parametrize(("listed_after", "begins_after"), [(2.0, 2.0), (60.0, 10.0)], ids=["soon", "late"])
def test_upkeep_of_nodes_begins_after_the_first_list_of_pods(
    listed_after: float, begins_after: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> float:
        scheduler = Scheduler(Server("http://127.0.0.1:9"), Settings(metrics=NO_DASHBOARD))
        loop, began = asyncio.get_running_loop(), asyncio.Event()

        async def run() -> None:
            began.set()

        monkeypatch.setattr(scheduler.upkeep, "run", run)
        scheduler.watches.slices.answered.set()
        loop.call_later(listed_after, scheduler.watches.pods.synced.set)
        start = loop.time()
        await scheduler._keep_nodes()
        assert began.is_set()
        return loop.time() - start

    assert play(scene()) == pytest.approx(begins_after)


def test_dashboard_lays_out_nodes_a_second_after_the_first_list_of_pods() -> None:
    """That takes a third of a second for 15,000 nodes: the first answer would wait for it."""

    async def scene() -> float:
        scheduler = Scheduler(Server("http://127.0.0.1:9"), Settings(metrics=NO_DASHBOARD))
        loop = asyncio.get_running_loop()
        loop.call_later(2.0, scheduler.watches.pods.synced.set)
        began = loop.time()
        await scheduler._answering()
        return loop.time() - began

    assert play(scene()) == pytest.approx(3.0)


@pytest.mark.parametrize(("listed_after", "answered_after"), [(0.4, 0.4), (60.0, 1.0)], ids=["soon", "late"])
def test_review_waits_a_second_for_the_first_list_of_nodes(listed_after: float, answered_after: float) -> None:
    async def scene() -> float:
        scheduler = Scheduler(Server("http://127.0.0.1:9"), Settings(metrics=NO_DASHBOARD))
        loop = asyncio.get_running_loop()
        loop.call_later(listed_after, scheduler.watches.nodes.synced.set)
        began = loop.time()
        await scheduler._nodes_listed()
        return loop.time() - began

    assert play(scene()) == pytest.approx(answered_after)
