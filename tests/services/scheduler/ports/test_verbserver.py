"""kube-scheduler's form of request is served directly, any other by aiohttp; what strangers send breaks neither."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.http import HttpRequestParser
from aiohttp.http_exceptions import HttpProcessingError
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.adapters.kubernetes.certificates import issue, make_authority, present, server_context
from aliquot.services.daemon.http import BodyError, Limits, listen, make_runner
from aliquot.services.scheduler.ports.verbserver import Answer, VerbServer, read_head

_LARGEST = 100_000
_PATIENCE = 60.0


class Rig:
    """A server whose answers tell who gave them: `direct 3` or `aiohttp 3`, for a body of three bytes."""

    def __init__(self, limits: Limits, idle: float = 60.0, silent: float = 60.0) -> None:
        self.limits, self.idle, self.silent = limits, idle, silent
        self.bodies: list[bytes] = []
        self.slow, self.go = asyncio.Event(), asyncio.Event()
        self.address: Any = None
        self.server: VerbServer

    def direct(self, body: bytes | BodyError) -> bytes:
        if isinstance(body, BodyError):
            return f"error {body.status}".encode()
        self.bodies.append(body)
        return b"direct %d" % len(body)

    async def later(self, body: bytes | BodyError) -> bytes:
        self.slow.set()
        await self.go.wait()
        return self.direct(body)

    async def by_aiohttp(self, request: web.Request) -> web.Response:
        try:
            body = await self.limits.read_body(request, _LARGEST)
        except BodyError as error:
            response = web.Response(text=f"error {error.status}")
            response.force_close()
            return response
        self.bodies.append(body)
        return web.Response(text=f"aiohttp {len(body)}")

    @contextlib.asynccontextmanager
    async def serving(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[Rig]:
        app = web.Application()
        app.router.add_post("/v", self.by_aiohttp)
        app.router.add_get("/v", self.by_aiohttp)
        runner = make_runner(app, self.limits, shutdown=0.1)
        await runner.setup()
        assert runner.server is not None
        answers: dict[bytes, Answer] = {b"/v": self.direct, b"/slow": self.later}
        closed = {"idle": self.idle, "silent": self.silent}
        self.server = VerbServer(answers, runner.server, self.limits, largest=_LARGEST, **closed)
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        accepting = listen(runner, listener, self.limits, tls=tls, server=self.server)
        try:
            yield self
        finally:
            accepting.close()
            await self.server.close()
            await runner.cleanup()

    @contextlib.asynccontextmanager
    async def visitor(
        self, sent: bytes = b"", tls: ssl.SSLContext | None = None
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection(*self.address, ssl=tls)
        writer.write(sent)
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def ask(self, *pieces: bytes) -> bytes:
        """All that is answered until the server closes the connection; the last request should ask for that."""
        async with self.visitor() as (reader, writer):
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0)
            return await _rest(reader)


async def _rest(reader: asyncio.StreamReader) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(_PATIENCE):
            while piece := await reader.read(65536):
                received += piece
    return received


async def _answer(reader: asyncio.StreamReader) -> bytes:
    """The body of the next answer."""
    async with asyncio.timeout(_PATIENCE):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        return await reader.readexactly(int(length.split(b":")[1]))


def run(
    scene: Callable[[Rig], Awaitable[Any]],
    *,
    idle: float = 60.0,
    silent: float = 60.0,
    connections: int = 8,
    tls: ssl.SSLContext | None = None,
    **limits: Any,
) -> tuple[Any, Rig]:
    async def scenario() -> tuple[Any, Rig]:
        rig = Rig(Limits(connections, **{"unfinished": 1 << 20, **limits}), idle, silent)
        async with rig.serving(tls):
            return await scene(rig), rig

    return asyncio.run(scenario())


def post(body: bytes = b"abc", path: str = "/v", *more: str, length: object = None) -> bytes:
    """As Go's client sends it."""
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: aliquot:12345",
        "User-Agent: Go-http-client/1.1",
        f"Content-Length: {len(body) if length is None else length}",
        "Content-Type: application/json",
        "Accept-Encoding: gzip",
        *more,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


