"""A daemon's side of the control socket: it can be ended at any moment, also while a slow client asks."""

from __future__ import annotations

import asyncio
import socket

import pytest

from aliquot.services.daemon import control
from aliquot.services.daemon.control import close_connection, request_of, send


@pytest.mark.parametrize("steps", range(4))
def test_request_of_is_cancelled_even_as_the_request_comes(steps: int) -> None:
    """`asyncio.wait_for` goes on then, and a daemon that is ended waits for a keeper that never hangs up."""

    async def act() -> None:
        reader = asyncio.StreamReader()
        asking = asyncio.create_task(request_of(reader))
        await asyncio.sleep(0.01)
        reader.feed_data(b'{"op": "hello"}\n')
        for _ in range(steps):
            await asyncio.sleep(0)
        was_there = asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled() is was_there

    asyncio.run(act())


def test_close_connection_gives_up_on_a_client_that_never_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "REQUEST_TIMEOUT", 0.05)

    async def act() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            _, writer = await asyncio.open_unix_connection(sock=ours)
            send(writer, {"ok": {"text": "x" * 50_000}})  # more than the kernel takes, and not enough to be waited for
            await asyncio.wait_for(close_connection(writer), 10)

    asyncio.run(act())
