"""One kept connection to an extender, as cheap as Python can: the driver shares two cores with what it measures."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

_PIECE = 1 << 20


class Line:
    """POST after POST on one socket. OSError when the extender is not there or goes away."""

    def __init__(self, url: str, *, timeout: float = 120.0) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._timeout = timeout
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def call(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of the answer to what `post` or `get` made."""
        try:
            return self._call(request)
        except BaseException:
            self.close()
            raise

    def _call(self, request: bytes) -> tuple[int, bytes]:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, self._timeout)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(request)
        data = bytearray()
        while (end := data.find(b"\r\n\r\n")) < 0:
            self._more(data)
        head = bytes(data[:end]).lower()
        status = int(head[9:12])
        body = data[end + 4 :]
        if b"transfer-encoding: chunked" in head:
            return status, self._chunks(body)
        length = _length(head)
        while len(body) < length:
            self._more(body)
        return status, bytes(body)

    def _chunks(self, data: bytearray) -> bytes:
        """The body of an answer whose length was not known when it began, as Go's server sends large ones."""
        body, at = bytearray(), 0
        while True:
            while (end := data.find(b"\r\n", at)) < 0:
                self._more(data)
            size = int(data[at:end].split(b";")[0], 16)
            while len(data) < end + 2 + size + 2:
                self._more(data)
            if size == 0:
                return bytes(body)
            body += data[end + 2 : end + 2 + size]
            at = end + 2 + size + 2

    def _more(self, data: bytearray) -> None:
        assert self._socket is not None, "connected"
        piece = self._socket.recv(_PIECE)
        if not piece:
            raise ConnectionError("the extender closed the connection in the middle of an answer")
        data += piece


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return 0


def post(path: str, *pieces: bytes) -> bytes:
    """A whole request, to be sent many times."""
    body = b"".join(pieces)
    head = f"POST {path} HTTP/1.1\r\nHost: extender\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: extender\r\n\r\n".encode()
