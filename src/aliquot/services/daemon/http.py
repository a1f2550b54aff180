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
from functools import partial
from typing import Protocol

import aiohttp
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from aliquot.services.daemon.accepting import Acceptor
from aliquot.wording.amounts import memory

_log = logging.getLogger(__name__)
_HANDSHAKE = 5.0  # seconds
_EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104  # a comparison; who chooses it says why
_BACKLOG = 1024
_UNREAD = 64 << 20  # bytes
PIECE = 64 << 10  # bytes of an answer that are sent at once
IDLE = 300.0  # seconds that a connection may be open without a request; Prometheus asks more often


def _is_own_error(record: logging.LogRecord) -> bool:
    """Not a malformed request, or body that nobody asked for: anybody could fill the log with them."""
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or not issubclass(kind, (HttpProcessingError, web.RequestPayloadError))


_log.addFilter(_is_own_error)


def make_runner(
    app: web.Application, limits: Limits, *, shutdown: float = 2.0, keepalive: float = IDLE
) -> web.AppRunner:
    """A runner for the application. `shutdown`: seconds for requests under way when it ends. `keepalive`: seconds until
    a connection's next request must be there as a whole."""
    app.middlewares.insert(0, limits.watch)
    return web.AppRunner(app, access_log=None, logger=_log, shutdown_timeout=shutdown, keepalive_timeout=keepalive)


class Connection(Protocol):
    """One of aiohttp's connections, or of a protocol of our own."""

    @property
    def transport(self) -> asyncio.Transport | None: ...

    def force_close(self) -> None: ...


class Server(Protocol):
    """Makes the protocols of new connections, and has those that are connected, the oldest first."""

    @property
    def connections(self) -> Sequence[Connection]: ...

    def __call__(self) -> asyncio.BaseProtocol: ...


