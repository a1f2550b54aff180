"""Requests that are not HTTP get an answer and no log line; our own errors are logged."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl

import pytest
from aiohttp import web

from aliquot.services.daemon import http
from aliquot.services.daemon.http import Limits, listen, make_runner, serve_limited
from kit.running.httpvisits import QUESTION, contexts, visitor


async def _broken(request: web.Request) -> web.Response:
    raise RuntimeError("ours")


async def _empty(request: web.Request) -> web.Response:
    return web.Response()


def answers(*requests: bytes) -> list[bytes]:
    """The first line of each answer."""

    async def scenario() -> list[bytes]:
        app = web.Application()
        app.router.add_get("/broken", _broken)
        runner = make_runner(app, Limits(8))
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            lines = []
            for request in requests:
                reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
                writer.write(request)
                lines.append(await reader.readline())
                writer.close()
                await writer.wait_closed()
            return lines
        finally:
            await runner.cleanup()

    return asyncio.run(scenario())


def test_malformed_http_is_answered_400_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        lines = answers(
            b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n"
        )
    assert {line.split(b" ")[1] for line in lines} == {b"400"}
    assert caplog.records == []


@pytest.mark.parametrize(
    "sent",
    [
        b"Content-Encoding: gzip\r\nContent-Length: 10\r\n\r\n0123456789",
        b"Content-Encoding: deflate\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nno size\r\n",
        b"Content-Length: 10\r\n\r\nhalf",
    ],
    ids=["gzip", "deflate", "chunk", "half"],
)
def test_unreadable_body_that_no_handler_reads_is_not_logged(caplog: pytest.LogCaptureFixture, sent: bytes) -> None:
    async def scenario() -> None:
        listener, limits, app = socket.create_server(("127.0.0.1", 0)), Limits(4), web.Application()
        app.router.add_get("/", _empty)
        async with serve_limited(make_runner(app, limits), listener, limits):
            async with visitor(listener, b"GET / HTTP/1.1\r\nHost: a\r\n" + sent) as reader:
                await asyncio.wait_for(reader.readline(), 60)
            async with visitor(listener, QUESTION) as reader:
                assert await asyncio.wait_for(reader.readline(), 60) == b"HTTP/1.1 200 OK\r\n"

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    assert caplog.records == []


def test_an_error_of_a_handler_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    (lines,) = answers(b"GET /broken HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert b"500" in lines
    assert "RuntimeError: ours" in caplog.text


def test_new_connection_replaces_the_idle_one_that_said_nothing_first() -> None:
    """Silent strangers cannot lock kube-scheduler out, which keeps its connection for an hour."""

    async def scenario() -> list[bytes]:
        listener = socket.create_server(("127.0.0.1", 0))
        limits = Limits(2)
        runner = make_runner(web.Application(), limits)
        async with serve_limited(runner, listener, limits), visitor(listener, QUESTION) as asked:
            line = await asked.readline()
            async with visitor(listener, b"GET / HTTP") as silent, visitor(listener, QUESTION) as third:
                return [line, await third.readline(), await silent.read()]

    assert asyncio.run(scenario()) == [b"HTTP/1.1 404 Not Found\r\n", b"HTTP/1.1 404 Not Found\r\n", b""]


def test_connection_is_closed_while_all_others_are_busy() -> None:
    async def scenario() -> tuple[bytes, bytes]:
        listener, busy, done = socket.create_server(("127.0.0.1", 0)), asyncio.Event(), asyncio.Event()

        async def slow(request: web.Request) -> web.Response:
            busy.set()
            await done.wait()
            return web.Response()

        limits, app = Limits(1), web.Application()
        app.router.add_get("/", slow)
        serving = serve_limited(make_runner(app, limits), listener, limits)
        async with serving, visitor(listener, QUESTION) as first:
            await busy.wait()
            async with visitor(listener, QUESTION) as second:
                refused = await _rest(second)
            done.set()
            return await first.readline(), refused

    assert asyncio.run(scenario()) == (b"HTTP/1.1 200 OK\r\n", b"")


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
@pytest.mark.parametrize("caller", ["127.0.0.1", "::1"])
def test_all_addresses_are_those_of_both_families(address: str, caller: str) -> None:
    """The Pods of an IPv6-only cluster are probed and called at IPv6 addresses, those of others at IPv4 ones."""
    with http.bind_port(address, 0) as listener:
        socket.create_connection((caller, listener.getsockname()[1]), timeout=10).close()


def test_all_addresses_are_those_of_ipv4_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with http.bind_port("0.0.0.0", 0) as listener:
        assert listener.family is socket.AF_INET


@pytest.mark.parametrize("encrypted", [True, False])
def test_silent_connections_are_bounded_from_accept_on(monkeypatch: pytest.MonkeyPatch, encrypted: bool) -> None:
    """Each that waits for a handshake takes 256 KiB. Those with a request stay, and a newcomer still gets in."""
    monkeypatch.setattr(http, "_HANDSHAKE", 3600.0)
    served, trusting = contexts() if encrypted else (None, None)
    most, strangers = 4, 60

    async def scenario() -> list[bytes]:
        listener, limits = http.bind_port("127.0.0.1", 0), Limits(most)
        runner = make_runner(web.Application(), limits)
        await runner.setup()
        accepting = listen(runner, listener, limits, tls=served)
        silent = [socket.create_connection(listener.getsockname()) for _ in range(strangers)]
        ended = [asyncio.get_running_loop().create_task(_ends(one)) for one in silent]
        lines = []
        try:
            async with asyncio.timeout(60), contextlib.AsyncExitStack() as visitors:
                while sum(one.done() for one in ended) < strangers - most:
                    await asyncio.sleep(0.01)
                for _ in range(3):  # the second and third find those before idle
                    reader = await visitors.enter_async_context(visitor(listener, QUESTION, trusting))
                    lines.append(await reader.readline())
                while sum(one.done() for one in ended) < strangers - most + 3:
                    await asyncio.sleep(0.01)
        finally:
            for waiting in ended:
                waiting.cancel()
            await asyncio.gather(*ended, return_exceptions=True)
            accepting.close()
            await runner.cleanup()
            for one in silent:
                one.close()
        return lines

    assert asyncio.run(scenario()) == [b"HTTP/1.1 404 Not Found\r\n"] * 3


def test_connection_that_is_replaced_ends_at_once_though_its_peer_does_not_answer() -> None:
    """The end of TLS waits for the peer's part of it, for as long as 30 s: meanwhile it would hold its place."""
    served, trusting = contexts()

    async def scenario() -> int:
        listener, limits = http.bind_port("127.0.0.1", 0), Limits(2)
        runner = make_runner(web.Application(), limits)
        await runner.setup()
        assert runner.server is not None
        accepting = listen(runner, listener, limits, tls=served)
        largest, deaf = 0, []
        try:
            for _ in range(6):
                one = await asyncio.to_thread(_deaf_client, listener.getsockname(), trusting)
                deaf.append(one)
                await asyncio.sleep(0.01)
                largest = max(largest, len(runner.server.connections))
        finally:
            accepting.close()
            for one in deaf:
                one.close()
            await runner.cleanup()
        return largest

    assert asyncio.run(scenario()) == 2


