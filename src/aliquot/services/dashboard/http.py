"""The dashboard's HTTP: a page, its files, and the JSON and events that it draws. Read-only: GET and nothing else.

access.py decides who may look, the view what is shown, the hub who gets which frame and when.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from aliquot.services.daemon.http import Limits, make_runner, serve_limited
from aliquot.services.daemon.metrics import CONTENT_TYPE
from aliquot.services.dashboard.access import Access, Verdict, judge
from aliquot.services.dashboard.assets import Asset, read_assets
from aliquot.services.dashboard.history import RANGES
from aliquot.services.dashboard.hub import MOST_LISTENERS, Hub, encode

_PATIENCE = 10.0  # seconds in which a listener must take what it is sent
_IDLE = 30.0  # seconds that a connection may be open without a request
_MOST_CONNECTIONS = 2 * MOST_LISTENERS
_MOST_FOUND = 200
_JSON = "application/json"
_WORTH_COMPRESSING = 4096
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_NOT_BUILT = "The dashboard's files are not in this installation: `make web` builds them. The API and /metrics work.\n"
_WRONG_HOST = "This dashboard answers only under this machine's names: open {url}, or start it with a token.\n"
_UNAUTHORIZED = (
    "A token is needed: open {url}?token=TOKEN in a browser, or send the header `Authorization: Bearer TOKEN`. "
    "It is in the file that the server was started with.\n"
)

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class DashboardHttp:
    """Answers for one hub."""

    def __init__(self, hub: Hub, access: Access, clock: Callable[[], float] = time.time) -> None:
        self._hub, self._access, self._clock = hub, access, clock
        self._assets = read_assets()

    def app(self) -> web.Application:
        """The routes."""
        app = web.Application(middlewares=[self._guard])
        for path, answer in (
            ("/api/v1/state", self._state),
            ("/api/v1/events", self._events),
            ("/api/v1/history", self._history),
            ("/api/v1/search", self._search),
            ("/api/v1/nodes/{name}", self._node),
            ("/api/v1/pods/{key:.+}", self._pod),
            ("/metrics", self._metrics),
        ):
            app.router.add_get(path, answer, allow_head=path != "/api/v1/events")
        app.router.add_get("/{path:.*}", self._file)
        app.on_shutdown.append(self._end)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Checks access, and adds the headers of every answer."""
        access = self._access
        verdict = judge(
            access,
            path=request.path,
            host=request.headers.get("Host", ""),
            query=request.query,
            authorization=request.headers.get("Authorization", ""),
            cookies=request.cookies,
        )
        try:
            match verdict:
                case Verdict.ALLOWED:
                    answer = await handler(request)
                case Verdict.SET_COOKIE:
                    answer = _with_cookie(access)
                case Verdict.WRONG_HOST:
                    answer = web.Response(status=403, text=_WRONG_HOST.format(url=access.url))
                case Verdict.UNAUTHORIZED:
                    text = _UNAUTHORIZED.format(url=access.url)
                    answer = web.Response(status=401, text=text, headers={"WWW-Authenticate": "Bearer"})
        except web.HTTPException as error:
            error.headers.update(_HEADERS)
            raise
        if not answer.prepared:
            answer.headers.update(_HEADERS)
            answer.headers.setdefault("Cache-Control", "no-store")
        return answer

    async def _end(self, app: web.Application) -> None:
        self._hub.close()

    # --- data --------------------------------------------------------------------------------------------------

    async def _state(self, request: web.Request) -> web.StreamResponse:
        return _compressed(request, self._hub.state(self._clock()))

    async def _history(self, request: web.Request) -> web.StreamResponse:
        over = request.query.get("range", "10m")
        if over not in RANGES:
            return _refused(f'range: "{over[:40]}" is not allowed: one of {", ".join(RANGES)}')
        return _compressed(request, encode(self._hub.recorder.history(over)))

    async def _search(self, request: web.Request) -> web.StreamResponse:
        limit = request.query.get("limit", "50")
        if not (len(limit) <= 9 and limit.isascii() and limit.isdigit() and 0 < int(limit) <= _MOST_FOUND):
            return _refused(f'limit: "{limit[:40]}" is not allowed: a number from 1 to {_MOST_FOUND}')
        words = request.query.get("q", "").strip()[:256]
        return _compressed(request, encode(self._hub.view.search(words, int(limit))))

    async def _node(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        found = await self._hub.view.node(name, self._clock())
        return _not_found("node", name) if found is None else _compressed(request, encode(found))

    async def _pod(self, request: web.Request) -> web.StreamResponse:
        key = request.match_info["key"]
        found = await self._hub.view.pod(key, self._clock())
        return _not_found("Pod or run", key) if found is None else _compressed(request, encode(found))

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=self._hub.view.metrics(), headers={"Content-Type": CONTENT_TYPE})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """As long as the browser listens, and keeps up."""
        if len(self._hub.listeners) >= MOST_LISTENERS:
            return web.Response(status=503, text=f"{MOST_LISTENERS} browsers watch already: close one of them\n")
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        answer = web.StreamResponse(headers={**headers, **_HEADERS})
        await answer.prepare(request)
        listener = self._hub.join()
        try:
            while (frames := await listener.next()) is not None:
                async with asyncio.timeout(_PATIENCE):
                    await answer.write(frames)
        except (ConnectionError, TimeoutError):
            pass
        finally:
            self._hub.leave(listener)
        if request.transport is not None:
            request.transport.abort()  # too slow, or gone: do not wait for it
        return answer

    # --- the page --------------------------------------------------------------------------------------------------

    async def _file(self, request: web.Request) -> web.StreamResponse:
        asset = self._assets.get(request.path)
        if asset is None:
            missing = request.path == "/" and not self._assets
            return web.Response(status=503, text=_NOT_BUILT) if missing else _not_found("page", request.path)
        return _asset(request, asset)


