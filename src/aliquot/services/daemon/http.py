"""HTTP servers of the daemons. Malformed requests are answered, not logged with a traceback: anybody can send them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

_log = logging.getLogger(__name__)
_HANDSHAKE = 5.0  # seconds
_BACKLOG = 1024


def _is_own_error(record: logging.LogRecord) -> bool:
    """Not a malformed request: it was answered 400, and anybody could fill the log with them."""
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or not issubclass(kind, HttpProcessingError)


_log.addFilter(_is_own_error)


def make_runner(
    app: web.Application, limits: Limits, *, shutdown: float = 2.0, keepalive: float = 3630.0
) -> web.AppRunner:
    """A runner for the application. `shutdown`: seconds for requests under way when it ends. `keepalive`: seconds until
    a connection's next request must be there as a whole; an hour, or kube-scheduler would find a connection closed that
    it is about to use."""
    app.middlewares.insert(0, limits.watch)
    return web.AppRunner(app, access_log=None, logger=_log, shutdown_timeout=shutdown, keepalive_timeout=keepalive)


class _TooMany(asyncio.Protocol):
    """A connection beyond the limit: it is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


class Limits:
    """What strangers can take of one server: `connections`, and `unfinished` bytes of bodies that arrive.

    Each connection takes a file descriptor, which the process needs for more important work. A new connection beyond
    the limit replaces one without a request, those that never sent one first; if all are busy it is closed.
    """

    def __init__(self, connections: int, *, unfinished: int = 0, body_seconds: float = 10.0) -> None:
        self._connections, self._unfinished, self._body_seconds = connections, unfinished, body_seconds
        self._arriving = 0  # bytes of bodies that are not complete
        self._busy: Counter[web.RequestHandler] = Counter()
        self._used: dict[web.RequestHandler, tuple[bool, float]] = {}  # has it sent a request; when last

    def protocol(self, server: web.Server) -> asyncio.Protocol:
        """The protocol of a new connection."""
        present = server.connections
        self._used = {one: self._used[one] for one in present if one in self._used}
        if len(present) >= self._connections:
            idle = [one for one in present if one not in self._busy]
            if not idle:
                return _TooMany()
            min(idle, key=lambda one: self._used.get(one, (False, 0.0))).force_close()
        made = server()
        self._used[made] = (False, time.monotonic())
        return made

    @web.middleware
    async def watch(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Middleware: notes which connections have a request under way."""
        connection = request.protocol
        self._busy[connection] += 1
        try:
            return await handler(request)
        finally:
            self._used[connection] = (True, time.monotonic())
            self._busy[connection] -= 1
            if not self._busy[connection]:
                del self._busy[connection]

    async def read_body(self, request: web.Request, most: int) -> bytes:
        """The whole body. Raises BodyError with the HTTP status to answer; anything that does not arrive in time, is
        larger than `most`, or has no room beside other bodies is not kept."""
        size, chunks = 0, []
        try:
            async with asyncio.timeout(self._body_seconds):
                async for chunk in request.content.iter_any():
                    size += len(chunk)
                    self._arriving += len(chunk)
                    if size > most:
                        raise BodyError(413, f"the body is larger than {most >> 20} MiB")
                    if self._arriving > self._unfinished:
                        raise BodyError(503, "too many large bodies arrive at once; retry in a moment")
                    chunks.append(chunk)
        except TimeoutError as error:
            raise BodyError(408, f"the body did not arrive within {self._body_seconds:g} s") from error
        except (aiohttp.ClientPayloadError, web.RequestPayloadError, HttpProcessingError, ConnectionError) as error:
            raise BodyError(400, "the body is truncated, or its encoding does not match its header") from error
        finally:
            self._arriving -= size
        return b"".join(chunks)


class BodyError(Exception):
    """A body was not read; `status` is the HTTP status for that."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def bind_port(address: str, port: int) -> socket.socket:
    """A socket for `listen`. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=_BACKLOG)


async def listen(
    runner: web.AppRunner, listener: socket.socket, limits: Limits, *, tls: ssl.SSLContext | None = None
) -> asyncio.Server:
    """Serve a runner that is set up on that socket."""
    server = runner.server
    assert server is not None
    loop = asyncio.get_running_loop()
    return await loop.create_server(
        lambda: limits.protocol(server),
        sock=listener,
        ssl=tls,
        ssl_handshake_timeout=_HANDSHAKE if tls else None,
        backlog=_BACKLOG,
    )


@contextlib.asynccontextmanager
async def serve_limited(runner: web.AppRunner, listener: socket.socket, limits: Limits) -> AsyncIterator[None]:
    """Serve on that socket as long as the context lasts."""
    await runner.setup()
    accepting = await listen(runner, listener, limits)
    try:
        yield
    finally:
        accepting.close()
        await runner.cleanup()