def test_connection_cancelled_as_its_handshake_ends_leaves_nothing_to_the_loop() -> None:
    """Its socket was closed under its transport, which would have removed the reader of the next with that number."""
    served, client = contexts()

    async def scenario() -> bool:
        loop, limits = asyncio.get_running_loop(), Limits(4)
        runner = make_runner(web.Application(), limits)
        await runner.setup()
        cancelled = asyncio.Event()

        class Cancelled(asyncio.Protocol):
            transport: asyncio.BaseTransport | None = None

            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                self.transport = transport
                next(iter(limits._joining)).cancel()
                cancelled.set()

        class Cancelling:
            connections = ()

            def __call__(self) -> asyncio.BaseProtocol:
                return Cancelled()

        listener = http.bind_port("127.0.0.1", 0)
        accepting = listen(runner, listener, limits, tls=served, server=Cancelling())
        before = set(loop._selector.get_map())  # type: ignore[attr-defined]
        with await asyncio.to_thread(_deaf_client, listener.getsockname(), client):
            await asyncio.wait_for(cancelled.wait(), 60)
            for _ in range(5):
                await asyncio.sleep(0)
            left = set(loop._selector.get_map()) - before  # type: ignore[attr-defined]
        accepting.close()
        await runner.cleanup()
        return not left

    assert asyncio.run(scenario())


def _deaf_client(address: tuple[str, int], context: ssl.SSLContext) -> ssl.SSLSocket:
    """One that has done its handshake, and reads nothing after it."""
    return context.wrap_socket(socket.create_connection(address, timeout=60))


async def _ends(one: socket.socket) -> None:
    """Wait until the server has closed it."""
    one.setblocking(False)
    with contextlib.suppress(ConnectionResetError):
        await asyncio.get_running_loop().sock_recv(one, 1)


async def _rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
