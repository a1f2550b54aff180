"""A server of the verbs on loopback, and what its callers send."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from aliquot.services.daemon.http import BodyError, Limits, listen, make_runner
from aliquot.services.scheduler.ports.verbserver import Answer, VerbServer

LARGEST = 100_000


PATIENCE = 60.0


class Rig:
    """A server whose answers tell who gave them: `direct 3` or `aiohttp 3`, for a body of three bytes."""

    def __init__(self, limits: Limits, idle: float = 60.0, silent: float = 60.0) -> None:
        self.limits, self.idle, self.silent = limits, idle, silent
        self.bodies: list[bytes] = []
        self.slow, self.go = asyncio.Event(), asyncio.Event()
        self.address: Any = None
        self.server: VerbServer

    def direct(self, body: bytes | BodyError) -> bytes:
        if isinstance(body, BodyError):
            return f"error {body.status}".encode()
        self.bodies.append(body)
        return b"direct %d" % len(body)

    async def later(self, body: bytes | BodyError) -> bytes:
        self.slow.set()
        await self.go.wait()
        return self.direct(body)

    async def by_aiohttp(self, request: web.Request) -> web.Response:
        try:
            body = await self.limits.read_body(request, LARGEST)
        except BodyError as error:
            response = web.Response(text=f"error {error.status}")
            response.force_close()
            return response
        self.bodies.append(body)
        return web.Response(text=f"aiohttp {len(body)}")

    @contextlib.asynccontextmanager
    async def serving(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[Rig]:
        app = web.Application()
        app.router.add_post("/v", self.by_aiohttp)
        app.router.add_get("/v", self.by_aiohttp)
        runner = make_runner(app, self.limits, shutdown=0.1)
        await runner.setup()
        assert runner.server is not None
        answers: dict[bytes, Answer] = {b"/v": self.direct, b"/slow": self.later}
        closed = {"idle": self.idle, "silent": self.silent}
        self.server = VerbServer(answers, runner.server, self.limits, largest=LARGEST, **closed)
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        accepting = listen(runner, listener, self.limits, tls=tls, server=self.server)
        try:
            yield self
        finally:
            accepting.close()
            await self.server.close()
            await runner.cleanup()

    @contextlib.asynccontextmanager
    async def visitor(
        self, sent: bytes = b"", tls: ssl.SSLContext | None = None
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection(*self.address, ssl=tls)
        writer.write(sent)
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def ask(self, *pieces: bytes) -> bytes:
        """All that is answered until the server closes the connection; the last request should ask for that."""
        async with self.visitor() as (reader, writer):
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0)
            return await rest(reader)


async def rest(reader: asyncio.StreamReader) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(PATIENCE):
            while piece := await reader.read(65536):
                received += piece
    return received


async def next_answer(reader: asyncio.StreamReader) -> bytes:
    """The body of the next answer."""
    async with asyncio.timeout(PATIENCE):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        return await reader.readexactly(int(length.split(b":")[1]))


def run(
    scene: Callable[[Rig], Awaitable[Any]],
    *,
    idle: float = 60.0,
    silent: float = 60.0,
    connections: int = 8,
    tls: ssl.SSLContext | None = None,
    **limits: Any,
) -> tuple[Any, Rig]:
    async def scenario() -> tuple[Any, Rig]:
        rig = Rig(Limits(connections, **{"unfinished": 1 << 20, **limits}), idle, silent)
        async with rig.serving(tls):
            return await scene(rig), rig

    return asyncio.run(scenario())


def post(body: bytes = b"abc", path: str = "/v", *more: str, length: object = None) -> bytes:
    """A request as Go's client sends it."""
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: aliquot:12345",
        "User-Agent: Go-http-client/1.1",
        f"Content-Length: {len(body) if length is None else length}",
        "Content-Type: application/json",
        "Accept-Encoding: gzip",
        *more,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


CHUNKED = b"POST /v HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


LAST = post(b"", "/v", "Connection: close")  # served by aiohttp, which closes the connection then