CHUNKED = b"POST /v HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = post(b"", "/v", "Connection: close")  # served by aiohttp, which closes the connection then

# --- whose request it is ----------------------------------------------------------------------------------------------


def test_connection_is_kept_and_given_to_aiohttp_at_the_first_other_request() -> None:
    async def scene(rig: Rig) -> list[bytes]:
        async with rig.visitor() as (reader, writer):
            answers = []
            for request in (
                post(b"abc"),
                post(b""),
                post(b"x" * 90_000),
                post(b"ab", "/v", "X-Other: 1"),
                post(b"abc"),
            ):
                writer.write(request)
                answers.append(await _answer(reader))
            return answers

    assert run(scene)[0] == [b"direct 3", b"direct 0", b"direct 90000", b"aiohttp 2", b"aiohttp 3"]


def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of the server, and of its clients."""
    authority = make_authority("test", time.time(), 1e6)
    context = server_context()
    present(context, issue(authority, ("aliquot.example",), time.time(), 1e5))
    client = ssl.create_default_context(cadata=authority.certificate.decode())
    client.check_hostname = False
    return context, client


def test_connection_with_tls_is_given_to_aiohttp_too() -> None:
    context, client = contexts()

    async def scenario() -> list[bytes]:
        rig = Rig(Limits(8, unfinished=1 << 20))
        async with rig.serving(context):
            reader, writer = await asyncio.open_connection(*rig.address, ssl=client, server_hostname="aliquot.example")
            answers = []
            for request in (post(b"abc"), post(b"x" * 90_000), CHUNKED + b"2\r\nab\r\n0\r\n\r\n", post(b"abc")):
                writer.write(request)
                answers.append(await _answer(reader))
            writer.close()
            return answers

    assert asyncio.run(scenario()) == [b"direct 3", b"direct 90000", b"aiohttp 2", b"aiohttp 3"]


OTHER_FORMS = {
    "a chunked body": CHUNKED + b"3\r\nabc\r\n0\r\n\r\n",
    "Expect": post(b"abc", "/v", "Expect: 100-continue"),
    "HTTP/1.0": b"POST /v HTTP/1.0\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
    "a long header": post(b"abc", "/v", "X-Long: " + "x" * 5000),
}


@pytest.mark.parametrize("request_", OTHER_FORMS.values(), ids=OTHER_FORMS.keys())
def test_other_forms_are_served_by_aiohttp(request_: bytes) -> None:
    async def scene(rig: Rig) -> bytes:
        return await rig.ask(post(b"ab"), request_, LAST)

    answers, rig = run(scene)
    assert answers.count(b"direct 2") == answers.count(b"aiohttp 3") == 1
    assert rig.bodies[:2] == [b"ab", b"abc"]


def test_unknown_path_and_method_are_answered_by_aiohttp() -> None:
    async def scene(rig: Rig) -> list[bytes]:
        close = b"Host: a\r\nConnection: close\r\n\r\n"
        return [await rig.ask(b"GET /nothing HTTP/1.1\r\n" + close), await rig.ask(b"PUT /v HTTP/1.1\r\n" + close)]

    assert [answer.split()[1] for answer in run(scene)[0]] == [b"404", b"405"]


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_pieces_and_pipelining_do_not_change_the_answers(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 3000), min_size=1, max_size=6))
    paths = data.draw(st.lists(st.sampled_from(["/v", "/slow"]), min_size=len(sizes), max_size=len(sizes)))
    stream = b"".join(post(b"x" * size, path) for size, path in zip(sizes, paths, strict=True)) + LAST
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    async def scene(rig: Rig) -> bytes:
        rig.go.set()
        return await rig.ask(*pieces)

    answers, rig = run(scene)
    assert [len(body) for body in rig.bodies] == [*sizes, 0]
    assert answers.count(b"HTTP/1.1 200 OK") == len(sizes) + 1


# --- what strangers send ----------------------------------------------------------------------------------------------

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
            await _rest(reader)
        return await rig.ask(post(b"abcde"), LAST)

    answers, rig = run(scene)
    assert b"direct 5" in answers
    assert (rig.limits._arriving, rig.limits._busy, rig.server.own) == (0, {}, {})


# --- limits -----------------------------------------------------------------------------------------------------------


def test_slow_body_is_given_up() -> None:
    async def scene(rig: Rig) -> bytes:
        return await rig.ask(post(b"abc", length=4))

    answer, rig = run(scene, body_seconds=0.05)
    assert answer.endswith(b"Connection: close\r\n\r\nerror 408")
    assert not rig.limits._arriving


def test_slow_head_is_given_up() -> None:
    async def scene(rig: Rig) -> bytes:
        return await rig.ask(post(b"abc"), b"POST /v HT")

    assert run(scene, body_seconds=0.05)[0].endswith(b"direct 3")


def test_body_beyond_the_limit_is_refused() -> None:
    async def scene(rig: Rig) -> bytes:
        return await rig.ask(post(b"x" * (_LARGEST + 1)))

    assert run(scene)[0].endswith(b"error 413")


def test_unfinished_bodies_together_are_bounded() -> None:
    async def scene(rig: Rig) -> list[bytes]:
        async with contextlib.AsyncExitStack() as stack:
            sent = post(b"x" * 30_000, length=40_000)
            visitors = [await stack.enter_async_context(rig.visitor(sent)) for _ in range(6)]
            answers = [await _answer(reader) for reader, _ in visitors]
        async with rig.visitor(post(b"x" * 90_000)) as (reader, _):
            return [*answers, await _answer(reader)]

    answers, rig = run(scene, unfinished=100_000, body_seconds=0.5)
    assert set(answers[:-1]) == {b"error 408", b"error 503"}
    assert answers[-1] == b"direct 90000"
    assert not rig.limits._arriving


def test_new_connection_replaces_an_idle_one_and_never_a_busy_one() -> None:
    async def scene(rig: Rig) -> list[bytes]:
        async with rig.visitor(post(b"a", "/slow")) as (busy, _), rig.visitor(post(b"b")) as (idle, _):
            await asyncio.wait_for(rig.slow.wait(), _PATIENCE)
            first = await _answer(idle)
            async with rig.visitor(b"GET /v HTTP/1.1\r\nHost: a\r\n\r\n") as (third, _):
                answers = [first, await _answer(third), await _rest(idle)]
                async with rig.visitor(post(b"d")) as (fourth, _):  # in place of aiohttp's
                    answers += [await _answer(fourth), await _rest(third)]
                rig.go.set()
                return [*answers, await _answer(busy)]

    assert run(scene, connections=2)[0] == [b"direct 1", b"aiohttp 0", b"", b"direct 1", b"", b"direct 1"]


def test_idle_connection_is_closed() -> None:
    async def scene(rig: Rig) -> list[bytes]:
        return [await rig.ask(), await rig.ask(post(b"abc"))]

    silent, used = run(scene, idle=0.05)[0]
    assert silent == b""
    assert used.endswith(b"direct 3")


def test_connection_is_kept_for_an_hour_only_after_a_request_of_kube_schedulers_form() -> None:
    async def scene(rig: Rig) -> list[bytes]:
        async with rig.visitor(post(b"abc")) as (used, writer):
            first = await _answer(used)
            silent = await rig.ask()
            await asyncio.sleep(0.2)
            writer.write(post(b"abcd"))
            return [first, silent, await _answer(used)]

    assert run(scene, idle=60.0, silent=0.05)[0] == [b"direct 3", b"", b"direct 4"]


def test_connection_given_to_aiohttp_is_kept_no_longer_than_those_of_other_ports() -> None:
    """It is not kube-scheduler's, and may have sent half a header."""

    async def scene(rig: Rig) -> float:
        async with rig.visitor(b"GET /v HTTP/1.1\r\nHost: a\r\nX-Slow: "):
            async with asyncio.timeout(_PATIENCE):
                while not rig.server.others.connections:
                    await asyncio.sleep(0.01)
            return float(rig.server.others.connections[0]._keepalive_timeout)

    assert run(scene)[0] <= 300.0


