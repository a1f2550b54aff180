"""Requests without aiohttp: the answer is the server's or it is unknown, and nothing is written twice by itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from aliquot.adapters.kubernetes import connections as module
from aliquot.adapters.kubernetes.connections import AnswerError, Connections, can_connect, read_body, read_head
from aliquot.adapters.kubernetes.credentials import Credential
from aliquot.adapters.kubernetes.kube import ApiError, Kube, NotSent, Server, Unreachable
from kit.clusters.apiserver import ApiServer, half_an_answer, hang_up, no_answer, status, text

POD = "/api/v1/namespaces/ns/pods/p/binding"
Scene = Callable[[ApiServer, Kube], Awaitable[None]]

# --- reading answers --------------------------------------------------------------------------------------------------


def read_answer(received: bytes) -> tuple[int, bytes, bool] | None:
    """Status, body, and whether the connection may be used again; None: the rest is still to come."""
    head = read_head(received)
    found = None if head is None else read_body(head, received, len(received))
    return None if head is None or found is None else (head.status, found[0], head.keep and found[1] == len(received))


@given(st.binary(max_size=300), st.lists(st.integers(1, 50), max_size=8), st.booleans(), st.booleans())
def test_answer_is_read_once_it_is_complete(body: bytes, sizes: list[int], chunked: bool, early: bool) -> None:
    first = b"HTTP/1.1 100 Continue\r\n\r\n" if early else b""
    if chunked:
        pieces, at = [], 0
        for size in [*sizes, len(body)]:
            piece, at = body[at : at + size], at + size
            pieces += [b"%x\r\n" % len(piece) + piece + b"\r\n"] if piece else []
        sent = first + b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(pieces) + b"0\r\n\r\n"
    else:
        sent = first + b"HTTP/1.1 201 Created\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    assert [read_answer(sent[:end]) for end in range(len(sent))] == [None] * len(sent)
    assert read_answer(sent) == (201, body, True)
    assert read_answer(sent + b"x") == (201, body, False)


@given(st.binary(max_size=200))
def test_noise_is_unreadable_or_unfinished(noise: bytes) -> None:
    for sent in (
        noise,
        b"HTTP/1.1 200 OK\r\n" + noise,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + noise,
    ):
        with contextlib.suppress(AnswerError):
            read_answer(sent + b"\r\n\r\n")


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/2 200 OK\r\nContent-Length: 0",
        b"HTTP/1.1 200 OK",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip",
    ],
)
def test_ambiguous_answer_is_unreadable(head: bytes) -> None:
    with pytest.raises(AnswerError):
        read_answer(head + b"\r\n\r\n0\r\n\r\n")


def test_connection_is_not_kept_where_the_server_ends_it() -> None:
    assert read_answer(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n") == (200, b"", False)
    assert read_answer(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n") == (200, b"", False)
    assert read_answer(b"HTTP/1.1 204 No Content\r\n\r\n") == (204, b"", True)


# --- requests ---------------------------------------------------------------------------------------------------------


def play(scene: Scene, credential: Credential | None = None) -> None:
    async def run() -> None:
        async with ApiServer() as server, Kube(Server(server.url, credential=credential or Credential())) as kube:
            await scene(server, kube)

    asyncio.run(asyncio.wait_for(run(), 60.0))


async def bind(kube: Kube, **more: Any) -> Any:
    return await kube.create(POD, {"a": 1}, params={"timeout": "4s"}, **{"connect": 10.0, **more})


def test_requests_share_a_connection_and_arrive_as_they_were_meant() -> None:
    async def scene(server: ApiServer, kube: Kube) -> None:
        for _ in range(3):
            assert await bind(kube) == {"method": "POST", "path": POD, "query": {"timeout": "4s"}}
        first, *others = server.calls
        assert all(call.transport is first.transport for call in others)
        assert first.headers["Content-Type"] == "application/json"
        assert first.headers["User-Agent"] == "aliquot"
        assert json.loads(server.bodies[0]) == {"a": 1}

    play(scene)


def test_refusal_is_an_apierror_and_the_connection_is_kept() -> None:
    async def scene(server: ApiServer, kube: Kube) -> None:
        server.faults.append(status(409, "Conflict", "already bound " + "x" * 5000))
        with pytest.raises(ApiError, match="already bound"):
            await bind(kube)
        await bind(kube)
        assert server.calls[0].transport is server.calls[1].transport

    play(scene)


@pytest.mark.parametrize("chunked", [True, False])
def test_long_answers_arrive_whole_on_one_connection_which_then_keeps_little_room(
    chunked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ROOM_KEPT", 0.0)
    pages = [bytes([page]) * 300_000 + b"\r\n\r\n" for page in range(3)]  # the end of an answer may be in one

    def page(body: bytes) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(request: web.Request) -> web.StreamResponse:
            if not chunked:
                return web.Response(body=body)
            response = web.StreamResponse()
            await response.prepare(request)
            for at in range(0, len(body), 70_000):
                await response.write(body[at : at + 70_000])
                await asyncio.sleep(0)
            return response

        return answer

    async def scene(server: ApiServer, kube: Kube) -> None:
        server.faults += [page(body) for body in pages]
        found = [await kube.get("/api/v1/pods", into=bytes, connect=10.0) for _ in pages]
        assert found == pages
        assert len({call.transport for call in server.calls}) == 1
        await asyncio.sleep(0.01)
        assert kube._direct is not None
        assert [len(connection._buffer) for connection in kube._direct._idle] == [module._ROOM]

    play(scene)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (hang_up, "POST"),
        (half_an_answer, "POST"),
        (no_answer, "no answer in time"),
        (text(200, "{"), "an unreadable answer"),
    ],
    ids=["hangs up", "half an answer", "no answer", "broken"],
)
def test_no_answer_or_half_of_one_is_unreachable_and_the_next_request_has_a_new_connection(
    fault: Any, why: str
) -> None:
    async def scene(server: ApiServer, kube: Kube) -> None:
        server.faults.append(fault)
        with pytest.raises(Unreachable, match=why):
            await bind(kube, timeout=0.5)
        assert len(server.calls) == 1, "a write is not sent twice by itself"
        assert (await bind(kube))["method"] == "POST"

    play(scene)


def test_connection_that_waited_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(server: ApiServer, kube: Kube) -> None:
        await bind(kube)
        monkeypatch.setattr(module, "_KEPT", -1.0)
        await bind(kube)
        assert server.calls[0].transport is not server.calls[1].transport

    play(scene)


def test_request_is_not_sent_while_all_connections_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aliquot.adapters.kubernetes.kube._DIRECT", 1)

    async def scene(server: ApiServer, kube: Kube) -> None:
        go, under_way = asyncio.Event(), asyncio.Event()

        async def slow(request: web.Request) -> web.StreamResponse:
            under_way.set()
            await go.wait()
            return web.json_response({"first": True})

        server.faults.append(slow)
        first = asyncio.create_task(bind(kube, timeout=50.0))
        await under_way.wait()
        with pytest.raises(NotSent, match="not sent: no connection was free"):
            await bind(kube, connect=0.05)
        waiting = asyncio.create_task(bind(kube, timeout=50.0, connect=50.0))
        await asyncio.sleep(0)
        go.set()
        assert await first == {"first": True}
        assert (await waiting)["method"] == "POST"
        assert len(server.calls) == 2

    play(scene)


def test_token_that_is_not_accepted_is_read_anew_once(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")

    async def scene(server: ApiServer, kube: Kube) -> None:
        server.tokens = {"old"}
        await bind(kube)
        server.tokens = {"new"}
        file.write_text("new\n")
        await bind(kube)
        assert [call.headers["Authorization"] for call in server.calls] == ["Bearer old", "Bearer old", "Bearer new"]
        server.tokens = {"another"}
        with pytest.raises(ApiError) as refused:
            await bind(kube)
        assert refused.value.status == 401
        assert len(server.calls) == 5

    play(scene, Credential(file=file))


def test_server_that_is_not_there_is_unreachable() -> None:
    async def scene() -> None:
        async with Kube(Server("http://127.0.0.1:9")) as kube:
            with pytest.raises(Unreachable, match="POST"):
                await bind(kube)

    asyncio.run(scene())


def test_proxies_and_passwords_in_the_address_are_left_to_aiohttp() -> None:
    assert can_connect(Server("http://127.0.0.1:9"))
    assert not can_connect(Server("https://127.0.0.1:9"))  # verified by aiohttp's own context
    assert not can_connect(Server("http://127.0.0.1:9", proxy="http://127.0.0.1:10"))
    assert not can_connect(Server("http://me:secret@127.0.0.1:9"))


async def read_all(accepted: socket.socket) -> None:
    while await asyncio.get_running_loop().sock_recv(accepted, 1 << 20):
        pass


def test_request_that_was_given_up_is_not_sent_by_the_kernel_later() -> None:
    """The API server reads nothing for a while: what is still in our buffers must not arrive once it reads again."""

    async def scene() -> None:
        body, loop = b"x" * (16 << 20), asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            port = listener.getsockname()[1]
            connections = Connections(Server(f"http://127.0.0.1:{port}"), [], 1)
            asking = asyncio.create_task(connections.request("POST", "/bind", [], body, connect=60))
            accepted, _ = await loop.sock_accept(listener)
            with accepted:
                async with asyncio.timeout(60):
                    await loop.sock_recv(accepted, 1)  # it has begun to send
                    asking.cancel()
                    await asyncio.gather(asking, return_exceptions=True)
                    with pytest.raises(ConnectionResetError):
                        await read_all(accepted)

    asyncio.run(scene())
