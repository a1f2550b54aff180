"""HTTP servers of the daemons. Malformed requests are answered, not logged with a traceback: anybody can send them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

_log = logging.getLogger(__name__)


def _is_own_error(record: logging.LogRecord) -> bool:
    """Not a malformed request: it was answered 400, and anybody could fill the log with them."""
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or not issubclass(kind, HttpProcessingError)


_log.addFilter(_is_own_error)


def make_runner(app: web.Application, *, shutdown: float = 2.0, keepalive: float = 3630.0) -> web.AppRunner:
    """A runner for the application. `shutdown`: seconds for requests under way when it ends. `keepalive`: seconds until
    a connection's next request must be there as a whole; an hour, or kube-scheduler would find a connection closed that
    it is about to use."""
    return web.AppRunner(app, access_log=None, logger=_log, shutdown_timeout=shutdown, keepalive_timeout=keepalive)


class _TooMany(asyncio.Protocol):
    """A connection beyond the limit: it is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


@contextlib.asynccontextmanager
async def serve_limited(runner: web.AppRunner, listener: socket.socket, most: int) -> AsyncIterator[None]:
    """Serve on that socket with at most so many connections: each takes a file descriptor, which the process needs for
    more important work."""
    await runner.setup()
    server = runner.server
    assert server is not None
    loop = asyncio.get_running_loop()
    accepting = await loop.create_server(
        lambda: server() if len(server.connections) < most else _TooMany(), sock=listener, backlog=64
    )
    try:
        yield
    finally:
        accepting.close()
        await runner.cleanup()
