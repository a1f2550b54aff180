"""The agent's control socket, for `aliquot top`, `ps` and `doctor` on the node.

    hello        identity and paths
    status       see status.py
    usage        who used how much of the cards, for `aliquot usage`
    policy       the policy in effect; the node's label changes it
    processes    how many processes of each Pod the agent sees; none: it does not see the host's processes
    live, ready  as /livez and /readyz (http.py), for the kubelet's probes (deploy/probe.py): the port may be taken

Kubernetes does the other operations of a machine's daemon: they are refused with what to use instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

import msgspec

from aliquot.adapters.host.control import LONGEST
from aliquot.adapters.host.process.cgroups import pods_seen
from aliquot.dialects.qgpu import POLICY_LABEL
from aliquot.model.status.answers import Done, SeenProcesses, Send
from aliquot.model.status.machine import DaemonStatus, RulesStatus, Status
from aliquot.model.status.requests import AgentPolicyRequest, Nothing, UsageRequest
from aliquot.model.status.usage import UsageReport
from aliquot.services.daemon.accepting import StreamServer
from aliquot.services.daemon.control import (
    Caller,
    RefusedError,
    caller_of,
    close_connection,
    listen,
    request_of,
    send,
    unlink,
)
from aliquot.services.daemon.requests import Operation
from aliquot.services.runtime.usage.billing import Billing
from aliquot.services.runtime.usage.report import answer_usage

log = logging.getLogger(__name__)

_MOST_CONNECTIONS = 64

_ELSEWHERE = {
    "run": "create a Pod that requests a share of them",
    "stop": "`kubectl delete pod` ends a Pod",
    "logs": "`kubectl logs` shows a Pod's output",
    "policy": f"`kubectl label node {{node}} --overwrite {POLICY_LABEL}={{value}}` changes the policy",
    "release-delay": "the release delay is the agent's own --release-delay, in the arguments of its DaemonSet",
    "down": "to stop the agent, delete its DaemonSet or remove the node from its selector; `kill {pid}` stops an agent "
    "that was started by hand",
}


class Agent(Protocol):
    """services/agent/service.py."""

    @property
    def about(self) -> DaemonStatus: ...
    @property
    def billing(self) -> Billing | None: ...
    def ready(self) -> str | None: ...
    def status(self) -> Status: ...


class AgentControl:
    """See the head of the file. `run` serves the socket at `path`."""

    def __init__(self, agent: Agent, path: str) -> None:
        self._agent, self._path = agent, path
        self._connections = 0
        self._operations: dict[str, Operation[Any]] = {
            "hello": Operation(Nothing, self._hello),
            "status": Operation(Nothing, self._status),
            "usage": Operation(UsageRequest, self._usage),
            "policy": Operation(AgentPolicyRequest, self._policy),
            "processes": Operation(Nothing, self._processes),
            "live": Operation(Nothing, self._live),
            "ready": Operation(Nothing, self._ready),
        }

    async def run(self) -> None:
        """Serve until cancelled."""
        server = StreamServer(self._connected, listen(self._path), limit=LONGEST)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            server.close()
            unlink(self._path)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            caller = caller_of(writer)
            if self._connections > _MOST_CONNECTIONS and caller.uid:
                raise RefusedError("failed", text="too many connections at once")
            request = await request_of(reader)
            send(writer, {"ok": await self._answer(request, caller, partial(send, writer))})
        except RefusedError as refused:
            send(writer, {"error": refused.details})
        except ConnectionError:
            pass
        except Exception as error:
            log.exception("control_request_failed")
            send(writer, {"error": {"kind": "failed", "text": f"internal error: {type(error).__name__}: {error}"}})
        finally:
            self._connections -= 1
            await close_connection(writer)

    async def _answer(self, request: Mapping[str, object], caller: Caller, send: Send) -> msgspec.Struct:
        name = str(request.get("op"))
        if name in self._operations:
            return await self._operations[name](request, caller, send)
        if name in _ELSEWHERE:
            raise self._not_here(name)
        known = ", ".join(self._operations)
        raise RefusedError("malformed", text=f"unknown operation {name!r}; the agent knows {known}")

    def _not_here(self, name: str, value: str = "") -> RefusedError:
        about = self._agent.about
        instead = _ELSEWHERE[name].format(node=about.node, pid=about.pid, value=value)
        return RefusedError("denied", text=f"Kubernetes manages the cards of this machine: {instead}")

    async def _hello(self, _request: Nothing, _caller: Caller, _send: Send) -> DaemonStatus:
        return self._agent.about

    async def _status(self, _request: Nothing, _caller: Caller, _send: Send) -> Status:
        return self._agent.status()

    async def _usage(self, request: UsageRequest, _caller: Caller, _send: Send) -> UsageReport:
        return await answer_usage(self._agent.billing, request)

    async def _policy(self, request: AgentPolicyRequest, _caller: Caller, _send: Send) -> RulesStatus:
        if request.policy is not None:
            raise self._not_here("policy", str(request.policy))
        if request.release_delay is not None:
            raise self._not_here("release-delay")
        return self._agent.status().rules

    async def _processes(self, _request: Nothing, _caller: Caller, _send: Send) -> SeenProcesses:
        """Counts in a thread: there may be thousands."""
        return SeenProcesses(await asyncio.to_thread(pods_seen))

    async def _live(self, _request: Nothing, _caller: Caller, _send: Send) -> Done:
        """Any answer means alive."""
        return Done()

    async def _ready(self, _request: Nothing, _caller: Caller, _send: Send) -> Done:
        waits_for = self._agent.ready()
        if waits_for is not None:
            raise RefusedError("not-ready", text=waits_for)
        return Done()
