"""Requests to the API server on connections of our own, at a fraction of aiohttp's CPU: every bind, and lists.

One request at a time on a connection. An answer has a length or comes in chunks; any other (one that lasts until the
connection ends, another coding) counts as half an answer does: nothing is known of the outcome.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import Iterable
from mmap import mmap
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from aliquot.adapters.kubernetes.kubeconfig import Server
from aliquot.adapters.kubernetes.privatememory import private_memory

_LARGEST = 1 << 30  # bytes of an answer; a page of a list has many megabytes
_ROOM = 1 << 16  # bytes that a connection is ready to receive
_ROOM_KEPT = 1.0  # seconds that it keeps more, for the next page of a list
_OPENING = 4  # connections at a time
_UNACKNOWLEDGED = 10_000  # milliseconds that what was sent may take to reach the API server
_KEPT = 15.0  # seconds without a request; the API server keeps a connection longer
_FIRST_LINE = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})[^\r\n]*")
# Between two chunks: the end of the one, and the size of the next. Before the first one, the end of the head.
BETWEEN_CHUNKS = re.compile(rb"\r\n([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?\r\n")
_END = b"\r\n\r\n"


class AnswerError(ConnectionError):
    """The answer cannot be read."""


class NotSentError(ConnectionError):
    """Nothing was sent."""


class Head(NamedTuple):
    """The head of an answer."""

    status: int
    start: int  # where the body begins
    length: int | None  # of the body; None: it comes in chunks
    keep: bool  # whether the connection may be used again


def read_head(received: bytes | mmap) -> Head | None:
    """The head of the answer; None: the rest of it is still to come. Raises AnswerError."""
    start = 0
    while True:
        end = received.find(_END, start)
        if end < 0:
            return None
        first, *lines = bytes(received[start:end]).split(b"\r\n")
        line = _FIRST_LINE.fullmatch(first)
        if line is None:
            raise AnswerError(f"not an answer of HTTP/1: {first[:40]!r}")
        start, status = end + len(_END), int(line[1])
        if status >= 200:
            break  # 1xx comes before the answer
    headers: dict[bytes, bytes] = {}
    for header in lines:
        name, _, value = header.partition(b":")
        name, value = name.lower(), value.strip()
        if name in (b"content-length", b"transfer-encoding") and headers.get(name, value) != value:
            raise AnswerError(f"the answer has two values of {name.decode()}")
        headers[name] = value
    coding, length = headers.get(b"transfer-encoding"), headers.get(b"content-length")
    keep = first.startswith(b"HTTP/1.1") and b"close" not in headers.get(b"connection", b"").lower()
    if status in (204, 304):
        return Head(status, start, 0, keep)
    if coding is not None:
        if coding.lower() != b"chunked" or length is not None:
            raise AnswerError(f"the answer has the Transfer-Encoding {coding[:40]!r}, which is not known here")
        return Head(status, start, None, keep)
    if length is None or not length.isdigit() or len(length) > 9:
        raise AnswerError("the answer has no length")
    return Head(status, start, int(length), keep)


def read_body(head: Head, received: bytes | mmap, size: int) -> tuple[bytes, int] | None:
    """The body of the answer, of which `size` bytes have come, and where it ends; None: the rest is still to come.

    Raises AnswerError.
    """
    if head.length is None:
        return _read_chunks(received, head.start, size)
    end = head.start + head.length
    return (bytes(received[head.start : end]), end) if size >= end else None


def _read_chunks(received: bytes | mmap, at: int, size: int) -> tuple[bytes, int] | None:
    """The body that comes in chunks, and where it ends; None: the rest is still to come."""
    view, pieces, between, stop = memoryview(received), [], BETWEEN_CHUNKS.match, at - 2
    while True:  # thousands of times for a page of a list
        size_line = between(received, stop, size)
        if size_line is None:
            if stop + 2 <= size and received[stop : stop + 2] != b"\r\n":
                raise AnswerError("a chunk is longer than it says")
            if received.find(b"\r\n", stop + 2, size) >= 0:
                raise AnswerError("a chunk has no size")
            return None
        start = size_line.end()
        length = int(size_line[1], 16)
        if not length:
            break
        stop = start + length
        pieces.append(view[start:stop])
    # Without trailers, the end of the last line is the first half of the end.
    end = received.find(_END, start - 2, size)
    return (b"".join(pieces), end + len(_END)) if end >= 0 else None


class _Connection(asyncio.BufferedProtocol):
    """One connection, with one request at a time. What it receives is decrypted into one buffer."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.used = 0.0
        self.keep = True
        self._buffer, self._filled = private_memory(_ROOM), 0  # not of the heap, which would keep what a list took
        self._head: Head | None = None  # of the answer that is being received
        self._waiter: asyncio.Future[tuple[int, bytes]] | None = None

    @property
    def open(self) -> bool:
        return self.keep and self.transport is not None and not self.transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        connected = transport.get_extra_info("socket")
        # The kernel would go on to send what we gave up: a bind that arrives later than anyone expects it.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._filled == len(self._buffer):
            larger = private_memory(4 * self._filled)
            larger[: self._filled] = self._buffer[:]
            self._buffer = larger
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        try:
            if self._waiter is None or self._waiter.done() or self._filled > _LARGEST:
                raise AnswerError("data came after the end of the answer")
            answer = self._answer()
        except AnswerError as error:
            self._end(error)
            return
        if answer is not None:
            self._head, self._filled = None, 0
            if len(self._buffer) > _ROOM:
                self._waiter.get_loop().call_later(_ROOM_KEPT, self._shrink)
            self._waiter.set_result(answer)

    def _answer(self) -> tuple[int, bytes] | None:
        """Status and body of the answer, if it is complete."""
        head = self._head = self._head or read_head(self._buffer[: self._filled])
        if head is None:
            return None
        last = self._buffer[self._filled - len(_END) : self._filled]
        if last != _END if head.length is None else self._filled < head.start + head.length:
            return None  # a large answer is not looked through before its end is there
        found = read_body(head, self._buffer, self._filled)
        if found is None:
            return None
        self.keep = head.keep and found[1] == self._filled
        return head.status, found[0]

    def _shrink(self) -> None:
        if not self._filled:
            self._buffer = private_memory(_ROOM)

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._end(error or AnswerError("the API server closed the connection"))

    def _end(self, error: Exception) -> None:
        self.keep = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error if isinstance(error, OSError) else AnswerError(str(error)))
        self.close()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of the answer. Raises OSError."""
        assert self.transport is not None, "connected"
        self._waiter = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._waiter


def can_connect(server: Server) -> bool:
    """Whether this is enough for that server: without a proxy, a password in its address, or unknown authorities."""
    plain = server.proxy is None and "@" not in server.url
    return plain and (server.tls is not None or server.url.startswith("http://"))


class Address(NamedTuple):
    """Where requests to an API server go, and what all of them have."""

    host: str
    port: int
    secure: bool
    name: str | None  # that its certificate must be of
    prefix: str  # of every path
    head: str

    def request(self, method: str, target: str, headers: Iterable[tuple[str, str]], data: bytes | None) -> bytes:
        """The request as it is sent. Raises AnswerError."""
        first = f"{method} {self.prefix}{target} HTTP/1.1\r\n"
        size = [] if data is None else [("Content-Length", str(len(data)))]
        return (first + self.head + _lines([*headers, *size]) + "\r\n").encode("latin-1") + (data or b"")


def address_of(server: Server, headers: Iterable[tuple[str, str]]) -> Address:
    """The address of a server for which `can_connect` holds. Raises AnswerError."""
    url = urlsplit(server.url)
    host, secure = url.hostname or "", url.scheme == "https"
    return Address(
        host,
        url.port or (443 if secure else 80),
        secure,
        (server.server_name or host) if secure else None,
        url.path.rstrip("/"),
        _lines([("Host", url.netloc), *headers]),
    )


class Connections:
    """Up to `limit` connections to one API server for which `can_connect` holds."""

    def __init__(self, server: Server, headers: Iterable[tuple[str, str]], limit: int) -> None:
        self._server, self._address = server, address_of(server, headers)
        self._slots, self._opening = asyncio.Semaphore(limit), asyncio.Semaphore(_OPENING)
        self._idle: list[_Connection] = []  # the last one used last

    async def request(
        self, method: str, target: str, headers: Iterable[tuple[str, str]], data: bytes | None, *, connect: float
    ) -> tuple[int, bytes]:
        """Status and body of the answer. Not sent if no connection is free within `connect` seconds. Raises OSError."""
        request = self._address.request(method, target, headers, data)
        try:
            async with asyncio.timeout(connect):
                connection = await self._take()
        except TimeoutError as error:
            raise NotSentError(f"not sent: no connection was free within {connect:g} s") from error
        try:
            answer = await connection.ask(request)
        except BaseException:  # also if the caller no longer waits: the answer may still come
            connection.close()
            raise
        finally:
            self._slots.release()
        if connection.open:
            connection.used = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    async def _take(self) -> _Connection:
        await self._slots.acquire()
        try:
            # The others wait rather for a connection that is free again: many handshakes at once take longer.
            async with self._opening:
                return self._kept() or await self._open()
        except BaseException:
            self._slots.release()
            raise

    def _kept(self) -> _Connection | None:
        since = asyncio.get_running_loop().time() - _KEPT
        while self._idle:
            connection = self._idle.pop()
            if connection.open and connection.used > since:
                return connection
            connection.close()
        return None

    async def _open(self) -> _Connection:
        address, loop = self._address, asyncio.get_running_loop()
        tls = self._server.tls if address.secure else None
        _, connection = await loop.create_connection(
            _Connection, address.host, address.port, ssl=tls, server_hostname=address.name
        )
        return connection

    def close(self) -> None:
        """End those that wait for a request."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()


def _lines(headers: Iterable[tuple[str, str]]) -> str:
    lines = [f"{name}: {value}" for name, value in headers]
    if any("\r" in line or "\n" in line for line in lines):
        raise AnswerError("a header has a line break; is there one in the token?")
    return "".join(f"{line}\r\n" for line in lines)
