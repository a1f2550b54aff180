"""What strangers send to the port of the verbs: it is refused, and breaks neither way of serving."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from aiohttp.http import HttpRequestParser
from aiohttp.http_exceptions import HttpProcessingError
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.services.scheduler.ports.verbserver import read_head
from kit.clusters.verbserver import CHUNKED, LAST, Rig, post, rest, run

SMUGGLED = b"POST /v HTTP/1.1\r\nHost: a\r\nContent-Length: 7\r\n\r\nsmuggle"


HOSTILE = {
    "two ways to tell the length": post(SMUGGLED, "/v", "Transfer-Encoding: chunked", length=0),
    "chunked, then a length": CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 3\r\n\r\n", 1) + b"0\r\n\r\n",
    "two lengths": post(SMUGGLED, "/v", "Content-Length: 3", length=0),
    "a list of lengths": post(b"abc", length="3, 3"),
    "a signed length": post(b"abc", length="+3"),
    "a negative length": post(b"abc", length=-3),
    "a length in hex": post(b"abc", length="0x3"),
    "a length with a gap": post(b"abc", length="1 0"),
    "space before the colon": b"POST /v HTTP/1.1\r\nHost: a\r\nContent-Length : 3\r\n\r\nabc",
    "a continued header": post(b"abc", "/v", "Accept: a\r\n Content-Length: 9"),
    "NUL in a header": post(b"abc", "/v", "Accept: \x00"),
    "a line without a colon": post(b"abc", "/v", "Accept"),
    "an unknown coding": post(SMUGGLED, "/v", "Transfer-Encoding: chunked, what", length=0),
    "a broken chunk": CHUNKED + b"zz\r\nabc\r\n0\r\n\r\n",
    "too large a head": b"POST /v HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    "endless letters": b"POST /" + b"v" * 100_000,
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100) + b"\r\n\r\n",
}


@pytest.mark.parametrize("sent", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_request_is_refused_and_nothing_after_it_is_answered(sent: bytes) -> None:
    async def scene(rig: Rig) -> bytes:
        refused = await rig.ask(sent + SMUGGLED)
        assert await rig.ask(post(b"abc", "/v"), LAST) != b""  # the next visitor is served
        return refused

    refused, rig = run(scene)
    assert refused.split()[1] in (b"400", b"414", b"431")
    assert b"smuggle" not in rig.bodies


_NAMES = [
    "Host",
    "Content-Length",
    "content-length",
    "Transfer-Encoding",
    "Accept",
    "Connection",
    "X-A",
    "Expect",
    " A",
]


_VALUES = ["3", " 3", "3 ", "+3", "3,3", "0", "chunked", "close", "a", "\x00", "\t", "é", "\n", "\r", "\x0b3", ""]


_LINES = st.builds(
    lambda name, colon, value: name + colon + value,
    st.sampled_from(_NAMES),
    st.sampled_from([":", ": ", " :", ""]),
    st.sampled_from(_VALUES) | st.text(max_size=5),
)


_FIRST = st.sampled_from(
    [
        "POST /v HTTP/1.1",
        "POST /v HTTP/1.0",
        "POST  /v HTTP/1.1",
        "GET /v HTTP/1.1",
        "POST v HTTP/1.1",
        "POST /v\t HTTP/1.1",
    ]
)


@settings(max_examples=200, deadline=None)
@given(_FIRST, st.lists(_LINES, max_size=5), st.sampled_from(["\r\n", "\n"]))
def test_what_is_read_directly_means_the_same_to_aiohttp(first: str, lines: list[str], newline: str) -> None:
    head = newline.join([first, "Host: a", "Content-Length: 3", *lines]).encode()
    if b"\r\n\r\n" in head:
        return
    found = read_head(head)
    if found is None:
        return
    message = _by_aiohttp(head)
    assert (message.method, message.path, message.chunked, message.upgrade) == ("POST", "/v", False, False)
    assert message.headers.getall("Content-Length") == [str(found[1])]
    assert (message.should_close, message.compression) == (False, None)


def _by_aiohttp(head: bytes) -> Any:
    async def parse() -> Any:
        loop = asyncio.get_running_loop()
        parser = HttpRequestParser(web.RequestHandler(web.Server(_never), loop=loop), loop, 2**16)
        ((message, _),), _, _ = parser.feed_data(head + b"\r\n\r\n")
        return message

    try:
        return asyncio.run(parse())
    except HttpProcessingError as error:
        raise AssertionError(f"aiohttp refuses {head!r}: {error}") from error


async def _never(request: web.BaseRequest) -> web.StreamResponse:
    raise AssertionError


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 400))
def test_damaged_requests_leave_the_server_whole(noise: bytes, at: int) -> None:
    request = post(b"abc") + post(b"abcd", "/slow")

    async def scene(rig: Rig) -> bytes:
        rig.go.set()
        async with rig.visitor(request[:at] + noise + request[at + len(noise) :]) as (reader, writer):
            writer.write_eof()
            await rest(reader)
        return await rig.ask(post(b"abcde"), LAST)

    answers, rig = run(scene)
    assert b"direct 5" in answers
    assert (rig.limits._arriving, rig.limits._busy, rig.server.own) == (0, {}, {})
