"""An API server of one function."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from aliquot.adapters.kubernetes.kube import Kube, Server


@asynccontextmanager
async def client_of(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[Kube]:
    """A client of a server on loopback that answers every request with this function."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with Kube(Server(f"http://127.0.0.1:{runner.addresses[0][1]}"), agent="test") as kube:
            yield kube
    finally:
        await runner.cleanup()
