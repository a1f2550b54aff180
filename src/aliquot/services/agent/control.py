"""The control socket of a node's agent: `aliquot top`, `ps` and `doctor` on the node. What else a daemon of one machine
can be asked belongs to Kubernetes here, and the answer says to whom one turns.

    hello        who it is, and where its folders are
    status       as in status.py
    policy       as it is; it is changed by the node's label
    processes    how many processes of each Pod it sees: none means that it does not see the host's
    live, ready  as /livez and /readyz (agenthttp.py) for the kubelet's probes (deploy/probe.py), whoever has the port
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from aliquot.adapters.host.cgroups import pods_seen
from aliquot.adapters.host.control import LONGEST
from aliquot.dialects.qgpu import POLICY_LABEL
from aliquot.model.status.machine import Status
from aliquot.services.daemon.control import (
    RefusedError,
    caller_of,
    close_connection,
    listen,
    request_of,
    send,
    unlink,
)

log = logging.getLogger(__name__)

_MOST_CONNECTIONS = 64

_ELSEWHERE = {
    "run": "make a Pod that asks for a part of them",
    "stop": "`kubectl delete pod` ends a Pod",
    "logs": "`kubectl logs` shows a Pod's output",
    "policy": f"`kubectl label node {{node}} --overwrite {POLICY_LABEL}={{value}}` changes the policy",
    "release-delay": "the release delay is the agent's own --release-delay, in the arguments of its DaemonSet",
    "down": "to end the agent, delete its DaemonSet or take the node out of its selector; one that was started by "
    "hand ends by `kill {pid}`",
}


class Agent(Protocol):
    """What is seen of it (services/agent/service.py)."""

    @property
    def about(self) -> dict[str, Any]: ...
    def ready(self) -> str | None: ...
    def status(self) -> Status: ...


class AgentControl:
    """See the head of the file. It stands at `path` for as long as `run` runs."""

    def __init__(self, agent: Agent, path: str) -> None:
        self._agent, self._path = agent, path
        self._connections = 0
        self._operations: dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] = {
            "hello": self._hello,
            "status": self._status,
            "policy": self._policy,
            "processes": self._processes,
            "live": self._live,
            "ready": self._ready,
        }

    async def run(self) -> None:
        """Until cancelled."""
        server = await asyncio.start_unix_server(self._connected, sock=listen(self._path), limit=LONGEST)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            server.close()
            unlink(self._path)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections > _MOST_CONNECTIONS and caller_of(writer).uid:
                raise RefusedError("failed", text="too many connections at once")
            send(writer, {"ok": await self._answer(await request_of(reader))})
        except RefusedError as refused:
            send(writer, {"error": refused.details})
        except ConnectionError:
            pass
        except Exception as error:
            log.exception("a request went wrong")
            send(writer, {"error": {"kind": "failed", "text": f"the agent stumbled: {type(error).__name__}: {error}"}})
        finally:
            self._connections -= 1
            await close_connection(writer)

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        name = str(request.get("op"))
        if name in self._operations:
            return await self._operations[name](request)
        if name in _ELSEWHERE:
            raise self._not_here(name)
        raise RefusedError("malformed", text=f"no such operation; there are {', '.join(self._operations)}")

    def _not_here(self, name: str, value: str = "") -> RefusedError:
        about = self._agent.about
        instead = _ELSEWHERE[name].format(node=about["node"], pid=about["pid"], value=value)
        said = f"the cards of this machine are Kubernetes's: {instead}"
        return RefusedError("denied", text=said)

    async def _hello(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._agent.about

    async def _status(self, request: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = msgspec.to_builtins(self._agent.status())
        return answer

    async def _policy(self, request: dict[str, Any]) -> dict[str, Any]:
        if request.get("policy") is not None:
            raise self._not_here("policy", str(request["policy"]))
        if request.get("release_delay") is not None:
            raise self._not_here("release-delay")
        rules: dict[str, Any] = msgspec.to_builtins(self._agent.status().rules)
        return rules

    async def _processes(self, request: dict[str, Any]) -> dict[str, Any]:
        """In a thread: there may be thousands."""
        return {"pods": await asyncio.to_thread(pods_seen)}

    async def _live(self, request: dict[str, Any]) -> dict[str, Any]:
        """That it answers at all."""
        return {}

    async def _ready(self, request: dict[str, Any]) -> dict[str, Any]:
        waits_for = self._agent.ready()
        if waits_for is not None:
            raise RefusedError("not-ready", text=waits_for)
        return {}
