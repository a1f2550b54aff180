"""The HTTP door of a node's agent: is it alive and ready, what does it measure and see. Nothing changes anything."""

from __future__ import annotations

import asyncio
import errno
import logging
from contextlib import AsyncExitStack
from typing import Any, Protocol

import msgspec
from aiohttp import web

from aliquot.model.status.machine import Status
from aliquot.services.agent.metrics import agent_exposition
from aliquot.services.daemon.calls import Calls
from aliquot.services.daemon.http import make_runner
from aliquot.services.daemon.metrics import CONTENT_TYPE

log = logging.getLogger(__name__)

_AGAIN = 10.0  # seconds between two tries for a port that another program has


class Agent(Protocol):
    """What is seen of it (services/agent/service.py)."""

    @property
    def calls(self) -> Calls: ...
    def ready(self) -> str | None: ...
    def status(self) -> Status: ...
    def live(self) -> dict[str, Any]: ...


class AgentHttp:
    """Answers for one agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def app(self) -> web.Application:
        """The routes."""
        app = web.Application()
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/status", self._status)
        app.router.add_get("/api/v1/node", self._node)
        return app

    async def _livez(self, request: web.Request) -> web.Response:
        """That it answers at all."""
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        waits_for = self._agent.ready()
        return web.Response(text="ok\n") if waits_for is None else web.Response(status=503, text=f"{waits_for}\n")

    async def _metrics(self, request: web.Request) -> web.Response:
        body = agent_exposition(self._agent.status(), self._agent.calls)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def _node(self, request: web.Request) -> web.Response:
        """For the cluster's dashboard: the cards live, and who held them."""
        return web.Response(body=msgspec.json.encode(self._agent.live()), content_type="application/json")

    async def _status(self, request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(self._agent.status()), content_type="application/json")


class AgentPort:
    """Where that door is. Another program may have the port: nobody measures us then, but the cards are served."""

    def __init__(self, agent: Agent, *, address: str, port: int) -> None:
        self._app = AgentHttp(agent).app()
        self._address, self._port = address, port
        self._runner: web.AppRunner | None = None
        self.trouble: str | None = None  # why nobody is answered

    async def open(self, stack: AsyncExitStack) -> None:
        """Listens when this returns, or `trouble` says why not. Raises OSError for an address that is not ours."""
        if not self._port:
            return
        self._runner = make_runner(self._app)
        await self._runner.setup()
        stack.push_async_callback(self._runner.cleanup)
        await self._try()
        if self.trouble is not None:
            log.warning("no metrics", extra={"data": {"why": self.trouble}})

    async def run(self) -> None:
        """Until it listens: whoever had the port may leave it."""
        while self.trouble is not None:
            await asyncio.sleep(_AGAIN)
            await self._try()
            if self.trouble is None:
                log.info("the port is ours now", extra={"data": {"port": self._port}})

    async def _try(self) -> None:
        assert self._runner is not None
        site = web.TCPSite(self._runner, self._address, self._port)
        try:
            await site.start()
            self.trouble = None
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            await site.stop()
            self.trouble = f"another program listens on port {self._port} (--port names another)"
