"""HTTP servers of the daemons. Malformed requests are answered, not logged with a traceback: anybody can send them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

import aiohttp
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

_log = logging.getLogger(__name__)
_HANDSHAKE = 5.0  # seconds
_BACKLOG = 1024
KEEPALIVE = 3630.0  # seconds; an hour, or kube-scheduler would find a connection closed that it is about to use


def _is_own_error(record: logging.LogRecord) -> bool:
    """Not a malformed request: it was answered 400, and anybody could fill the log with them."""
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or not issubclass(kind, HttpProcessingError)


_log.addFilter(_is_own_error)


def make_runner(
    app: web.Application, limits: Limits, *, shutdown: float = 2.0, keepalive: float = KEEPALIVE
) -> web.AppRunner:
    """A runner for the application. `shutdown`: seconds for requests under way when it ends. `keepalive`: seconds until
    a connection's next request must be there as a whole."""
    app.middlewares.insert(0, limits.watch)
    return web.AppRunner(app, access_log=None, logger=_log, shutdown_timeout=shutdown, keepalive_timeout=keepalive)


class _TooMany(asyncio.Protocol):
    """A connection beyond the limit: it is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


class Connection(Protocol):
    """One of aiohttp's connections, or of a protocol of our own."""

    def force_close(self) -> None: ...


class Limits:
    """What strangers can take of one server: `connections`, and `unfinished` bytes of bodies that arrive.

    Each connection takes a file descriptor, which the process needs for more important work. A new connection beyond
    the limit replaces one without a request, those that never sent one first; if all are busy it is closed.
    """

    def __init__(self, connections: int, *, unfinished: int = 0, body_seconds: float = 10.0) -> None:
        self._connections, self._unfinished, self.body_seconds = connections, unfinished, body_seconds
        self._arriving = 0  # bytes of bodies that are not complete
        self._busy: Counter[Connection] = Counter()
        self._used: dict[Connection, tuple[bool, float]] = {}  # has it sent a request; when last

    def protocol(self, present: Sequence[Connection], make: Callable[[], Connection]) -> asyncio.Protocol:
        """The protocol of a new connection, beside those that are present."""
        self._used = {one: self._used[one] for one in present if one in self._used}
        if len(present) >= self._connections:
            idle = [one for one in present if one not in self._busy]
            if not idle:
                return _TooMany()
            min(idle, key=lambda one: self._used.get(one, (False, 0.0))).force_close()
        made = make()
        assert isinstance(made, asyncio.Protocol)
        self._used[made] = (False, time.monotonic())
        return made

    def begin(self, connection: Connection) -> None:
        """It has a request under way."""
        self._busy[connection] += 1

    def end(self, connection: Connection) -> None:
        """That is answered."""
        self._used[connection] = (True, time.monotonic())
        self._busy[connection] -= 1
        if not self._busy[connection]:
            del self._busy[connection]

    @web.middleware
    async def watch(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Middleware: notes which connections have a request under way."""
        connection = request.protocol
        self.begin(connection)
        try:
            return await handler(request)
        finally:
            self.end(connection)

    def arrived(self, size: int) -> bool:
        """Count bytes of bodies that are not complete; less than 0: they are gone. False: there is no room for them."""
        self._arriving += size
        return self._arriving <= self._unfinished

    def slow_body(self) -> BodyError:
        """The error of a body that is not complete in time."""
        return BodyError(408, f"the body did not arrive within {self.body_seconds:g} s")

    async def read_body(self, request: web.Request, most: int) -> bytes:
        """The whole body. Raises BodyError with the HTTP status to answer; anything that does not arrive in time, is
        larger than `most`, or has no room beside other bodies is not kept."""
        size, chunks = 0, []
        try:
            async with asyncio.timeout(self.body_seconds):
                async for chunk in request.content.iter_any():
                    size += len(chunk)
                    room = self.arrived(len(chunk))
                    if size > most:
                        raise BodyError(413, f"the body is larger than {most >> 20} MiB")
                    if not room:
                        raise BodyError(503, "too many large bodies arrive at once; retry in a moment")
                    chunks.append(chunk)
        except TimeoutError as error:
            raise self.slow_body() from error
        except (aiohttp.ClientPayloadError, web.RequestPayloadError, HttpProcessingError, ConnectionError) as error:
            raise BodyError(400, "the body is truncated, or its encoding does not match its header") from error
        finally:
            self.arrived(-size)
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
    runner: web.AppRunner,
    listener: socket.socket,
    limits: Limits,
    *,
    tls: ssl.SSLContext | None = None,
    protocol: Callable[[], asyncio.Protocol] | None = None,
) -> asyncio.Server:
    """Serve a runner that is set up on that socket. `protocol` takes new connections, if they do not begin with it."""
    server = runner.server
    assert server is not None
    loop = asyncio.get_running_loop()
    return await loop.create_server(
        protocol or (lambda: limits.protocol(server.connections, server)),
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