@pytest.mark.parametrize("encrypted", [False, True])
def test_requests_of_a_peer_that_does_not_read_wait(encrypted: bool) -> None:
    """Its answers would fill our memory."""
    served, trusting = contexts() if encrypted else (None, None)

    async def scene(rig: Rig) -> int:
        calls = 0

        def large(body: bytes | BodyError) -> bytes:
            nonlocal calls
            calls += 1
            return b"x" * 4_000_000

        rig.server.answers = {b"/v": large}
        async with rig.visitor(post() * 10, trusting) as (reader, _):
            async with rig.visitor(post(), trusting) as (other, _):
                await _answer(other)  # served meanwhile
            before = calls
            for _ in range(10):
                await _answer(reader)
        return before

    assert run(scene, tls=served)[0] < 5


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("encrypted", [False, True])
def test_peer_that_does_not_read_its_answer_is_disconnected(encrypted: bool) -> None:
    """With TLS an answer counted as sent as soon as it was encrypted, and stayed in memory for an hour."""
    served, trusting = contexts() if encrypted else (None, None)

    async def scene(rig: Rig) -> None:
        rig.server.answers = {b"/v": lambda _: b"x" * 32_000_000}
        async with deaf(rig, trusting):
            await _until(lambda: bool(rig.server.own))
            await _until(lambda: not rig.server.own)

    run(scene, tls=served, read_seconds=0.1)


