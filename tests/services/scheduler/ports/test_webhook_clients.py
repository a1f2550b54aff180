"""The webhook answers API servers that show a certificate of the wanted authority and name, and nobody else."""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import aiohttp
import pytest

from aliquot.adapters.kubernetes.certificates import Pair, client_context, issue, make_authority, present, trust
from aliquot.dialects import Rules
from aliquot.services.daemon.http import bind_port
from aliquot.services.scheduler.ports import webhook
from aliquot.services.scheduler.ports.webhook import Clients, WebhookSettings, serve_webhook
from kit.clusters.fakeapi import Api
from kit.running.halfopen import half_open

Said = TypeVar("Said")

SECRET = "/api/v1/namespaces/kube-system/secrets/aliquot-webhook-tls"
NOW = time.time()
AUTHORITY, ANOTHER = (make_authority(name, NOW, 86400.0) for name in ("cluster", "another"))


def certificate(name: str, authority: Pair = AUTHORITY) -> Pair:
    return issue(authority, [name], NOW, 3600.0, client=True)


def answered(shown: Pair | None, clients: Clients | None) -> tuple[int, str]:
    """How a review is answered to a caller who shows that certificate."""
    return served(clients, lambda port, api: _sent(port, api, shown))


def served(clients: Clients | None, use: Callable[[int, Api], Awaitable[Said]]) -> Said:
    """What `use` makes of a webhook that is served as the scheduler does."""

    async def scene() -> Said:
        with bind_port("127.0.0.1", 0) as free:
            port = free.getsockname()[1]
        settings = WebhookSettings(port, f"https://127.0.0.1:{port}", bind_address="127.0.0.1", clients=clients)
        api, listening = Api(), asyncio.Event()
        keys: dict[str, Any] = {"is_leader": lambda: True, "on_call": lambda verb: None, "clock": time.time}

        def waits(why: str | None) -> None:
            if why is None:
                listening.set()

        serving = asyncio.create_task(serve_webhook(api.kube, settings, Rules, on_waiting=waits, **keys))
        try:
            async with asyncio.timeout(60):
                await listening.wait()
                return await use(port, api)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    return asyncio.run(scene())


def _trusting(api: Api) -> ssl.SSLContext:
    context = client_context()
    trust(context, base64.b64decode(api.objects[SECRET]["data"]["ca.crt"]))
    return context


async def _sent(port: int, api: Api, shown: Pair | None) -> tuple[int, str]:
    context = _trusting(api)
    if shown is not None:
        present(context, shown)
    url = f"https://127.0.0.1:{port}/review"
    async with aiohttp.ClientSession() as session, session.post(url, data=b"{}", ssl=context) as answer:
        return answer.status, await answer.text()


CLIENTS = Clients(AUTHORITY.certificate, frozenset({"kube-apiserver", "kube-apiserver-2"}))


def test_webhook_answers_the_api_server() -> None:
    status, said = answered(certificate("kube-apiserver"), CLIENTS)
    assert status == 400, "the review is empty, but it was read"
    assert "only the API server" not in said


def test_webhook_without_authority_answers_every_client() -> None:
    assert answered(None, None)[0] == 400


def test_webhook_refuses_another_name_of_the_authority() -> None:
    """Of the cluster's own authority, every kubelet has a certificate."""
    status, said = answered(certificate("system:node:n1"), CLIENTS)
    assert (status, said) == (
        403,
        "only the API server may send reviews: the names of your certificate are not allowed\n",
    )


@pytest.mark.parametrize("shown", [None, certificate("kube-apiserver", ANOTHER)], ids=["none", "another authority"])
def test_webhook_refuses_clients_without_a_certificate_of_the_authority(shown: Pair | None) -> None:
    with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
        answered(shown, CLIENTS)


def test_webhook_closes_a_connection_without_a_review(monkeypatch: pytest.MonkeyPatch) -> None:
    assert webhook._IDLE == 120.0  # longer than the API server keeps its own
    monkeypatch.setattr(webhook, "_IDLE", 0.05)

    async def use(port: int, api: Api) -> list[bytes]:
        tls = _trusting(api)
        async with half_open(port, 1, b"", tls=tls) as silent, half_open(port, 1, tls=tls) as slow:
            return [await reader.read() for reader in (*silent, *slow)]

    assert served(None, use) == [b"", b""]
