"""The daemon's loop: the control socket, the ends of processes. Joins; decides nothing.

A request is one line of JSON of bounded size on its own connection (adapters/host/control.py has the other side). The
socket says who asks. Errors are answers:

    malformed     not a request                  invalid       field, value, allowed
    busy          no room, and not to wait       unknown-name  name, names
    denied        not yours to ask               stopped       taken out of the queue
    failed        ours: the text says what went wrong
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from aliquot.adapters.host import processes
from aliquot.adapters.host.control import LONGEST
from aliquot.adapters.host.processend import when_ended
from aliquot.adapters.storage.store import StoreError
from aliquot.model.node import Isolation
from aliquot.model.refusal import Invalid
from aliquot.model.tenancy import Tenancy
from aliquot.services.daemon.control import Caller, RefusedError, caller_of, hang_up, invalid, request_of
from aliquot.services.daemon.control import say as say_to
from aliquot.services.machine.pods.api import PodDesk
from aliquot.services.machine.pods.manager import LocalPods
from aliquot.services.machine.queue import Waiting
from aliquot.services.machine.requests import parse_ask
from aliquot.services.machine.status import status
from aliquot.services.machine.tenants import LocalNode
from aliquot.services.runtime.meter import Lookout

_LOG = logging.getLogger("aliquot.door")
_MOST_CONNECTIONS = 1024
_MOST_OF_ONE_USER = 256  # so that nobody but root can use them all up
_SWEEP = 0.25  # seconds between looks at tenants whose first process is gone
_LONGEST_DELAY = 60.0

Say = Callable[[dict[str, Any]], None]


class Door:
    """See the head of the file."""

    def __init__(self, node: LocalNode, lookout: Lookout, about: dict[str, Any], pods: LocalPods) -> None:
        self.node = node
        self.pods = pods
        self._desk = PodDesk(pods)
        self.about = about
        self._lookout = lookout
        self._stopping = asyncio.Event()
        self._for_good = False  # as against a restart, over which those who wait may wait on
        self._connections: Counter[int] = Counter()  # by user
        self._operations: dict[str, Callable[[dict[str, Any], Caller, Say], Awaitable[dict[str, Any]]]] = {
            "hello": self._hello,
            "status": self._status,
            "policy": self._policy,
            "stop": self._stop,
            "logs": self._logs,
            "down": self._down,
            **self._desk.operations,
        }

    async def serve(self, listener: socket.socket, ready: Callable[[], None]) -> None:
        """Until SIGTERM, SIGINT or `down`."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        server = await asyncio.start_unix_server(self._connected, sock=listener, limit=LONGEST)
        sweeping = asyncio.create_task(self._sweep())
        ready()
        await self._stopping.wait()
        sweeping.cancel()
        server.close()
        for entry in list(self.node.queue) if self._for_good else ():
            entry.tell({"error": {"kind": "stopped", "text": "the daemon was ended by `aliquot down`"}})
            self.node.queue.remove(entry)
        await asyncio.sleep(0)  # let the last words go out

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP)
            try:
                if self.node.has_orphans:
                    self.node.sweep(time.time())
                self.pods.tick(time.time())
            except Exception:  # one look that goes wrong must not be the last
                _LOG.exception("a look around went wrong")

    # --- one connection ----------------------------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def say(answer: dict[str, Any]) -> None:
            say_to(writer, answer)

        caller = caller_of(writer)
        self._connections[caller.uid] += 1
        try:
            self._count(caller)
            request = await request_of(reader)
            if request.get("op") == "run":
                await self._run(request, caller, reader, say)
            elif request.get("op") == "keep":
                self._connections[caller.uid] -= 1  # there are as many as Pods, which are counted already
                try:
                    await self._desk.keep(request, caller, reader, say)
                finally:
                    self._connections[caller.uid] += 1
            else:
                operation = self._operations.get(str(request.get("op")))
                if operation is None:
                    raise RefusedError(
                        "malformed", text=f"no such operation; there are run, {', '.join(self._operations)}"
                    )
                say({"ok": await operation(request, caller, say)})
        except RefusedError as refused:
            say({"error": refused.said})
        except StoreError as error:
            say({"error": {"kind": "failed", "text": str(error)}})
        except ConnectionError:
            pass
        except Exception as error:
            _LOG.exception("a request went wrong")
            say({"error": {"kind": "failed", "text": f"the daemon stumbled: {type(error).__name__}: {error}"}})
        finally:
            self._connections[caller.uid] -= 1
            await hang_up(writer)

    def _count(self, caller: Caller) -> None:
        most = _MOST_CONNECTIONS if caller.uid == 0 else _MOST_OF_ONE_USER
        if self._connections[caller.uid] > most or self._connections.total() > _MOST_CONNECTIONS:
            raise RefusedError("failed", text="too many runs wait, or too many connections at once")

    async def _run(self, request: dict[str, Any], caller: Caller, reader: asyncio.StreamReader, say: Say) -> None:
        """Stays as long as the run waits; leaves the queue with the connection."""
        ask = parse_ask(request)
        if isinstance(ask, Invalid):
            raise invalid(ask)
        done = asyncio.Event()

        def tell(answer: dict[str, Any]) -> None:
            say(answer)
            if "event" not in answer:
                done.set()

        entry = self.node.submit(ask, caller, time.time(), tell)
        if done.is_set():
            return
        left = asyncio.create_task(_until_closed(reader))
        ended = asyncio.create_task(done.wait())
        try:
            await asyncio.wait({left, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
            ended.cancel()
            self.node.leave(entry, time.time())

    # --- operations --------------------------------------------------------------------------------------------

    async def _hello(self, _request: dict[str, Any], _caller: Caller, _say: Say) -> dict[str, Any]:
        return self.about

    async def _status(self, _request: dict[str, Any], _caller: Caller, _say: Say) -> dict[str, Any]:
        return self.status()

    def status(self) -> dict[str, Any]:
        """All there is to see."""
        return {"daemon": self.about, **status(self.node, self._lookout.seen, time.time(), self.pods)}

    async def _policy(self, request: dict[str, Any], caller: Caller, _say: Say) -> dict[str, Any]:
        rules = self.node.rules
        policy, delay = request.get("policy"), request.get("release_delay")
        if policy is not None:
            try:
                rules = replace(rules, isolation=Isolation(policy))
            except ValueError:
                raise invalid(Invalid("policy", policy, ", ".join(Isolation))) from None
        if delay is not None:
            if isinstance(delay, bool) or not isinstance(delay, int | float) or not 0 <= delay <= _LONGEST_DELAY:
                raise invalid(Invalid("release-delay", delay, "0 (at once) to 60s, as in 100ms"))
            rules = replace(rules, release_delay=float(delay))
        if rules != self.node.rules:
            self._owner_only(caller, "change the policy")
            self.node.configure(rules)
        return {"policy": rules.isolation.value, "release_delay_seconds": rules.release_delay}

    async def _stop(self, request: dict[str, Any], caller: Caller, say: Say) -> dict[str, Any]:
        """SIGTERM to all its processes, and SIGKILL to those that are still there after the timeout."""
        timeout = request.get("timeout", 10.0)
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout <= 86400:
            raise invalid(Invalid("timeout", timeout, "0 to 24h"))
        found = self.node.find(request.get("name"))
        name = found.name if isinstance(found, Waiting) else found.tenant.name
        if any(pod.key == name for pod in self.pods.pods.values()):
            raise RefusedError("failed", text=f"{name} is a Pod: `aliquot delete pod {name}` ends it")
        if isinstance(found, Waiting):
            self._owner_only(caller, f"stop {found.name}", found.uid)
            found.tell({"error": {"kind": "stopped", "text": "taken out of the queue by `aliquot stop`"}})
            self.node.leave(found, time.time())
            return {"name": found.name, "was": "waiting"}
        tenant = found.tenant
        self._owner_only(caller, f"stop {tenant.name}", tenant.uid)
        for number, patience in ((signal.SIGTERM, float(timeout)), (signal.SIGKILL, 5.0)):
            there = self.node.all_processes(found)
            say({"event": {"signal": number.name, "pids": sorted(there)}})
            _signal_all(there, number)
            deadline = time.monotonic() + patience
            while tenant.id in self.node.tenancies and time.monotonic() < deadline:
                await asyncio.sleep(0.02)
                if any(processes.lives(pid, started) for pid, started in there.items()):
                    continue
                there = self.node.all_processes(found)  # whoever was born meanwhile
                _signal_all(there, number)
                if not there:
                    self.node.ended(tenant.id, time.time())
            if tenant.id not in self.node.tenancies:
                return {"name": tenant.name, "was": "running", "signal": number.name}
        left = ", ".join(map(str, sorted(self.node.all_processes(found)))) or "none"
        raise RefusedError("failed", text=f"{tenant.name} did not end; processes left: {left}")

    async def _logs(self, request: dict[str, Any], _caller: Caller, _say: Say) -> dict[str, Any]:
        """Where the output is. Reading it is the caller's, with the caller's rights."""
        name = request.get("name")
        try:
            found = self.node.find(name)
        except RefusedError:
            # It may have been a detached one that is over; its name cannot lead out of the folder.
            path = self.node.home.log_of(str(name))
            if isinstance(name, str) and "/" not in name and "\0" not in name and os.path.exists(path):
                return {"name": name, "log": path, "running": False}
            raise
        if isinstance(found, Waiting):
            return {"name": found.name, "log": found.log, "running": True, "pid": found.pid, "output": None}
        pid = found.tenant.root
        output = None if pid is None else processes.output_of(pid)
        return {"name": found.tenant.name, "log": found.log, "running": True, "pid": pid, "output": output}

    async def _down(self, _request: dict[str, Any], caller: Caller, _say: Say) -> dict[str, Any]:
        self._owner_only(caller, "end the daemon")
        self._for_good = True
        suspended: set[str] = set()
        if self.about["simulated"] is not None:
            suspended = {pod.key for pod in self.pods.pods.values()}
            self.pods.suspend()
        asyncio.get_running_loop().call_later(0.05, self._stopping.set)
        names = sorted({tenancy.tenant.name for tenancy in self.node.tenancies.values()} - suspended)
        return {"pid": os.getpid(), "tenants": names, "waiting": [entry.name for entry in self.node.queue]}

    def _owner_only(self, caller: Caller, what: str, *also: int | None) -> None:
        if caller.uid not in (0, os.geteuid(), *also):
            owner = also[0] if also else os.geteuid()
            raise RefusedError("denied", text=f"only root{f' and user {owner}' if owner else ''} may {what}")


def watch(node: LocalNode, tenancy: Tenancy) -> None:
    """See that `ended` is called when the root of the tenancy ends; soon, when it is gone already."""
    tenant = tenancy.tenant
    when_ended(tenant.root, tenancy.started, lambda: node.ended(tenant.id, time.time()))


async def _until_closed(reader: asyncio.StreamReader) -> None:
    """Whatever else it says while it waits is not heeded."""
    try:
        while await reader.read(4096):
            pass
    except ConnectionError:
        pass


def _signal_all(there: dict[int, int], number: signal.Signals) -> None:
    for pid, started in there.items():
        try:
            processes.send_signal(pid, number, started)
            if number is signal.SIGTERM:
                processes.send_signal(pid, signal.SIGCONT, started)  # a stopped process hears nothing else
        except PermissionError as error:
            _LOG.warning("process %d: %s", pid, error)
