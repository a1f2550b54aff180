"""The port with mutual TLS: only holders of the client certificate get in, and the replicas share one Secret."""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from aliquot.adapters.kubernetes.certificates import Pair, client_context, present, read_facts, signed_by, split, trust
from aliquot.adapters.kubernetes.kube import ApiError
from aliquot.services.daemon.http import Accepting, Limits, bind_port, listen, make_runner
from aliquot.services.scheduler.ports.certrotation import Keys, Lifetimes, renewed
from aliquot.services.scheduler.ports.verbstls import VerbsKeys, VerbsTls, serve_verbs
from kit.clusters.fakeapi import Api, Clock, forbidden

SECRET = "/api/v1/namespaces/kube-system/secrets/aliquot-extender-tls"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/aliquot-scheduler"
DAY = 86400.0
NOW = 1_800_000_000.0


def verbs_keys(api: Api, clock: Clock | None = None) -> VerbsKeys:
    return VerbsKeys(api.kube, VerbsTls(port=0), clock=clock or Clock())


def step(keys: VerbsKeys) -> float:
    return asyncio.run(keys.step())


def test_every_replica_may_create_keys_and_all_use_the_first() -> None:
    api = Api()
    one, two = verbs_keys(api), verbs_keys(api)
    step(one)
    step(two)
    assert one.keys is not None
    assert one.keys == two.keys
    assert read_facts(one.keys.serving.certificate).names == {
        "aliquot-scheduler",
        "aliquot-scheduler.kube-system.svc",
        "aliquot-scheduler.kube-system.svc.cluster.local",
    }
    client = base64.b64decode(api.objects[SECRET]["data"]["client.crt"])
    assert signed_by(client, one.keys.trusted)
    assert set(api.objects[SECRET]["data"]) == {"ca.crt", "ca.key", "tls.crt", "tls.key", "client.crt", "client.key"}


def test_lost_secret_gets_the_same_keys_and_the_marks_of_the_lease() -> None:
    helm = {"labels": {"managed-by": "Helm"}, "annotations": {"meta.helm.sh/release-name": "aliquot"}}
    api = Api({LEASE: {"metadata": {"name": "aliquot-scheduler", **helm}}})
    keys = verbs_keys(api)
    step(keys)
    before = keys.keys
    del api.objects[SECRET]
    step(keys)
    assert keys.keys == before
    assert api.objects[SECRET]["metadata"]["annotations"] == helm["annotations"]


def test_without_the_right_to_the_secret_the_port_waits_and_says_so() -> None:
    api = Api()
    api.refuse = forbidden(inside="/secrets")
    keys = verbs_keys(api)
    step(keys)
    assert keys.keys is None
    assert keys.waiting == "the role lacks get on secrets (aliquot-extender-tls)"


# --- renewal ---------------------------------------------------------------------------------------------------------

LIVES = Lifetimes(authority=90 * DAY, certificate=9 * DAY, known=DAY, client=90 * DAY)


def made(keys: Keys | None, now: float) -> Keys:
    return renewed(keys, ("s",), now, LIVES, for_clients=True)


def test_client_certificate_outlives_many_server_certificates() -> None:
    """People copy it to control planes."""
    first = keys = made(None, NOW)
    now = NOW
    while now < NOW + 58 * DAY:
        now += 3 * DAY
        keys = made(keys, now)
    assert keys.serving != first.serving
    assert keys.client == first.client


def test_client_certificate_always_has_a_trusted_authority_and_renewal_ends() -> None:
    keys, now = made(None, NOW), NOW
    while now < NOW + 400 * DAY:
        now += DAY / 2
        for _ in range(3):  # an authority, a certificate and a client's may be due at once
            keys = made(keys, now)
        assert made(keys, now) is keys
        assert keys.client is not None
        assert read_facts(keys.client.certificate).ends > now
        assert any(signed_by(keys.client.certificate, part) for part in split(keys.trusted))


