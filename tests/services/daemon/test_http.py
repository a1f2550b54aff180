"""What is no HTTP is answered, and the log stays quiet; what breaks inside of us is told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator
from functools import partial

import pytest
from aiohttp import web

from aliquot.adapters.kubernetes.certificates import (
    client_context,
    issue,
    make_authority,
    present,
    server_context,
    trust,
)
from aliquot.services.daemon import http
from aliquot.services.daemon.http import BodyError, Limits, listen, make_runner, serve_limited
from kit.running.waiting import until

_QUESTION = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


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
def test_body_that_nobody_asked_for_and_that_cannot_be_read_is_not_logged(
    caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    async def scenario() -> None:
        listener, limits, app = socket.create_server(("127.0.0.1", 0)), Limits(4), web.Application()
        app.router.add_get("/", _empty)
        async with serve_limited(make_runner(app, limits), listener, limits):
            async with visitor(listener, b"GET / HTTP/1.1\r\nHost: a\r\n" + sent) as reader:
                await asyncio.wait_for(reader.readline(), 60)
            async with visitor(listener, _QUESTION) as reader:
                assert await asyncio.wait_for(reader.readline(), 60) == b"HTTP/1.1 200 OK\r\n"

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    assert caplog.records == []


def test_an_error_of_a_handler_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    (lines,) = answers(b"GET /broken HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert b"500" in lines
    assert "RuntimeError: ours" in caplog.text


@contextlib.asynccontextmanager
async def visitor(
    listener: socket.socket, sent: bytes, tls: ssl.SSLContext | None = None
) -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection(*listener.getsockname(), ssl=tls)
    writer.write(sent)
    try:
        yield reader
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def test_new_connection_replaces_the_idle_one_that_said_nothing_first() -> None:
    """Silent strangers cannot lock kube-scheduler out, which keeps its connection for an hour."""

    async def scenario() -> list[bytes]:
        listener = socket.create_server(("127.0.0.1", 0))
        limits = Limits(2)
        runner = make_runner(web.Application(), limits)
        async with serve_limited(runner, listener, limits), visitor(listener, _QUESTION) as asked:
            line = await asked.readline()
            async with visitor(listener, b"GET / HTTP") as silent, visitor(listener, _QUESTION) as third:
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
        async with serving, visitor(listener, _QUESTION) as first:
            await busy.wait()
            async with visitor(listener, _QUESTION) as second:
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
                    reader = await visitors.enter_async_context(visitor(listener, _QUESTION, trusting))
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


def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server, and of a client that trusts it."""
    authority = make_authority("ours", time.time(), 3600.0)
    served, trusting = server_context(), client_context()
    present(served, issue(authority, ["localhost"], time.time(), 3600.0))
    trust(trusting, authority.certificate)
    trusting.check_hostname = False
    return served, trusting


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


def posted(*bodies: bytes, limits: Limits, most: int = 1 << 20) -> list[bytes]:
    """The first lines of the answers to these POSTs, each sent before the first is answered."""

    async def read(request: web.Request) -> web.Response:
        try:
            return web.Response(text=str(len(await limits.read_body(request, most))))
        except BodyError as error:
            answer = web.Response(status=error.status, text=str(error))
            answer.force_close()
            return answer

    async def scenario() -> list[bytes]:
        listener, app = socket.create_server(("127.0.0.1", 0)), web.Application()
        app.router.add_post("/", read)
        runner = make_runner(app, limits)
        await runner.setup()
        accepting = listen(runner, listener, limits)
        try:
            async with contextlib.AsyncExitStack() as stack:
                readers = [await stack.enter_async_context(visitor(listener, body)) for body in bodies]
                return [await asyncio.wait_for(reader.readline(), 60) for reader in readers]
        finally:
            accepting.close()
            await runner.cleanup()

    return asyncio.run(scenario())


def post(sent: int, claimed: int | None = None) -> bytes:
    head = f"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {sent if claimed is None else claimed}\r\n\r\n"
    return head.encode() + b"x" * sent


def test_body_that_does_not_arrive_is_given_up() -> None:
    (line,) = posted(post(10, claimed=11), limits=Limits(4, unfinished=1 << 20, body_seconds=0.05))
    assert b"408" in line


def test_body_beyond_the_limit_is_refused() -> None:
    lines = posted(post(1000), post(1001), limits=Limits(4, unfinished=1 << 20), most=1000)
    assert [line.split()[1] for line in lines] == [b"200", b"413"]


def test_unfinished_bodies_together_are_bounded() -> None:
    """Bodies that never end must not fill the memory; those that fit are read as soon as the others are gone."""
    limits = Limits(8, unfinished=100_000, body_seconds=0.5)
    stuck = [post(30_000, claimed=40_000)] * 6
    lines = posted(*stuck, limits=limits)
    assert {line.split()[1] for line in lines} == {b"408", b"503"}
    assert posted(post(90_000), limits=limits)[0].split()[1] == b"200"


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: a\r\nX-Slow: "])
def test_keepalive_closes_a_connection_with_an_unfinished_request(sent: bytes) -> None:
    async def scenario() -> bytes:
        listener, limits = socket.create_server(("127.0.0.1", 0)), Limits(2)
        runner = make_runner(web.Application(), limits, keepalive=0.05)
        async with serve_limited(runner, listener, limits), visitor(listener, sent) as reader:
            return await asyncio.wait_for(reader.read(), 10)

    assert asyncio.run(scenario()) == b""


