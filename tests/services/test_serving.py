"""What is no HTTP is answered, and the log stays quiet; what breaks inside of us is told."""

from __future__ import annotations

import asyncio
import logging

import pytest
from aiohttp import web

from aliquot.services.serving import quiet_runner


async def _broken(request: web.Request) -> web.Response:
    raise RuntimeError("ours")


def answers(*requests: bytes) -> list[bytes]:
    """The first line of each answer."""

    async def scenario() -> list[bytes]:
        app = web.Application()
        app.router.add_get("/broken", _broken)
        runner = quiet_runner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            said = []
            for request in requests:
                reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
                writer.write(request)
                said.append(await reader.readline())
                writer.close()
                await writer.wait_closed()
            return said
        finally:
            await runner.cleanup()

    return asyncio.run(scenario())


def test_what_is_no_http_is_answered_400_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        said = answers(
            b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n"
        )
    assert {line.split(b" ")[1] for line in said} == {b"400"}
    assert caplog.records == []


def test_what_breaks_in_our_own_code_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    (said,) = answers(b"GET /broken HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert b"500" in said
    assert "RuntimeError: ours" in caplog.text