@pytest.mark.parametrize("damage", [b"", b"no certificate"])
def test_damaged_client_certificate_is_replaced_alone(damage: bytes) -> None:
    keys = made(None, NOW)
    assert keys.client is not None
    after = made(replace(keys, client=Pair(damage, keys.client.key)), NOW)
    assert after.client != keys.client
    assert (after.authority, after.serving, after.trusted) == (keys.authority, keys.serving, keys.trusted)


# --- who gets in -----------------------------------------------------------------------------------------------------


def called(caller: Any) -> Any:
    """What `caller` gets from the port; it is handed the keys and the URL."""

    async def hello(request: web.Request) -> web.Response:
        return web.Response(text="in")

    async def scene() -> Any:
        keys, limits, app = VerbsKeys(Api().kube, VerbsTls(port=0), clock=time.time), Limits(10), web.Application()
        app.router.add_get("/", hello)
        runner = make_runner(app, limits)
        await runner.setup()
        listener, started = bind_port("127.0.0.1", 0), asyncio.Event()

        def start(keys: VerbsKeys) -> Accepting:
            return listen(runner, listener, limits, tls=keys.context)

        def waiting(why: str | None) -> None:
            if why is None:
                started.set()

        serving = asyncio.create_task(serve_verbs(keys, start, on_waiting=waiting))
        try:
            async with asyncio.timeout(60):
                await started.wait()
                return await caller(keys, f"https://127.0.0.1:{listener.getsockname()[1]}/")
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            await runner.cleanup()

    return asyncio.run(scene())


async def get(url: str, context: ssl.SSLContext) -> str:
    name = "aliquot-scheduler"
    async with aiohttp.ClientSession() as session, session.get(url, ssl=context, server_hostname=name) as answer:
        return await answer.text()


def test_port_waits_without_a_reason_until_it_listens() -> None:
    """Another replica was faster to write the keys: ours are read a second later, and only then the port listens."""

    async def scene() -> list[str | None]:
        api, announced, listens = Api(), list[str | None](), asyncio.Event()
        keys = VerbsKeys(api.kube, VerbsTls(port=0), clock=time.time)
        refused = iter([ApiError(409, "Conflict", "another was faster")])
        api.refuse = lambda verb, path: next(refused, None) if verb == "patch" else None
        listener, limits = bind_port("127.0.0.1", 0), Limits(10)
        runner = make_runner(web.Application(), limits)
        await runner.setup()

        def waiting(why: str | None) -> None:
            announced.append(why)
            if why is None:
                listens.set()

        serving = asyncio.create_task(
            serve_verbs(keys, lambda keys: listen(runner, listener, limits, tls=keys.context), on_waiting=waiting)
        )
        async with asyncio.timeout(60):
            await listens.wait()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await runner.cleanup()
        return announced

    assert asyncio.run(scene()) == ["", None, ""]


def test_other_replica_gets_in() -> None:
    async def caller(keys: VerbsKeys, url: str) -> str:
        return await get(url, keys.peers)

    assert called(caller) == "in"


@pytest.mark.parametrize("who", ["nobody", "the server itself", "another authority's client"])
def test_caller_without_our_client_certificate_is_refused(who: str) -> None:
    async def caller(keys: VerbsKeys, url: str) -> str:
        context = client_context()
        assert keys.keys is not None
        trust(context, keys.keys.trusted)
        if who == "the server itself":
            present(context, keys.keys.serving)
        elif who != "nobody":
            stranger = renewed(None, ("x",), time.time(), Lifetimes(), for_clients=True).client
            assert stranger is not None
            present(context, stranger)
        return await get(url, context)

    with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
        called(caller)


def test_plain_http_is_refused() -> None:
    async def caller(keys: VerbsKeys, url: str) -> str:
        async with aiohttp.ClientSession() as session, session.get(url.replace("https", "http")) as answer:
            return await answer.text()

    with pytest.raises((aiohttp.ClientError, ConnectionError)):
        called(caller)
