"""The webhook: its HTTP answers to any input; its keys and configuration with concurrent writers."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.adapters.kubernetes.certificates import read_facts, signed_by, split
from aliquot.adapters.kubernetes.kube import ApiError, Unreachable
from aliquot.dialects import Rules
from aliquot.dialects.wire.admission import AdmissionSettings
from aliquot.dialects.wire.webhooks import ServiceRef
from aliquot.services.daemon.http import make_runner
from aliquot.services.scheduler.certrotation import Lifetimes
from aliquot.services.scheduler.webhook import WebhookKeys, WebhookSettings, review_app, sleep_unless_elected
from kit.fakeapi import Api, Clock, forbidden
from kit.manifests import QGPU_CORE, QGPU_MEMORY, asking
from kit.virtualclock import play

Json = dict[str, Any]
SECRETS = "/api/v1/namespaces/kube-system/secrets"
SECRET = f"{SECRETS}/aliquot-webhook-tls"
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/aliquot"
DAY = 86400.0


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

    def __init__(self) -> None:
        self.calls: list[str] = []

    def ask(self, use: Callable[[aiohttp.ClientSession], Awaitable[Any]]) -> Any:
        async def scenario() -> Any:
            runner = make_runner(review_app(Rules, AdmissionSettings(), self.calls.append))
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


@pytest.mark.parametrize("path", ["/review", "/mutate"])
def test_review_is_answered_and_counted(path: str) -> None:
    webhook = Webhook()
    status, text = webhook.post(json.dumps(review_of(asking({QGPU_MEMORY: 4}))).encode(), path)
    response = json.loads(text)["response"]
    assert (status, response["uid"], response["allowed"]) == (200, "u-1", True)
    assert webhook.calls == ["review"]


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


# Keys.


class Rig:
    """WebhookKeys over a fake API."""

    def __init__(self, api: Api | None = None, *, leader: bool = True, listening: bool = True, **more: Any) -> None:
        self.api, self.clock, self.leader = api or Api(), Clock(), leader
        more.setdefault("where", ServiceRef("kube-system", "aliquot-webhook"))
        self.settings = WebhookSettings(port=0, lifetimes=Lifetimes(authority=90 * DAY, certificate=9 * DAY), **more)
        self.keys = WebhookKeys(self.api.kube, self.settings, is_leader=lambda: self.leader, clock=self.clock)
        self.keys.listening = listening

    def step(self, after: float = 0.0) -> float:
        self.clock.sleep(after)
        return asyncio.run(self.keys.step())

    def kept(self, key: str) -> bytes:
        return base64.b64decode(self.api.objects[SECRET]["data"][key])

    def bundle(self) -> bytes:
        (bundle,) = {entry["clientConfig"]["caBundle"] for entry in self.api.objects[CONFIGURATION]["webhooks"]}
        return base64.b64decode(bundle)


def writes(api: Api) -> int:
    return sum(verb != "get" for verb, _, _ in api.calls)


def test_leader_creates_keys_and_configures_api_server() -> None:
    rig = Rig()
    assert rig.step() == 30.0
    assert rig.api.objects[SECRET]["type"] == "kubernetes.io/tls"
    assert read_facts(rig.kept("tls.crt")).names == {
        "aliquot-webhook.kube-system.svc",
        "aliquot-webhook.kube-system.svc.cluster.local",
    }
    assert signed_by(rig.kept("tls.crt"), rig.kept("ca.crt"))
    assert rig.bundle() == rig.kept("ca.crt")


def test_api_server_is_configured_only_when_listening() -> None:
    rig = Rig(listening=False)
    rig.step()
    assert SECRET in rig.api.objects
    assert CONFIGURATION not in rig.api.objects


def test_repeated_steps_write_nothing() -> None:
    rig = Rig()
    rig.step()
    before = writes(rig.api)
    for _ in range(10):
        rig.step(after=30)
    assert writes(rig.api) == before


def test_replica_presents_shared_certificate_without_writes() -> None:
    leader = Rig()
    leader.step()
    before = writes(leader.api)
    other = Rig(leader.api, leader=False)
    other.step()
    assert other.keys.keys == leader.keys.keys
    assert writes(leader.api) == before


def test_replica_waits_for_leader_to_create_keys() -> None:
    rig = Rig(leader=False)
    assert rig.step() == 1.0
    assert rig.keys.keys is None
    assert writes(rig.api) == 0


def test_concurrent_key_creation_uses_first_keys() -> None:
    one = Rig()
    two = Rig(one.api)
    first_look = iter([ApiError(404, "NotFound", "no such secret")])
    one.step()
    one.api.refuse = lambda verb, path: next(first_look, None) if (verb, path) == ("get", SECRET) else None
    assert two.step() == 1.0
    two.step()
    assert two.keys.keys == one.keys.keys


def test_certificate_is_saved_before_it_is_presented() -> None:
    rig = Rig()
    rig.step()
    first = rig.keys.keys
    rig.step(after=6 * DAY)
    assert rig.keys.keys != first
    assert rig.keys.keys is not None
    assert rig.kept("tls.crt") == rig.keys.keys.serving.certificate
    assert [body["metadata"]["resourceVersion"] for path, body, *_ in rig.api.sent("patch") if path == SECRET]


def test_new_leader_checks_webhook_at_once() -> None:
    """The previous leader may serve other dialects and have configured the API server accordingly."""

    async def slept(leads_from: float, *, pause: float = 30.0) -> float:
        clock = asyncio.get_running_loop().time
        began = clock()
        await sleep_unless_elected(pause, lambda: clock() - began >= leads_from)
        return clock() - began

    assert play(slept(7.0)) == 7.0
    assert play(slept(100.0)) == 30.0
    assert play(slept(0.0)) == 30.0, "it leads already"
    assert play(slept(100.0, pause=0.0)) == 0.0


def test_empty_secret_of_chart_is_filled_and_keeps_labels(caplog: pytest.LogCaptureFixture) -> None:
    metadata = {"name": "aliquot-webhook-tls", "labels": {"by": "helm"}, "resourceVersion": "1"}
    rig = Rig(Api({SECRET: {"metadata": metadata, "type": "Opaque"}}))
    rig.step()
    assert rig.keys.keys is not None
    assert rig.kept("tls.crt") == rig.keys.keys.serving.certificate
    assert (rig.api.objects[SECRET]["type"], rig.api.objects[SECRET]["metadata"]["labels"]) == (
        "Opaque",
        {"by": "helm"},
    )
    assert "webhook_degraded" not in caplog.text


def test_new_authority_is_added_to_bundle() -> None:
    rig = Rig()
    rig.step()
    old = rig.bundle()
    rig.step(after=60 * DAY)  # the certificate has expired meanwhile: it is renewed first
    rig.step()
    assert len(split(rig.bundle())) == 2
    assert old in rig.bundle()


def test_foreign_secret_is_not_modified() -> None:
    rig = Rig()
    rig.step()
    del rig.api.objects[SECRET]["data"]["ca.key"]
    before = writes(rig.api)
    rig.step(after=8 * DAY)
    assert writes(rig.api) == before


def test_secret_without_keys_is_filled() -> None:
    rig = Rig()
    rig.api.objects[SECRET] = {"metadata": {"name": "aliquot-webhook-tls", "resourceVersion": "3"}, "data": {"a": "!"}}
    rig.step()
    assert rig.keys.keys is not None
    assert rig.kept("tls.crt") == rig.keys.keys.serving.certificate


# The configuration.


def test_changed_configuration_is_repaired() -> None:
    rig = Rig()
    rig.step()
    rig.api.objects[CONFIGURATION]["webhooks"][-1]["clientConfig"]["caBundle"] = ""
    rig.step(after=30)
    assert rig.bundle() == rig.kept("ca.crt")


def test_additions_of_api_server_are_kept() -> None:
    rig = Rig()
    rig.step()
    before = writes(rig.api)
    rig.api.objects[CONFIGURATION]["webhooks"][0]["matchConditions"].append({"name": "another's", "expression": "true"})
    rig.step(after=30)
    assert writes(rig.api) == before


# Missing permissions, unreachable API server.


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Why the webhook is degraded, as logged."""
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert {record.message for record in records} <= {"webhook_degraded"}
    return [vars(record)["data"]["why"] for record in records]


