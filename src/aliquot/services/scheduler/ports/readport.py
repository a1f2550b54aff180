"""The scheduler's read-only port: metrics, probes and status. It has none of kube-scheduler's verbs, so a program that
may read metrics cannot have a Pod bound.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable

import msgspec
from aiohttp import web

import aliquot
from aliquot.services.daemon.http import Limits, bind_port, make_runner, serve_limited
from aliquot.services.daemon.metrics import CONTENT_TYPE
from aliquot.services.dashboard.access import Listen

log = logging.getLogger(__name__)

_CONNECTIONS = 128
_IDLE = 300.0  # seconds that a connection may be open without a request; Prometheus asks more often


def read_app(
    *, metrics: Callable[[], bytes], status: Callable[[], object], unready: Callable[[], str]
) -> web.Application:
    """The routes. `unready` says why the scheduler is not ready; "" once it is."""

    async def metrics_text(request: web.Request) -> web.Response:
        return web.Response(body=metrics(), headers={"Content-Type": CONTENT_TYPE})

    async def status_json(request: web.Request) -> web.Response:
        return _json(status())

    async def version(request: web.Request) -> web.Response:
        return _json({"version": aliquot.__version__})

    async def livez(request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(request: web.Request) -> web.Response:
        why = unready()
        return web.Response(status=503 if why else 200, text=f"{why or 'ok'}\n")

    app = web.Application()
    app.router.add_get("/metrics", metrics_text)
    app.router.add_get("/aliquot/status", status_json)
    app.router.add_get("/version", version)
    app.router.add_get("/livez", livez)
    app.router.add_get("/readyz", readyz)
    return app


@contextlib.asynccontextmanager
async def serve_read_port(where: Listen, app: web.Application) -> AsyncIterator[None]:
    """Serve as long as the context lasts; nothing on port 0, and a warning if the usual port is taken. Raises OSError
    if any other port is."""
    try:
        listener = bind_port(where.address, where.port) if where.port else None
    except OSError as error:
        if not where.usual:
            raise
        hint = "--metrics-port chooses another port"
        log.warning("metrics_port_taken", extra={"data": {"port": where.port, "error": error.strerror, "hint": hint}})
        listener = None
    if listener is None:
        yield
        return
    limits = Limits(_CONNECTIONS)
    async with serve_limited(make_runner(app, limits, keepalive=_IDLE), listener, limits):
        yield


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