class Limits:
    """What strangers can take of one server: `connections`, `unfinished` bytes of bodies that arrive, `unread` bytes of
    answers that they do not read.

    Each connection takes a file descriptor, which the process needs for more important work, and one with TLS 256 KiB
    from its first byte on. A new connection beyond the limit replaces one that is still in its handshake, or else one
    without a request, those that never sent one first; if all are busy it is closed. Who reads nothing of an answer for
    `read_seconds` is disconnected, and so is who has waited longest when answers together are larger than `unread`.
    """

    def __init__(
        self,
        connections: int,
        *,
        unfinished: int = 0,
        body_seconds: float = 10.0,
        unread: int = _UNREAD,
        read_seconds: float = 10.0,
    ) -> None:
        self._connections, self._unfinished, self.body_seconds = connections, unfinished, body_seconds
        self._most_unread, self.read_seconds = unread, read_seconds
        self._unread: dict[asyncio.Transport, int] = {}  # bytes of the answer that is being sent; the oldest first
        self._arriving = 0  # bytes of bodies that are not complete
        self._joining: dict[asyncio.Task[None], None] = {}  # accepted, and not connected yet; the oldest first
        self._ended: set[Connection] = set()  # by us; they are present for a moment longer
        self._busy: Counter[Connection] = Counter()
        self._used: dict[Connection, float] = {}  # when its last request was answered, if it has sent one

    def make_room(self, present: Sequence[Connection]) -> bool:
        """Whether one more connection may join those that are present, oldest first; ends another one if need be."""
        self._used = {one: self._used[one] for one in present if one in self._used}
        self._ended &= {*present}
        there = [one for one in present if one not in self._ended]
        if len(there) + len(self._joining) < self._connections:
            return True
        for joining in list(self._joining):
            del self._joining[joining]
            if joining.cancel():
                return True
        idle = [one for one in there if one not in self._busy]
        if not idle:
            return False
        victim = min(idle, key=lambda one: self._used.get(one, 0.0))
        self._ended.add(victim)
        if victim.transport is not None:
            abort(victim.transport)  # aiohttp closes it, and with TLS waits for the peer's answer to that
        victim.force_close()
        return True

    def join(self, task: asyncio.Task[None]) -> None:
        """The task connects one more, for which there is room."""
        self._joining[task] = None
        task.add_done_callback(lambda task: self._joining.pop(task, None))

    def begin(self, connection: Connection) -> None:
        """The connection has a request under way."""
        self._busy[connection] += 1

    def end(self, connection: Connection) -> None:
        """The connection's request is answered."""
        self._used[connection] = time.monotonic()
        self._busy[connection] -= 1
        if not self._busy[connection]:
            del self._busy[connection]

    @web.middleware
    async def watch(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Middleware: notes which connections have a request under way, and sends what answers it."""
        connection = request.protocol
        self.begin(connection)
        try:
            answer = await handler(request)
        finally:
            self.end(connection)
        if isinstance(answer, web.Response) and not answer.prepared and request.transport is not None:
            await self._send(request, answer, request.transport)
        return answer

    async def _send(self, request: web.Request, answer: web.Response, transport: asyncio.Transport) -> None:
        """Send the whole answer, while the client reads it. aiohttp would keep it as long as the connection lasts."""
        body = answer.body if isinstance(answer.body, (bytes, bytearray)) else b""
        size = len(body)
        self.sending(transport, size)
        reading = Reading(transport, self.read_seconds)
        try:
            await answer.prepare(request)
            if size > PIECE and request.method != "HEAD" and not answer.compression:
                await _send_pieces(answer, body, transport, reading)
            else:
                await answer.write_eof()
        except ConnectionError:
            pass  # aiohttp meets it again, and ends the connection
        finally:
            reading.end()
            self.sent(transport)

    def sending(self, transport: asyncio.Transport, size: int) -> None:
        """An answer of that size waits to be read; ends others if all of them are too large together."""
        others = [one for one in self._unread if one is not transport]
        present = sum(self._unread[one] for one in others)
        for oldest in others:
            if present + size <= self._most_unread:
                break
            present -= self._unread.pop(oldest)
            abort(oldest)
        self._unread[transport] = size

    def sent(self, transport: asyncio.Transport) -> None:
        """It waits no longer."""
        self._unread.pop(transport, None)

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
                        raise BodyError(413, f"the body is larger than {memory(most >> 20)}")
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


async def _send_pieces(
    answer: web.Response, body: bytes | bytearray, transport: asyncio.Transport, reading: Reading
) -> None:
    """Send the body, each piece when most of those before it have gone. With TLS asyncio hands whatever is written in
    one piece to the connection below at once, and does not say that it waits there."""
    transport.set_write_buffer_limits(PIECE)
    rest = memoryview(body)
    while rest:
        await answer.write(rest[:PIECE])
        rest = rest[PIECE:]
        reading.went_on()
    await web.StreamResponse.write_eof(answer)  # aiohttp's for whole answers would send the body again


def abort(transport: asyncio.Transport) -> None:
    """Close it without waiting for the peer. With TLS asyncio raises if it was closed twice before."""
    with contextlib.suppress(AttributeError):
        transport.abort()


class Reading:
    """Disconnects a peer that reads nothing of what is sent for some seconds, until `end`."""

    def __init__(self, transport: asyncio.Transport, seconds: float) -> None:
        self._transport, self._every, self._left = transport, seconds / 2, 0
        self._timer = asyncio.get_running_loop().call_later(self._every, self._look)

    def _look(self) -> None:
        try:
            left = self._transport.get_write_buffer_size()
        except AttributeError:  # with TLS, once it is closed
            return
        if left and left == self._left:
            abort(self._transport)
            return
        self._left = left
        self._timer = asyncio.get_running_loop().call_later(self._every, self._look)

    def went_on(self) -> None:
        """It has read something: there was room for more, of which as much may wait now as before."""
        self._left = 0

    def end(self) -> None:
        """It has read enough."""
        self._timer.cancel()


class BodyError(Exception):
    """A body was not read; `status` is the HTTP status for that."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def bind_port(address: str, port: int) -> socket.socket:
    """A socket for `listen`. Raises OSError.

    0.0.0.0 and :: stand for all addresses of both families, as for Kubernetes' own programs: a Pod of an IPv6-only
    cluster has no other address, and the kubelet probes it there.
    """
    if address in _EVERYWHERE and socket.has_dualstack_ipv6():
        return socket.create_server(("::", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=_BACKLOG)


class Accepting(Acceptor):
    """Accepts connections within limits: asyncio's server would not count those in a handshake."""

    def __init__(self, listener: socket.socket, server: Server, limits: Limits, tls: ssl.SSLContext | None) -> None:
        self._server, self._limits, self._tls = server, limits, tls
        self._waiting: set[socket.socket] = set()  # accepted, and without a protocol yet
        super().__init__(listener)

    def _take(self, accepted: socket.socket) -> None:
        if not self._limits.make_room(self._server.connections):
            accepted.close()
            return
        self._waiting.add(accepted)
        task = self._loop.create_task(self._connect(accepted))
        self._limits.join(task)
        task.add_done_callback(partial(self._close_waiting, accepted))

    async def _connect(self, accepted: socket.socket) -> None:
        handshake = _HANDSHAKE if self._tls else None
        made: list[asyncio.BaseProtocol] = []

        def make() -> asyncio.BaseProtocol:
            made.append(self._server())
            self._waiting.remove(accepted)
            return made[0]

        try:
            await self._loop.connect_accepted_socket(make, accepted, ssl=self._tls, ssl_handshake_timeout=handshake)
        except asyncio.CancelledError:
            # asyncio closes the transport. After a handshake it waits half a minute for the peer to agree.
            transport = getattr(made[0], "transport", None) if made else None
            if transport is not None:
                abort(transport)
            raise
        except OSError:  # it speaks no TLS, say: anybody can do that
            pass

    def _close_waiting(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        """Close the socket of a task that was cancelled before it began, or failed then. Any other has a transport,
        which closes it: were it closed before that, its number could belong to another connection meanwhile."""
        if accepted in self._waiting:
            self._waiting.remove(accepted)
            accepted.close()


def listen(
    runner: web.AppRunner,
    listener: socket.socket,
    limits: Limits,
    *,
    tls: ssl.SSLContext | None = None,
    server: Server | None = None,
) -> Accepting:
    """Serve a runner that is set up on that socket. `server` takes new connections, if not aiohttp's."""
    assert runner.server is not None
    return Accepting(listener, server or runner.server, limits, tls)


@contextlib.asynccontextmanager
async def serve_limited(runner: web.AppRunner, listener: socket.socket, limits: Limits) -> AsyncIterator[None]:
    """Serve on that socket as long as the context lasts."""
    await runner.setup()
    accepting = listen(runner, listener, limits)
    try:
        yield
    finally:
        accepting.close()
        await runner.cleanup()