def test_role_without_secret_read_uses_own_keys(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.api.refuse = forbidden(inside="/secrets")
    with caplog.at_level(logging.WARNING):
        rig.step()
        first = rig.keys.keys
        rig.step(after=30)
    assert first is not None
    assert rig.keys.keys is first
    assert rig.bundle() == first.trusted
    assert warnings(caplog) == [
        "the replicas cannot share their keys: the role lacks get on secrets (aliquot-webhook-tls)"
    ]


def test_role_without_secret_write_uses_own_keys(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.api.refuse = forbidden("create", "/secrets")
    rig.step()
    first = rig.keys.keys
    rig.step(after=30)
    assert first is not None
    assert rig.keys.keys == first
    assert "the role lacks create on secrets" in warnings(caplog)[0]


def test_role_without_webhook_configuration_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.api.refuse = forbidden("patch", "mutatingwebhookconfigurations")
    for _ in range(3):
        rig.step(after=30)
    assert rig.keys.keys is not None
    assert warnings(caplog) == [
        "the webhook cannot be configured: the role lacks create and patch on "
        "mutatingwebhookconfigurations.admissionregistration.k8s.io (aliquot)"
    ]


def test_unreachable_api_server_is_retried_and_keys_stay() -> None:
    rig = Rig()
    rig.step()
    rig.api.refuse = lambda verb, path: Unreachable("refused")
    assert [rig.step() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert rig.keys.keys is not None