@contextlib.asynccontextmanager
async def deaf(rig: Rig, trusting: ssl.SSLContext | None) -> AsyncIterator[socket.socket]:
    """A client that asks, and does not read."""

    def ask() -> socket.socket:
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.connect(rig.address)
        client = plain if trusting is None else trusting.wrap_socket(plain)
        client.sendall(post())
        return client

    client = await asyncio.to_thread(ask)
    try:
        yield client
    finally:
        client.close()


@pytest.mark.parametrize("encrypted", [False, True])
def test_answers_that_nobody_reads_are_bounded_together_and_who_reads_is_served(encrypted: bool) -> None:
    """A caller on loopback, or with the client certificate, had an answer kept for each of its 512 connections."""
    served, trusting = contexts() if encrypted else (None, None)
    size = 8_000_000

    async def scene(rig: Rig) -> None:
        rig.server.answers = {b"/v": lambda _: b"x" * size}
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(6):
                await stack.enter_async_context(deaf(rig, trusting))
            await _until(lambda: len(rig.server.own) == 2)
            async with rig.visitor(post(), trusting) as (reader, _):
                assert await _answer(reader) == b"x" * size

    run(scene, tls=served, unread=20_000_000, read_seconds=1000.0)


def test_connection_with_tls_that_was_closed_twice_raises_nothing() -> None:
    """asyncio's transport then raises AttributeError where it is asked for its buffer, or aborted."""
    served, trusting = contexts()
    errors: list[Any] = []

    async def scene(rig: Rig) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        rig.server.answers = {b"/v": lambda _: b"x" * 8_000_000}
        async with deaf(rig, trusting):
            await _until(lambda: bool(rig.limits._unread))
            (connection,) = rig.server.own
            assert connection.transport is not None
            connection.transport.close()
            connection.transport.close()
            await asyncio.sleep(0.3)
            connection.force_close()
            rig.limits.sending(asyncio.Transport(), 1 << 40)

    run(scene, tls=served, read_seconds=0.2)
    assert errors == []


# --- the end ----------------------------------------------------------------------------------------------------------


def test_request_under_way_is_answered_before_the_end() -> None:
    async def scenario() -> bytes:
        rig = Rig(Limits(8, unfinished=1 << 20))
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(rig.serving())
            reader, writer = await asyncio.open_connection(*rig.address)
            writer.write(post(b"abc", "/slow"))
            await asyncio.wait_for(rig.slow.wait(), _PATIENCE)
            asyncio.get_running_loop().call_later(0.05, rig.go.set)
        answer = await _rest(reader)
        writer.close()
        return answer

    assert asyncio.run(scenario()).endswith(b"Connection: close\r\n\r\ndirect 3")
