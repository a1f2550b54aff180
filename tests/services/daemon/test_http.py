"""What is no HTTP is answered, and the log stays quiet; what breaks inside of us is told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from aliquot.services.daemon.http import make_runner, serve_limited

_QUESTION = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


async def _broken(request: web.Request) -> web.Response:
    raise RuntimeError("ours")


def answers(*requests: bytes) -> list[bytes]:
    """The first line of each answer."""

    async def scenario() -> list[bytes]:
        app = web.Application()
        app.router.add_get("/broken", _broken)
        runner = make_runner(app)
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


def test_an_error_of_a_handler_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    (lines,) = answers(b"GET /broken HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert b"500" in lines
    assert "RuntimeError: ours" in caplog.text


@contextlib.asynccontextmanager
async def visitor(listener: socket.socket, sent: bytes) -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(sent)
    try:
        yield reader
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def test_serve_limited_closes_connections_beyond_the_limit() -> None:
    async def scenario() -> list[bytes]:
        lines = []
        listener = socket.create_server(("127.0.0.1", 0))
        runner = make_runner(web.Application())
        async with serve_limited(runner, listener, 1):
            async with visitor(listener, _QUESTION) as first:
                lines.append(await first.readline())
                async with visitor(listener, b"") as second:
                    lines.append(await second.read())
            while runner.server is not None and runner.server.connections:  # until it is noticed
                await asyncio.sleep(0)
            async with visitor(listener, _QUESTION) as third:
                lines.append(await third.readline())
        return lines

    first, second, third = asyncio.run(scenario())
    assert (first, second, third) == (b"HTTP/1.1 404 Not Found\r\n", b"", first)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: a\r\nX-Slow: "])
def test_keepalive_closes_a_connection_with_an_unfinished_request(sent: bytes) -> None:
    async def scenario() -> bytes:
        listener = socket.create_server(("127.0.0.1", 0))
        runner = make_runner(web.Application(), keepalive=0.05)
        async with serve_limited(runner, listener, 2), visitor(listener, sent) as reader:
            return await asyncio.wait_for(reader.read(), 10)

    assert asyncio.run(scenario()) == b""
