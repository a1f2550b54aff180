"""The agent's HTTP port: probes, metrics, status and the dashboard's view of the node. Read-only."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Protocol

from aiohttp import web

from aliquot.adapters.host.encoding import encode_json
from aliquot.adapters.storage.database import StoreError
from aliquot.model.status.dashboard import Node
from aliquot.model.status.machine import Status
from aliquot.model.status.requests import UsageRequest
from aliquot.services.agent.api.metrics import agent_exposition
from aliquot.services.daemon.calls import Calls
from aliquot.services.daemon.control import RefusedError
from aliquot.services.daemon.http import Limits, bind_port, listen, make_runner
from aliquot.services.daemon.loopdelay import LoopDelay
from aliquot.services.daemon.metrics import CONTENT_TYPE
from aliquot.services.runtime.usage.billing import Billing
from aliquot.services.runtime.usage.report import answer_usage

if TYPE_CHECKING:
    from prometheus_client.core import Metric

log = logging.getLogger(__name__)

_CONNECTIONS = 128
_IDLE = 300.0  # seconds that a connection may be open without a request; Prometheus asks more often
_RETRY = 10.0  # seconds between two attempts to bind a port that another program has


class Agent(Protocol):
    """services/agent/service.py."""

    @property
    def calls(self) -> Calls: ...
    @property
    def delay(self) -> LoopDelay: ...
    def ready(self) -> str | None: ...
    def status(self) -> Status: ...
    def live(self) -> Node: ...
    @property
    def billing(self) -> Billing | None: ...
    def families(self, status: Status) -> Iterable[Metric]: ...


class AgentHttp:
    """The routes of one agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/status", self._status)
        app.router.add_get("/api/v1/node", self._node)
        app.router.add_get("/api/v1/usage", self._usage)
        return app

    async def _livez(self, request: web.Request) -> web.Response:
        """Any answer means alive."""
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        waits_for = self._agent.ready()
        return web.Response(text="ok\n") if waits_for is None else web.Response(status=503, text=f"{waits_for}\n")

    async def _metrics(self, request: web.Request) -> web.Response:
        status = self._agent.status()
        body = agent_exposition(
            status, self._agent.calls, [*self._agent.delay.families(), *self._agent.families(status)]
        )
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def _node(self, request: web.Request) -> web.Response:
        """For the cluster's dashboard: the cards live, and the timeline of their holders."""
        return web.Response(body=encode_json(self._agent.live()), content_type="application/json")

    async def _usage(self, request: web.Request) -> web.Response:
        """For `kubectl aliquot usage`: the hours since then, in seconds since 1970."""
        try:
            since = float(request.query.get("since", "0"))
            answer = await answer_usage(self._agent.billing, UsageRequest(since))
        except ValueError:
            return web.Response(status=400, text="since: seconds since 1970\n")
        except RefusedError as refused:
            return web.Response(
                status=400 if refused.details["kind"] == "invalid" else 503, text=f"{refused.details}\n"
            )
        except StoreError as error:
            return web.Response(status=503, text=f"{error}\n")
        return web.Response(body=encode_json(answer), content_type="application/json")

    async def _status(self, request: web.Request) -> web.Response:
        return web.Response(body=encode_json(self._agent.status()), content_type="application/json")


class AgentPort:
    """Binds the port. If another program has it, there are no metrics, but the agent serves its cards."""

    def __init__(self, agent: Agent, *, address: str, port: int) -> None:
        self._app = AgentHttp(agent).app()
        self._address, self._port = address, port
        self._runner: web.AppRunner | None = None
        self._limits = Limits(_CONNECTIONS)
        self._stack = AsyncExitStack()  # of the agent, set by `open`
        self.trouble: str | None = None  # why the port is not bound

    async def open(self, stack: AsyncExitStack) -> None:
        """Bind the port, or set `trouble`. Raises OSError for an address that this host does not have."""
        if not self._port:
            return
        self._stack = stack
        self._runner = make_runner(self._app, self._limits, keepalive=_IDLE)
        await self._runner.setup()
        stack.push_async_callback(self._runner.cleanup)
        await self._try()
        if self.trouble is not None:
            log.warning("port_not_bound", extra={"data": {"why": self.trouble}})

    async def run(self) -> None:
        """Retry until the port is bound: the other program may stop."""
        while self.trouble is not None:
            await asyncio.sleep(_RETRY)
            await self._try()
            if self.trouble is None:
                log.info("port_bound", extra={"data": {"port": self._port}})

    async def _try(self) -> None:
        assert self._runner is not None
        try:
            listener = bind_port(self._address, self._port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            self.trouble = f"another program listens on port {self._port} (set another with --port)"
            return
        self._stack.callback(listen(self._runner, listener, self._limits).close)
        self.trouble = None
