"""Bodies that do not arrive, and answers that clients do not read: our ports keep a bounded part of them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from functools import partial

import pytest
from aiohttp import web

from aliquot.services.daemon.http import BodyError, Limits, listen, make_runner, serve_limited
from kit.running.httpvisits import QUESTION, contexts, visitor
from kit.running.waiting import until


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
    reader.sendall(QUESTION * requests)
    return reader


def test_unread_answers_are_bounded_in_total_and_readers_are_served() -> None:
    """128 connections to a port without a token took an answer each, for ever."""

    async def scenario() -> None:
        limits = Limits(64, unread=4 * ANSWER)
        async with large_answers(limits) as listener:
            readers = []
            for _ in range(32):
                readers.append(silent_reader(listener, requests=3))
                await asyncio.sleep(0.01)
                assert sum(limits._unread.values()) <= 4 * ANSWER
            async with visitor(listener, QUESTION) as reader:
                async with asyncio.timeout(60):
                    head = await reader.readuntil(b"\r\n\r\n")
                    assert head.startswith(b"HTTP/1.1 200")
                    assert len(await reader.readexactly(ANSWER)) == ANSWER
            for client in readers:
                client.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("encrypted", [True, False])
def test_unread_answer_counts_until_it_is_read_or_its_connection_closes(encrypted: bool) -> None:
    """With TLS a large answer counted as sent as soon as it was encrypted: nothing limited how many of them wait."""
    served, trusting = contexts() if encrypted else (None, None)

    def deaf(listener: socket.socket) -> socket.socket:
        raw = silent_reader(listener, requests=0)
        one = raw if trusting is None else trusting.wrap_socket(raw)
        one.sendall(QUESTION)
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
            async with visitor(listener, QUESTION, trusting) as reader, asyncio.timeout(60):
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
                assert await reader.readexactly(ANSWER) == bytes(ANSWER)
            for client in readers:
                client.close()

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
            one.sendall(QUESTION)
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
            visitor(listener, QUESTION.replace(b"GET", method.encode()) * 2) as reader,
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
