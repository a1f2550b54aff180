"""A small API server in this process: one collection that can be listed in pages and watched, and that fails on order.

It keeps what it says about versions: every write counts one up, a watch tells all writes after the version it is asked
from, and versions that were compacted away are answered with 410.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from aliquot.adapters.kubernetes.kube import Kube, Server

Json = dict[str, Any]
Fault = Callable[[web.Request], Awaitable[web.StreamResponse]]
PATH = "/api/v1/things"


def status(code: int, reason: str = "", message: str = "") -> Fault:
    """That answer instead."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"kind": "Status", "code": code, "reason": reason, "message": message}, status=code)

    return answer


def text(code: int, body: str) -> Fault:
    """An answer that is not the API server's."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=code, text=body)

    return answer


async def hang_up(request: web.Request) -> web.StreamResponse:
    """The connection is cut, before any answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def half_an_answer(request: web.Request) -> web.StreamResponse:
    """The connection is cut in the middle of an answer."""
    answer = web.StreamResponse(headers={"Content-Length": "1000"})
    await answer.prepare(request)
    await answer.write(b'{"metadata": {"resourceVersion": "1"}, "items": [')
    return await hang_up(request)


async def no_answer(request: web.Request) -> web.StreamResponse:
    """The server answers after any client's patience."""
    await asyncio.sleep(30)
    return web.Response()


class ApiServer:
    """An async context manager; `kube()` is a client of it. With a TLS context it serves https."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.version = 100
        self.items: dict[str, Json] = {}
        self.calls: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.faults: deque[Fault] = deque()  # for the next lists and other calls
        self.watch_faults: deque[Fault] = deque()
        self.tokens: set[str] | None = None  # the bearer tokens that are accepted; None: anybody
        self.expired_in_stream = True  # how a watch gets 410: as an event, or as the answer
        # The answer to /version, which is not among the calls; None: refused.
        self.release: Json | None = {"major": "1", "minor": "32"}
        self._oldest = 0
        self._history: list[tuple[int, bytes]] = []
        self._watches: list[tuple[web.Request, asyncio.Queue[bytes | None]]] = []
        self._lists: dict[str, tuple[int, list[Json]]] = {}
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> ApiServer:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls)
        await site.start()
        self.url = f"http{'s' if self._tls else ''}://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        self.cut()
        await self._runner.cleanup()

    def kube(self) -> Kube:
        return Kube(Server(self.url))

    # --- what happens in the cluster

    def put(self, name: str, *, quietly: bool = False, **fields: Any) -> None:
        """Made or changed. Quietly: no watch will ever tell."""
        known = name in self.items
        self.version += 1
        self.items[name] = {"metadata": {"name": name, "resourceVersion": str(self.version)}, **fields}
        if not quietly:
            self._tell("MODIFIED" if known else "ADDED", self.items[name])

    def remove(self, name: str, *, quietly: bool = False) -> None:
        item = self.items.pop(name)
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        if not quietly:
            self._tell("DELETED", item)

    def bookmark(self) -> None:
        self._tell("BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}}, keep=False)

    def compact(self) -> None:
        """Nothing before now can be watched from any more."""
        self._oldest = self.version
        self._history.clear()
        self._lists.clear()

    def say(self, line: bytes) -> None:
        """Tell those who watch something, whatever it is."""
        for _, queue in self._watches:
            queue.put_nowait(line)

    def end_watches(self) -> None:
        """End all watches, as the server does when their time is over."""
        for _, queue in self._watches:
            queue.put_nowait(None)

    def cut(self) -> None:
        """Every watch loses its connection."""
        for request, queue in self._watches:
            if request.transport is not None:
                request.transport.abort()
            queue.put_nowait(None)

    @property
    def watching(self) -> int:
        return sum(request.transport is not None and not request.transport.is_closing() for request, _ in self._watches)

    def asked(self, *, watch: bool) -> list[web.Request]:
        """The lists, or the watches, so far."""
        return [call for call in self.calls if call.method == "GET" and ("watch" in call.query) == watch]

    def _tell(self, kind: str, item: Json, *, keep: bool = True) -> None:
        line = json.dumps({"type": kind, "object": item}).encode() + b"\n"
        if keep:
            self._history.append((self.version, line))
        self.say(line)

    # --- answers

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/version":
            return web.json_response(self.release, status=403 if self.release is None else 200)
        self.calls.append(request)
        self.bodies.append(await request.read())
        if self.tokens is not None and request.headers.get("Authorization", "")[7:] not in self.tokens:
            return await status(401, "Unauthorized", "who are you?")(request)
        watch = "watch" in request.query
        faults = self.watch_faults if watch else self.faults
        if faults:
            return await faults.popleft()(request)
        if request.path != PATH:
            return web.json_response({"method": request.method, "path": request.path, "query": dict(request.query)})
        return await (self._watch(request) if watch else self.listed(request))

    def late(self, event: asyncio.Event) -> Fault:
        """The right answer, as things are when it is asked for, but after that."""

        async def answer(request: web.Request) -> web.StreamResponse:
            right = await self.listed(request)
            await event.wait()
            return right

        return answer

    async def listed(self, request: web.Request) -> web.StreamResponse:
        limit, more = int(request.query.get("limit", "1000")), request.query.get("continue", "")
        if more:
            if more not in self._lists:
                return await status(410, "Expired", "the continue token is too old")(request)
            version, items = self._lists.pop(more)
        else:
            version, items = self.version, [json.loads(json.dumps(item)) for item in self.items.values()]
        metadata: Json = {"resourceVersion": str(version)}
        if len(items) > limit:
            metadata["continue"] = f"{version}-{len(items)}"
            self._lists[metadata["continue"]] = (version, items[limit:])
        return web.json_response({"metadata": metadata, "items": items[:limit]})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        since = int(request.query["resourceVersion"])
        expired = {"code": 410, "reason": "Expired", "message": "too old"}
        if since < self._oldest and not self.expired_in_stream:
            return await status(410, "Expired", "too old")(request)
        answer = web.StreamResponse()
        await answer.prepare(request)
        if since < self._oldest:
            await answer.write(json.dumps({"type": "ERROR", "object": expired}).encode() + b"\n")
            return answer
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        for version, line in self._history:
            if version > since:
                queue.put_nowait(line)
        self._watches.append((request, queue))
        try:
            while (chunk := await queue.get()) is not None and request.transport is not None:
                await answer.write(chunk)
        except ConnectionError:
            pass
        finally:
            self._watches = [watch for watch in self._watches if watch[1] is not queue]
        return answer
