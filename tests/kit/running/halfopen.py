"""Connections whose requests never end."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

HALF = b"GET /livez HTTP/1.1\r\nHost: a\r\nX-Slow: "


@contextlib.asynccontextmanager
async def half_open(
    port: int, count: int, sent: bytes = HALF, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[list[asyncio.StreamReader]]:
    """That many connections to a port of this host, each of which has sent that; yields what can be read from them."""
    readers: list[asyncio.StreamReader] = []
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
            stack.callback(writer.close)
            writer.write(sent)
            await writer.drain()
            readers.append(reader)
        yield readers
