"""The webhook's HTTP answers to any input."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import threading
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.dialects import MemoryUnit, Rules
from aliquot.dialects.wire.webhook.admission import AdmissionSettings
from aliquot.services.daemon.http import Limits, make_runner
from aliquot.services.scheduler.ports import webhook as webhook_module
from aliquot.services.scheduler.ports.webhook import review_app
from kit.values.deepjson import MANAGED, with_deep_fields
from kit.values.manifests import QGPU_CORE, QGPU_MEMORY, a_container, a_pod, asking

Json = dict[str, Any]


def review_of(pod: object) -> Json:
    request = {
        "uid": "u-1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "operation": "CREATE",
        "object": pod,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


# HTTP.


class Webhook:
    """A webhook without TLS, and how often it was called."""

    def __init__(self, rules: Callable[[], Rules] = Rules, before: Callable[[], Awaitable[None]] | None = None) -> None:
        self.calls: list[str] = []
        self._rules, self._before = rules, before

    def ask(self, use: Callable[[aiohttp.ClientSession], Awaitable[Any]]) -> Any:
        async def scenario() -> Any:
            limits = Limits(8, unfinished=16 << 20)
            app = review_app(self._rules, AdmissionSettings(), self.calls.append, limits, self._before)
            runner = make_runner(app, limits)
            await runner.setup()
            try:
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as session:
                    return await use(session)
            finally:
                await runner.cleanup()

        return asyncio.run(scenario())

    def post(self, body: bytes, path: str = "/review") -> tuple[int, str]:
        async def use(client: aiohttp.ClientSession) -> tuple[int, str]:
            async with client.post(path, data=body) as answer:
                return answer.status, await answer.text()

        said: tuple[int, str] = self.ask(use)
        return said


def test_event_loop_goes_on_while_a_large_review_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """14,000 containers take a moment in which filter and the probes must not wait; here it is a third of a second."""
    reviewed = webhook_module._reviewed

    def slowly(raw: bytes, *more: Any) -> bytes | str:
        time.sleep(0.3)
        return reviewed(raw, *more)

    monkeypatch.setattr(webhook_module, "_reviewed", slowly)
    pod = asking({QGPU_MEMORY: 4})
    pod["spec"]["containers"] += [{"name": f"c{at}"} for at in range(14_000)]
    body = json.dumps(review_of(pod)).encode()

    async def use(client: aiohttp.ClientSession) -> tuple[int, int]:
        async def post() -> int:
            async with client.post("/review", data=body) as answer:
                return answer.status

        turns, asked = 0, asyncio.create_task(post())
        while not asked.done():
            await asyncio.sleep(0.001)
            turns += 1
        return turns, asked.result()

    turns, status = Webhook().ask(use)
    assert status == 200
    assert turns > 30, "answered within the loop it takes about five turns"


def test_review_of_usual_size_does_not_wait_for_huge_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods of 20 KB are usual. A client that sends many of 3 MB must not hold them up."""
    answered, usual, huge = threading.Event(), asking({QGPU_MEMORY: 4}), asking({QGPU_MEMORY: 4})
    usual["metadata"]["annotations"] = {"a": "x" * 20_000}
    huge["metadata"]["annotations"] = {"a": "x" * 200_000}
    reviewed = webhook_module._reviewed

    def slowly(raw: bytes, *more: Any) -> bytes | str:
        if len(raw) > 200_000:
            assert answered.wait(60), "the review of usual size waits for the huge one"
        return reviewed(raw, *more)

    monkeypatch.setattr(webhook_module, "_reviewed", slowly)

    async def use(client: aiohttp.ClientSession) -> list[int]:
        async def post(pod: Json) -> int:
            async with client.post("/review", data=json.dumps(review_of(pod)).encode()) as answer:
                return answer.status

        waiting = [asyncio.create_task(post(huge)) for _ in range(3)]
        await asyncio.sleep(0.1)
        first = await post(usual)
        answered.set()
        return [first, *[await task for task in waiting]]

    assert Webhook().ask(use) == [200] * 4


@pytest.mark.parametrize("path", ["/review", "/mutate"])
def test_review_is_answered_and_counted(path: str) -> None:
    webhook = Webhook()
    status, text = webhook.post(json.dumps(review_of(asking({QGPU_MEMORY: 4}))).encode(), path)
    response = json.loads(text)["response"]
    assert (status, response["uid"], response["allowed"]) == (200, "u-1", True)
    assert webhook.calls == ["review"]