def _asset(request: web.Request, asset: Asset) -> web.Response:
    headers = {
        "ETag": asset.tag,
        "Content-Type": asset.kind,
        "Cache-Control": "public, max-age=31536000, immutable" if asset.lasting else "no-cache",
        "Vary": "Accept-Encoding",
    }
    if request.headers.get("If-None-Match") == asset.tag:
        return web.Response(status=304, headers=headers)
    if asset.zipped is not None and _accepts_gzip(request):
        return web.Response(body=asset.zipped, headers={**headers, "Content-Encoding": "gzip"})
    return web.Response(body=asset.body, headers=headers)


def _compressed(request: web.Request, body: bytes) -> web.Response:
    """JSON, compressed where it is large."""
    headers = {"Vary": "Accept-Encoding"}
    if len(body) >= _WORTH_COMPRESSING and _accepts_gzip(request):
        packer = zlib.compressobj(1, wbits=31)
        body = packer.compress(body) + packer.flush()
        headers["Content-Encoding"] = "gzip"
    return web.Response(body=body, content_type=_JSON, charset="utf-8", headers=headers)


def _accepts_gzip(request: web.Request) -> bool:
    return "gzip" in request.headers.get("Accept-Encoding", "")


def _with_cookie(access: Access) -> web.Response:
    answer = web.Response(status=303, headers={"Location": "/"})
    answer.set_cookie(access.cookie, access.badge, httponly=True, samesite="Strict", path="/")
    return answer


def _not_found(what: str, name: str) -> web.Response:
    return web.json_response({"error": f"no {what} is called {name[:256]}"}, status=404)


def _refused(text: str) -> web.Response:
    return web.json_response({"error": text}, status=400)


@contextlib.asynccontextmanager
async def serving(hub: Hub, access: Access, listener: socket.socket) -> AsyncIterator[None]:
    """The dashboard on that socket, as long as the context lasts."""
    limits = Limits(_MOST_CONNECTIONS)
    runner = make_runner(DashboardHttp(hub, access).app(), limits, shutdown=0.5, keepalive=_IDLE)
    async with serve_limited(runner, listener, limits):
        yield
