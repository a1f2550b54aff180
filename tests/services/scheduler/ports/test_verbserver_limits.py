"""How long and how much the port of the verbs waits for, reads and keeps."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aliquot.services.daemon.http import BodyError
from kit.clusters.verbserver import LARGEST, PATIENCE, Rig, next_answer, post, rest, run
from kit.running.httpvisits import contexts
from kit.running.waiting import until


def test_slow_body_is_given_up() -> None:
    async def scene(rig: Rig) -> bytes:
        return await rig.ask(post(b"abc", length=4))

    answer, rig = run(scene, body_seconds=0.05)
    assert answer.endswith(b"Connection: close\r\n\r\nerror 408")
    assert not rig.limits._arriving


def test_slow_head_is_given_up() -> None:
    async def scene(rig: Rig) -> bytes:
        return await rig.ask(post(b"abc"), b"POST /v HT")

    assert run(scene, body_seconds=0.05)[0].endswith(b"direct 3")


def test_body_beyond_the_limit_is_refused() -> None:
    async def scene(rig: Rig) -> bytes:
        return await rig.ask(post(b"x" * (LARGEST + 1)))

    assert run(scene)[0].endswith(b"error 413")


def test_unfinished_bodies_together_are_bounded() -> None:
    async def scene(rig: Rig) -> list[bytes]:
        async with contextlib.AsyncExitStack() as stack:
            sent = post(b"x" * 30_000, length=40_000)
            visitors = [await stack.enter_async_context(rig.visitor(sent)) for _ in range(6)]
            answers = [await next_answer(reader) for reader, _ in visitors]
        async with rig.visitor(post(b"x" * 90_000)) as (reader, _):
            return [*answers, await next_answer(reader)]

    answers, rig = run(scene, unfinished=100_000, body_seconds=0.5)
    assert set(answers[:-1]) == {b"error 408", b"error 503"}
    assert answers[-1] == b"direct 90000"
    assert not rig.limits._arriving


def test_new_connection_replaces_an_idle_one_and_never_a_busy_one() -> None:
    async def scene(rig: Rig) -> list[bytes]:
        async with rig.visitor(post(b"a", "/slow")) as (busy, _), rig.visitor(post(b"b")) as (idle, _):
            await asyncio.wait_for(rig.slow.wait(), PATIENCE)
            first = await next_answer(idle)
            async with rig.visitor(b"GET /v HTTP/1.1\r\nHost: a\r\n\r\n") as (third, _):
                answers = [first, await next_answer(third), await rest(idle)]
                async with rig.visitor(post(b"d")) as (fourth, _):  # in place of aiohttp's
                    answers += [await next_answer(fourth), await rest(third)]
                rig.go.set()
                return [*answers, await next_answer(busy)]

    assert run(scene, connections=2)[0] == [b"direct 1", b"aiohttp 0", b"", b"direct 1", b"", b"direct 1"]


def test_idle_connection_is_closed() -> None:
    async def scene(rig: Rig) -> list[bytes]:
        return [await rig.ask(), await rig.ask(post(b"abc"))]

    silent, used = run(scene, idle=0.05)[0]
    assert silent == b""
    assert used.endswith(b"direct 3")


def test_connection_is_kept_for_an_hour_only_after_a_request_of_kube_schedulers_form() -> None:
    async def scene(rig: Rig) -> list[bytes]:
        async with rig.visitor(post(b"abc")) as (used, writer):
            first = await next_answer(used)
            silent = await rig.ask()
            await asyncio.sleep(0.2)
            writer.write(post(b"abcd"))
            return [first, silent, await next_answer(used)]

    assert run(scene, idle=60.0, silent=0.05)[0] == [b"direct 3", b"", b"direct 4"]


def test_connection_given_to_aiohttp_is_kept_no_longer_than_those_of_other_ports() -> None:
    """It is not kube-scheduler's, and may have sent half a header."""

    async def scene(rig: Rig) -> float:
        async with rig.visitor(b"GET /v HTTP/1.1\r\nHost: a\r\nX-Slow: "):
            async with asyncio.timeout(PATIENCE):
                while not rig.server.others.connections:
                    await asyncio.sleep(0.01)
            return float(rig.server.others.connections[0]._keepalive_timeout)

    assert run(scene)[0] <= 300.0


@pytest.mark.parametrize("encrypted", [False, True])
def test_requests_of_a_peer_that_does_not_read_wait(encrypted: bool) -> None:
    """Its answers would fill our memory."""
    served, trusting = contexts() if encrypted else (None, None)

    async def scene(rig: Rig) -> int:
        calls = 0

        def large(body: bytes | BodyError) -> bytes:
            nonlocal calls
            calls += 1
            return b"x" * 4_000_000

        rig.server.answers = {b"/v": large}
        async with rig.visitor(post() * 10, trusting) as (reader, _):
            async with rig.visitor(post(), trusting) as (other, _):
                await next_answer(other)  # served meanwhile
            before = calls
            for _ in range(10):
                await next_answer(reader)
        return before

    assert run(scene, tls=served)[0] < 5


@pytest.mark.parametrize("encrypted", [False, True])
def test_peer_that_does_not_read_its_answer_is_disconnected(encrypted: bool) -> None:
    """With TLS an answer counted as sent as soon as it was encrypted, and stayed in memory for an hour."""
    served, trusting = contexts() if encrypted else (None, None)

    async def scene(rig: Rig) -> None:
        rig.server.answers = {b"/v": lambda _: b"x" * 32_000_000}
        async with deaf(rig, trusting):
            await until(lambda: bool(rig.server.own))
            await until(lambda: not rig.server.own)

    run(scene, tls=served, read_seconds=0.1)


@contextlib.asynccontextmanager
async def deaf(rig: Rig, trusting: ssl.SSLContext | None) -> AsyncIterator[socket.socket]:
    """A client that asks, and does not read."""

    def ask() -> socket.socket:
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.connect(rig.address)
        client = plain if trusting is None else trusting.wrap_socket(plain)
        client.sendall(post())
        return client

    client = await asyncio.to_thread(ask)
    try:
        yield client
    finally:
        client.close()


@pytest.mark.parametrize("encrypted", [False, True])
def test_unread_answers_are_bounded_in_total_and_readers_are_served(encrypted: bool) -> None:
    """A caller on loopback, or with the client certificate, had an answer kept for each of its 512 connections."""
    served, trusting = contexts() if encrypted else (None, None)
    size = 8_000_000

    async def scene(rig: Rig) -> None:
        rig.server.answers = {b"/v": lambda _: b"x" * size}
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(6):
                await stack.enter_async_context(deaf(rig, trusting))
            await until(lambda: len(rig.server.own) == 2)
            async with rig.visitor(post(), trusting) as (reader, _):
                assert await next_answer(reader) == b"x" * size

    run(scene, tls=served, unread=20_000_000, read_seconds=1000.0)


def test_connection_with_tls_that_was_closed_twice_raises_nothing() -> None:
    """asyncio's transport then raises AttributeError where it is asked for its buffer, or aborted."""
    served, trusting = contexts()
    errors: list[Any] = []

    async def scene(rig: Rig) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        rig.server.answers = {b"/v": lambda _: b"x" * 8_000_000}
        async with deaf(rig, trusting):
            await until(lambda: bool(rig.limits._unread))
            (connection,) = rig.server.own
            assert connection.transport is not None
            connection.transport.close()
            connection.transport.close()
            await asyncio.sleep(0.3)
            connection.force_close()
            rig.limits.sending(asyncio.Transport(), 1 << 40)

    run(scene, tls=served, read_seconds=0.2)
    assert errors == []
