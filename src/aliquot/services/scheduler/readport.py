"""The scheduler's read-only port: metrics, probes and status. It has none of kube-scheduler's verbs, so a program that
may read metrics cannot have a Pod bound.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from aiohttp import web

import aliquot
from aliquot.services.daemon.metrics import CONTENT_TYPE

CONNECTIONS = 128


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


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