def test_review_is_answered_by_the_rules_that_are_known_after_the_wait() -> None:
    rules = [Rules()]

    async def listed() -> None:
        await asyncio.sleep(0)
        rules.append(Rules(gpushare_unit=MemoryUnit.MIB, counted=True))

    pod = a_pod("p", a_container("main", {"aliyun.com/gpu-mem": 4096}))
    status, text = Webhook(lambda: rules[-1], listed).post(json.dumps(review_of(pod)).encode())
    assert status == 200
    assert b"card-place" in base64.b64decode(json.loads(text)["response"]["patch"])


def test_invalid_pod_is_refused_with_http_200() -> None:
    status, text = Webhook().post(json.dumps(review_of(asking({QGPU_CORE: 30}))).encode())
    assert status == 200
    assert json.loads(text)["response"]["allowed"] is False


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "the body is not JSON"),
        (b"{", "the body is not JSON"),
        (b"\xff\xfe", "the body is not JSON"),
        (b"[]", "body: a list of 0 is not allowed: an AdmissionReview of admission.k8s.io/v1"),
        (b"{}", "apiVersion is missing: admission.k8s.io/v1"),
        (b"[" * 100_000, "nested too deeply"),
        (json.dumps(review_of(None)).replace("u-1", "").encode(), "request.uid"),
    ],
    ids=["empty", "cut off", "not text", "a list", "nothing", "deep", "no uid"],
)
def test_bad_review_body_gets_400(body: bytes, words: str) -> None:
    status, text = Webhook().post(body)
    assert status == 400
    assert words in text


def test_oversized_review_is_refused_with_flat_memory() -> None:
    async def pieces() -> Any:
        for _ in range(160):
            yield b" " * 65536

    async def use(client: aiohttp.ClientSession) -> list[tuple[int, str]]:
        said = []
        for chunked in (False, True):
            body = pieces() if chunked else io.BytesIO(b" " * 10_485_760)
            async with client.post("/review", data=body) as answer:
                said.append((answer.status, await answer.text()))
        return said

    tracemalloc.start()
    said = Webhook().ask(use)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [status for status, _ in said] == [413, 413]
    assert all("the body is larger than" in text for _, text in said)
    assert most < 10_485_760 + 10_000_000  # the client's own ten, and less than that for the server


def test_disconnecting_client_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def use(client: aiohttp.ClientSession) -> None:
        for head in (b"Content-Length: 1000\r\n", b"Transfer-Encoding: chunked\r\n", b"Content-Length: x\r\n"):
            address = client._base_url
            assert address is not None
            _, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(b"POST /review HTTP/1.1\r\nHost: a\r\n" + head + b"\r\n5\r\n{")
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.close()
            await writer.wait_closed()
        await asyncio.sleep(0.05)
        async with client.post("/review", data=b"{}") as answer:
            assert answer.status == 400

    with caplog.at_level(logging.WARNING):
        Webhook().ask(use)
    assert [record.message for record in caplog.records] == []


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=200), min_size=20, max_size=20))
def test_review_survives_random_bodies(bodies: list[bytes]) -> None:
    async def use(client: aiohttp.ClientSession) -> list[int]:
        said = []
        for body in bodies:
            async with client.post("/review", data=body) as answer:
                said.append(answer.status)
        return said

    assert set(Webhook().ask(use)) <= {200, 400}


def test_pod_that_is_nested_very_deep_is_reviewed_all_the_same() -> None:
    """With failurePolicy Ignore, a review without an answer would let anything pass."""
    pod = asking({QGPU_CORE: 30, QGPU_MEMORY: 4})
    pod["metadata"] |= {"annotations": {"aliquot.dev/grant": "{}"}, "managedFields": MANAGED}
    status, answer = Webhook().post(with_deep_fields(review_of(pod)))
    assert status == 200
    removed = {"op": "remove", "path": "/metadata/annotations/aliquot.dev~1grant"}
    assert removed in json.loads(base64.b64decode(json.loads(answer)["response"]["patch"]))


@pytest.mark.parametrize("where", ["annotations", "limits"])
def test_answer_of_a_review_steers_no_terminal(where: str) -> None:
    text = "\x1b]0;x\x07\x1b[2J\r\u202e"
    pod = asking({QGPU_CORE: text if where == "limits" else 30, QGPU_MEMORY: 4})
    pod["metadata"] |= {"annotations": {"tke.cloud.tencent.com/app-class": text}}
    status, answer = Webhook().post(json.dumps(review_of(pod)).encode())
    refused = json.loads(answer)["response"]["status"]
    assert status == 200
    assert refused["message"].isprintable()
    assert all(
        cause["field"].isprintable() and cause["message"].isprintable() for cause in refused["details"]["causes"]
    )
