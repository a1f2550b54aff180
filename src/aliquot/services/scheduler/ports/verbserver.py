"""Serves kube-scheduler's calls with less CPU than aiohttp takes, whose part was larger than that of most answers.

kube-scheduler (Go's client) sends one form of request: POST, HTTP/1.1, a path that we know, a few plain headers, each
once, and a body of a known length. Only this form is read here, strictly. At the first request of any other form (a
chunked body, Expect, a body that is too large, a method, path or header that is not in our list, anything malformed)
the connection is given to aiohttp, with all that was received and not answered, and stays there. So this is no second
implementation of HTTP, and what is ambiguous, as a request with two lengths, is judged by aiohttp's parser alone.
A parser library (httptools) would read all of HTTP, and leave us to serve all of it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from aiohttp import web

from aliquot.services.daemon.http import IDLE, PIECE, BodyError, Connection, Limits, Reading, abort

# Seconds; an hour, or kube-scheduler would find a connection closed that it is about to use. One that never sent a
# request of its form is not kube-scheduler's.
_KEPT = 3630.0
_LONGEST_HEAD = 4096  # bytes
_PATIENCE = 2.0  # seconds for requests in progress when we end
_BEGIN = b"POST /"
_FORM = re.compile(rb"POST (/[!-~]*) HTTP/1\.1((?:\r\n[A-Za-z-]+:[\t -~]*)+)")
# What Go's client and curl send. Of these only the length of the body matters to us.
_PLAIN = frozenset({b"host", b"user-agent", b"content-length", b"content-type", b"accept", b"accept-encoding"})
_LENGTH = re.compile(rb"[ \t]*([0-9]{1,12})[ \t]*")
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n"

# Answers a body at once or later, or says that there is none. Never raises.
Answer = Callable[[bytes | BodyError], bytes | Awaitable[bytes]]


def read_head(head: bytes) -> tuple[bytes, int] | None:
    """The path, and the length of the body; None: not of the form that is served here."""
    form = _FORM.fullmatch(head)
    if form is None:
        return None
    headers: dict[bytes, bytes] = {}
    for line in form[2].split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        name = name.lower()
        if name not in _PLAIN or name in headers:
            return None
        headers[name] = value
    length = _LENGTH.fullmatch(headers.get(b"content-length", b""))
    return (form[1], int(length[1])) if length and b"host" in headers else None


@dataclass(slots=True)
class _Request:
    """A request whose head was read: what answers it, and where its body starts and ends."""

    answer: Answer
    start: int
    end: int
    counted: int = 0  # bytes of the body that the limits know of


class VerbServer:
    """What the connections share. `answers`: by path. `others`: aiohttp's server. Seconds until a connection is closed:
    `idle` after its last answer, `silent` if it had none."""

    def __init__(
        self,
        answers: Mapping[bytes, Answer],
        others: web.Server,
        limits: Limits,
        *,
        largest: int,
        idle: float = _KEPT,
        silent: float = IDLE,
    ) -> None:
        self.answers, self.others, self.limits = answers, others, limits
        self.largest, self.idle, self.silent = largest, idle, min(idle, silent)
        self.own: dict[VerbConnection, None] = {}  # the oldest first

    @property
    def connections(self) -> Sequence[Connection]:
        """Ours, and those that were given to aiohttp."""
        return [*self.others.connections, *self.own]

    def __call__(self) -> VerbConnection:
        """The protocol of a new connection."""
        return VerbConnection(self)

    async def close(self) -> None:
        """End every connection, with a moment for requests under way."""
        await asyncio.gather(*(connection.finish(_PATIENCE) for connection in [*self.own]))


class VerbConnection(asyncio.Protocol):
    """One connection: a request is received as a whole and answered, then the next one."""

    def __init__(self, server: VerbServer) -> None:
        self._server, self._limits = server, server.limits
        self.transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._request: _Request | None = None  # whose body is being received
        self._late: asyncio.TimerHandle | None = None  # when the request that is being received must be there
        self._task: asyncio.Task[None] | None = None  # an answer that takes time
        self._paused = False  # reading is
        self._full = False  # the peer does not read what we write
        self._unsent = memoryview(b"")  # of the answer that is being sent
        self._ending = False
        self._reading: Reading | None = None  # of a peer that has not read an answer yet
        self._idle: asyncio.TimerHandle | None = None
        self._used = 0.0
        self._served = False  # one request at least

    # --- what asyncio reports -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._server.own[self] = None
        self.transport.set_write_buffer_limits(PIECE)
        loop = asyncio.get_running_loop()
        self._used = loop.time()
        self._idle = loop.call_later(self._server.silent, self._close_if_idle)

    def connection_lost(self, error: Exception | None) -> None:
        self._forget()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._may_answer():
            self._step()
        elif not self._paused and self.transport is not None:  # the next request, before this one is answered
            self._paused = True
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        self._full = True
        if self.transport is not None:
            self._reading = Reading(self.transport, self._limits.read_seconds)

    def resume_writing(self) -> None:
        self._full = False
        self._end_reading()
        self._send()

    # --- one request after the other ------------------------------------------------------------------------------

    def _may_answer(self) -> bool:
        sent = not self._full and not self._unsent
        return self._task is None and sent and not self._ending and self.transport is not None

    def _go_on(self) -> None:
        """Go on with what was received meanwhile."""
        if not self._may_answer():
            return
        if self._paused and self.transport is not None:
            self._paused = False
            self.transport.resume_reading()
        if self._received:
            self._step()

    def _step(self) -> None:
        """Answer the request that is received, if it is there as a whole."""
        if self._request is None:
            self._request = self._read_request()
        if (request := self._request) is None:
            return
        if len(self._received) < request.end:
            request.counted += (more := len(self._received) - request.start - request.counted)
            if self._limits.arrived(more):
                self._expect_soon()
            else:
                self._hand_over()  # aiohttp refuses it
            return
        body = bytes(memoryview(self._received)[request.start : request.end])
        del self._received[: request.end]
        self._end_request()
        self._respond(request.answer(body))

    def _read_request(self) -> _Request | None:
        """The request that begins, if its head is complete and of the form that is served here."""
        end = self._received.find(b"\r\n\r\n", 0, _LONGEST_HEAD)
        if end < 0 and len(self._received) < _LONGEST_HEAD and self._received.startswith(_BEGIN[: len(self._received)]):
            self._expect_soon()
            return None
        head = read_head(bytes(self._received[:end])) if end >= 0 else None
        answer = self._server.answers.get(head[0]) if head else None
        if head is None or answer is None or head[1] > self._server.largest:
            self._hand_over()
            return None
        self._limits.begin(self)
        return _Request(answer, end + 4, end + 4 + head[1])

    def _expect_soon(self) -> None:
        """The rest of the request."""
        if self._late is None:
            self._late = asyncio.get_running_loop().call_later(self._limits.body_seconds, self._give_up)

    def _give_up(self) -> None:
        """The request is not there in time."""
        self._late, self._ending = None, True
        request = self._request
        if request is not None:
            self._end_request()
            self._respond(request.answer(self._limits.slow_body()))
        elif self.transport is not None:
            self.transport.close()

    def _end_request(self) -> None:
        """The request is received, or given up."""
        if self._late is not None:
            self._late.cancel()
            self._late = None
        if self._request is not None:
            self._limits.arrived(-self._request.counted)
            self._request = None

    def _respond(self, answer: bytes | Awaitable[bytes]) -> None:
        if isinstance(answer, bytes):
            self._write(answer)
        else:
            self._task = asyncio.get_running_loop().create_task(self._respond_later(answer))

    async def _respond_later(self, answer: Awaitable[bytes]) -> None:
        try:
            body = await answer
        except BaseException:  # the program ends
            self.force_close()
            raise
        finally:
            self._task = None
        self._write(body)

    def _write(self, body: bytes) -> None:
        self._used, self._served = asyncio.get_running_loop().time(), True
        self._limits.end(self)
        head = _ANSWER % (len(body), b"Connection: close\r\n" if self._ending else b"")
        self._unsent = memoryview(head + body)
        self._send()

    def _send(self) -> None:
        """As much of the answer as the peer reads. With TLS asyncio hands whatever is written in one piece to the
        connection below at once, and does not say that it waits there."""
        transport, size = self.transport, len(self._unsent)
        if transport is None or transport.is_closing():
            return
        while self._unsent and not self._full:
            piece, self._unsent = self._unsent[:PIECE], self._unsent[PIECE:]
            transport.write(piece)
        if self._full:
            self._limits.sending(transport, size)
            return
        self._limits.sent(transport)
        if self._ending:
            transport.close()
        elif self._received or self._paused:
            asyncio.get_running_loop().call_soon(self._go_on)  # other connections come first

    # --- its end --------------------------------------------------------------------------------------------------

    def force_close(self) -> None:
        """Close the connection at once, also if the peer does not read its answer."""
        if self.transport is not None:
            abort(self.transport)

    async def finish(self, patience: float) -> None:
        """Close the connection once the request in progress is answered, or after that many seconds."""
        self._ending = True
        if self._task is not None:
            await asyncio.wait([self._task], timeout=patience)
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(self._unsent)
            self.transport.close()

    def _close_if_idle(self) -> None:
        loop = asyncio.get_running_loop()
        allowed = self._server.idle if self._served else self._server.silent
        left = self._used + allowed - loop.time()
        if left > 0 or self._task is not None:
            self._idle = loop.call_later(left if left > 0 else allowed, self._close_if_idle)
        else:
            self.force_close()

    def _hand_over(self) -> None:
        """Hand the connection over to aiohttp, with what was received."""
        transport, received = self.transport, bytes(self._received)
        assert transport is not None
        self._forget()
        protocol = self._server.others()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(received)

    def _end_reading(self) -> None:
        if self._reading is not None:
            self._reading.end()
            self._reading = None

    def _forget(self) -> None:
        self._end_reading()
        if self._request is not None:
            self._limits.end(self)
        self._end_request()
        if self.transport is not None:
            self._limits.sent(self.transport)
        self.transport, self._unsent = None, memoryview(b"")
        self._received.clear()
        self._server.own.pop(self, None)
        if self._idle is not None:
            self._idle.cancel()
