"""How we serve HTTP: quietly. What strangers send is answered, and is no error of ours to log with a traceback."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

_log = logging.getLogger(__name__)


def _is_ours(record: logging.LogRecord) -> bool:
    """Not what was no HTTP: that has been answered 400, and anybody could fill the log with it."""
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or not issubclass(kind, HttpProcessingError)


_log.addFilter(_is_ours)


def make_runner(app: web.Application, *, goodbye: float = 2.0, patience: float = 3630.0) -> web.AppRunner:
    """What runs the application. `goodbye` is how many seconds requests under way have when it ends, `patience` how
    many a connection has for its next request to be there as a whole: an hour, for kube-scheduler must not find closed
    what it just meant to use."""
    return web.AppRunner(app, access_log=None, logger=_log, shutdown_timeout=goodbye, keepalive_timeout=patience)


class _TooMany(asyncio.Protocol):
    """One connection more than may be: it is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


@contextlib.asynccontextmanager
async def serve_limited(runner: web.AppRunner, listener: socket.socket, most: int) -> AsyncIterator[None]:
    """The runner on that socket, with so many connections at once: each takes a file of the process, which needs its
    files for more important work."""
    await runner.setup()
    server = runner.server
    assert server is not None
    loop = asyncio.get_running_loop()
    door = await loop.create_server(
        lambda: server() if len(server.connections) < most else _TooMany(), sock=listener, backlog=64
    )
    try:
        yield
    finally:
        door.close()
        await runner.cleanup()
