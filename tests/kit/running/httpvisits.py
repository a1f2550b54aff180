"""Visitors of a port, and certificates for it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator

from aliquot.adapters.kubernetes.certificates import (
    client_context,
    issue,
    make_authority,
    present,
    server_context,
    trust,
)

QUESTION = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


@contextlib.asynccontextmanager
async def visitor(
    listener: socket.socket, sent: bytes, tls: ssl.SSLContext | None = None
) -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection(*listener.getsockname(), ssl=tls)
    writer.write(sent)
    try:
        yield reader
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The TLS contexts of a server, and of a client that trusts it."""
    authority = make_authority("ours", time.time(), 3600.0)
    served, trusting = server_context(), client_context()
    present(served, issue(authority, ["localhost"], time.time(), 3600.0))
    trust(trusting, authority.certificate)
    trusting.check_hostname = False
    return served, trusting