ANSWER = 4 << 20


@contextlib.asynccontextmanager
async def large_answers(limits: Limits, served: ssl.SSLContext | None = None) -> AsyncIterator[socket.socket]:
    """A server whose answers do not fit into the buffers of the kernel, and the socket where it listens."""
    listener, app = socket.create_server(("127.0.0.1", 0)), web.Application()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)

    async def large(request: web.Request) -> web.Response:
        return web.Response(body=bytes(ANSWER))

    app.router.add_get("/", large)
    runner = make_runner(app, limits)
    await runner.setup()
    accepting = listen(runner, listener, limits, tls=served)
    try:
        yield listener
    finally:
        accepting.close()
        await runner.cleanup()


def silent_reader(listener: socket.socket, requests: int, buffer: int = 4096) -> socket.socket:
    """Asks, and does not read."""
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    reader.connect(listener.getsockname())
    reader.sendall(_QUESTION * requests)
    return reader


def test_answers_that_nobody_reads_together_are_bounded_and_who_reads_is_served() -> None:
    """128 connections to a port without a token took an answer each, for ever."""

    async def scenario() -> None:
        limits = Limits(64, unread=4 * ANSWER)
        async with large_answers(limits) as listener:
            readers = []
            for _ in range(32):
                readers.append(silent_reader(listener, requests=3))
                await asyncio.sleep(0.01)
                assert sum(limits._unread.values()) <= 4 * ANSWER
            async with visitor(listener, _QUESTION) as reader:
                async with asyncio.timeout(60):
                    head = await reader.readuntil(b"\r\n\r\n")
                    assert head.startswith(b"HTTP/1.1 200")
                    assert len(await reader.readexactly(ANSWER)) == ANSWER
            for each in readers:
                each.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("encrypted", [True, False])
def test_answer_that_is_not_read_counts_until_it_is_or_the_connection_is_closed(encrypted: bool) -> None:
    """With TLS a large answer counted as sent as soon as it was encrypted: nothing limited how many of them wait."""
    served, trusting = contexts() if encrypted else (None, None)

    def deaf(listener: socket.socket) -> socket.socket:
        raw = silent_reader(listener, requests=0)
        one = raw if trusting is None else trusting.wrap_socket(raw)
        one.sendall(_QUESTION)
        return one

    async def scenario() -> None:
        limits = Limits(64, unread=2 * ANSWER)
        async with large_answers(limits, served) as listener:
            seen: list[asyncio.Transport] = []
            readers = []
            for _ in range(4):
                readers.append(await asyncio.to_thread(deaf, listener))
                await until(partial(lambda already: len({*limits._unread, *seen}) > already, len(seen)))
                seen.extend(transport for transport in limits._unread if transport not in seen)
            await asyncio.sleep(0.2)
            assert [*limits._unread] == seen[2:]
            assert [transport.is_closing() for transport in seen] == [True, True, False, False]
            assert all(transport.get_write_buffer_size() < 1 << 18 for transport in seen[2:])
            async with visitor(listener, _QUESTION, trusting) as reader, asyncio.timeout(60):
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
                assert await reader.readexactly(ANSWER) == bytes(ANSWER)
            for each in readers:
                each.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("encrypted", [True, False])
def test_who_reads_nothing_is_closed_on_each_kind_of_port(encrypted: bool) -> None:
    served, trusting = contexts() if encrypted else (None, None)

    async def scenario() -> None:
        limits = Limits(64, read_seconds=0.4)
        async with large_answers(limits, served) as listener:
            one = await asyncio.to_thread(silent_reader, listener, 0)
            if trusting is not None:
                one = await asyncio.to_thread(trusting.wrap_socket, one)
            one.sendall(_QUESTION)
            await until(lambda: bool(limits._unread))
            (transport,) = limits._unread
            await asyncio.sleep(0.1)
            assert not transport.is_closing()
            await until(lambda: not limits._unread)
            assert transport.is_closing()
            one.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_large_answers_follow_each_other_on_one_connection(method: str) -> None:
    async def scenario() -> None:
        async with (
            large_answers(Limits(4)) as listener,
            visitor(listener, _QUESTION.replace(b"GET", method.encode()) * 2) as reader,
            asyncio.timeout(60),
        ):
            for _ in range(2):
                head = await reader.readuntil(b"\r\n\r\n")
                assert f"Content-Length: {ANSWER}".encode() in head
                if method == "GET":
                    assert await reader.readexactly(ANSWER) == bytes(ANSWER)

    asyncio.run(scenario())


def test_connection_that_does_not_read_its_answer_is_closed_and_a_slow_one_is_not() -> None:
    async def scenario() -> None:
        limits = Limits(64, read_seconds=0.4)
        async with large_answers(limits) as listener:
            with silent_reader(listener, requests=1), silent_reader(listener, requests=1, buffer=1 << 17) as slow:
                slow.setblocking(False)
                received, loop = 0, asyncio.get_running_loop()
                while received < ANSWER:
                    received += len(await asyncio.wait_for(loop.sock_recv(slow, 65536), 60))
                    await asyncio.sleep(0.02)  # a second and a half in all
                async with asyncio.timeout(60):
                    while limits._unread:
                        await asyncio.sleep(0.01)

    asyncio.run(scenario())
