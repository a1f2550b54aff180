"""What Prometheus and the kubelet's probes get from a node's agent."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestClient, TestServer

from aliquot.services.agent.api import http
from aliquot.services.agent.api.http import AgentHttp, AgentPort
from aliquot.services.daemon.http import bind_port
from kit.agents.fakeagent import RESOURCE, FakeAgent
from kit.running.halfopen import HALF, half_open


def asked(agent: FakeAgent, path: str) -> tuple[int, str, str]:
    """Status, content type and body."""

    async def ask() -> tuple[int, str, str]:
        async with TestClient(TestServer(AgentHttp(agent).app())) as client, client.get(path) as answer:
            return answer.status, answer.headers["Content-Type"], await answer.text()

    return asyncio.run(ask())


def test_livez_answers_before_readyz() -> None:
    agent = FakeAgent(waits_for="the kubelet has not accepted aliyun.com/gpu-mem yet")
    assert asked(agent, "/livez")[0] == 200
    assert asked(agent, "/readyz")[::2] == (503, "the kubelet has not accepted aliyun.com/gpu-mem yet\n")


def test_readyz_is_ok_when_nothing_is_missing() -> None:
    assert asked(FakeAgent(), "/readyz")[::2] == (200, "ok\n")


def test_the_status_is_json() -> None:
    status, kind, body = asked(FakeAgent(), "/status")
    assert (status, kind) == (200, "application/json")
    assert '"name":"ml/train-0"' in body


def test_api_node_serves_the_dashboards_view() -> None:
    status, kind, body = asked(FakeAgent(), "/api/v1/node")
    assert (status, kind, msgspec.json.decode(body)["name"]) == (200, "application/json", "n1")


def test_metrics_of_a_pod_have_namespace_and_name() -> None:
    status, kind, body = asked(FakeAgent(), "/metrics")
    lines = body.splitlines()
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    labels = '{card="0",class="offline",namespace="ml",pod="train-0",uuid="GPU-a"}'
    for expected in (
        f"aliquot_tenant_memory_used_bytes{labels} 5.24288e+06",
        f"aliquot_tenant_memory_limit_bytes{labels} 4.294967296e+09",
        f"aliquot_tenant_share_ratio{labels} 0.25",
        f"aliquot_tenant_paused_seconds_total{labels} 1.5",
        f"aliquot_tenant_preemptions_total{labels} 3.0",
        f"aliquot_tenant_refused_allocations_total{labels} 2.0",
        f'aliquot_tenant_state{labels[:-1]},state="paused",level="hardware"}} 1.0',
    ):
        assert _has(lines, expected), expected


def test_metrics_of_an_unhealthy_card_read_0() -> None:
    lines = asked(FakeAgent(), "/metrics")[2].splitlines()
    assert 'aliquot_card_healthy{card="0",model="A30",uuid="GPU-a"} 1.0' in lines
    assert 'aliquot_card_healthy{card="1",model="A30",uuid="GPU-b"} 0.0' in lines
    assert 'aliquot_card_utilisation_ratio{card="0",model="A30",uuid="GPU-a"} 0.5' in lines


def test_metrics_have_the_delay_of_the_event_loop() -> None:
    agent = FakeAgent()
    agent.delay.add(0.3, 100.0)
    lines = asked(agent, "/metrics")[2].splitlines()
    assert 'aliquot_loop_delay_seconds_bucket{le="0.5"} 1.0' in lines
    assert "aliquot_loop_delay_max_seconds 0.3" in lines


def test_metrics_count_and_time_kubelet_calls() -> None:
    agent = FakeAgent()
    agent.calls.count("prestart", "ok", 0.25)
    agent.calls.count("prestart", "refused", 1.0)
    lines = asked(agent, "/metrics")[2].splitlines()
    assert 'aliquot_agent_kubelet_calls_total{outcome="ok",verb="prestart"} 1.0' in lines
    assert 'aliquot_agent_kubelet_calls_total{outcome="refused",verb="prestart"} 1.0' in lines
    assert 'aliquot_agent_kubelet_call_seconds_bucket{le="0.5",verb="prestart"} 1.0' in lines
    assert 'aliquot_agent_kubelet_call_seconds_count{verb="prestart"} 2.0' in lines
    assert 'aliquot_agent_kubelet_call_seconds_sum{verb="prestart"} 1.25' in lines


def test_metrics_have_devices_and_readiness() -> None:
    lines = asked(FakeAgent(waits_for="something"), "/metrics")[2].splitlines()
    assert f'aliquot_agent_devices{{resource="{RESOURCE}"}} 1.0' in lines
    assert f'aliquot_agent_registered{{resource="{RESOURCE}"}} 1.0' in lines
    assert "aliquot_agent_ready 0.0" in lines
    assert "aliquot_agent_kubelet_restarts_total 2.0" in lines
    assert "aliquot_agent_ready 1.0" in asked(FakeAgent(), "/metrics")[2].splitlines()


def test_metrics_have_no_queue() -> None:
    assert "aliquot_queue_length" not in asked(FakeAgent(), "/metrics")[2]


def test_documents_list_every_metric() -> None:
    body = asked(FakeAgent(), "/metrics")[2]
    there = set(re.findall(r"^# TYPE (aliquot_\w+) ", body, re.MULTILINE))
    page = (Path(__file__).parents[4] / "docs" / "agent.md").read_text()
    assert set(re.findall(r"`(aliquot_\w+)`", page)) == there


def _has(lines: list[str], line: str) -> bool:
    """Whatever the order of the labels is."""

    def parts(text: str) -> tuple[str, frozenset[str], str]:
        name, _, rest = text.partition("{")
        labels, _, value = rest.rpartition("} ")
        return name, frozenset(labels.split(",")), value

    return any(parts(other) == parts(line) for other in lines)


class TestPort:
    @pytest.fixture(autouse=True)
    def _soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(http, "_RETRY", 0.01)

    def test_port_in_use_is_retried(self) -> None:
        async def story() -> tuple[str | None, str | None, str]:
            async with AsyncExitStack() as stack:
                other = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
                number = other.sockets[0].getsockname()[1]
                port = AgentPort(FakeAgent(), address="127.0.0.1", port=number)
                await port.open(stack)
                before = port.trouble
                other.close()
                await other.wait_closed()
                await port.run()
                async with ClientSession() as client, client.get(f"http://127.0.0.1:{number}/livez") as answer:
                    return before, port.trouble, await answer.text()

        before, after, said = asyncio.run(story())
        assert before is not None
        assert "another program listens on port" in before
        assert (after, said) == (None, "ok\n")

    def test_foreign_address_is_an_error(self) -> None:
        async def story() -> None:
            async with AsyncExitStack() as stack:
                await AgentPort(FakeAgent(), address="203.0.113.1", port=9).open(stack)

        with pytest.raises(OSError, match=r"203\.0\.113\.1"):
            asyncio.run(story())

    def test_port_0_is_not_bound(self) -> None:
        async def story() -> str | None:
            async with AsyncExitStack() as stack:
                port = AgentPort(FakeAgent(), address="127.0.0.1", port=0)
                await port.open(stack)
                await port.run()
                return port.trouble

        assert asyncio.run(story()) is None

    def test_half_open_requests_do_not_keep_the_probe_from_its_answer(self) -> None:
        async def story() -> str:
            async with AsyncExitStack() as stack:
                number = await self._opened(stack)
                await stack.enter_async_context(half_open(number, 60))
                async with ClientSession() as client, client.get(f"http://127.0.0.1:{number}/livez") as answer:
                    return await answer.text()

        assert asyncio.run(asyncio.wait_for(story(), 30)) == "ok\n"

    @pytest.mark.parametrize("sent", [b"", HALF], ids=["nothing", "half a request"])
    def test_connection_without_a_request_is_closed(self, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
        assert http._IDLE == 300.0
        monkeypatch.setattr(http, "_IDLE", 0.05)

        async def story() -> list[bytes]:
            async with AsyncExitStack() as stack:
                number = await self._opened(stack)
                readers = await stack.enter_async_context(half_open(number, 2, sent))
                return [await reader.read() for reader in readers]

        assert asyncio.run(asyncio.wait_for(story(), 30)) == [b"", b""]

    @staticmethod
    async def _opened(stack: AsyncExitStack) -> int:
        """The port of an agent that serves it until the stack is left."""
        with bind_port("127.0.0.1", 0) as free:
            number: int = free.getsockname()[1]
        port = AgentPort(FakeAgent(), address="127.0.0.1", port=number)
        await port.open(stack)
        assert port.trouble is None
        return number
