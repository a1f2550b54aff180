"""The control socket of the machine's daemon: reads requests, calls the tenants, sends answers.

A request is one line of JSON of bounded size on its own connection (adapters/host/control.py is the client). The kernel
identifies the caller. Errors are answers:

    malformed     not a request                   invalid       field, value, allowed
    busy          no room, and `wait` is false    unknown-name  name, names
    denied        the caller lacks permission     stopped       removed from the queue
    failed        an error of the daemon; see its text
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from aliquot.adapters.host import samemount
from aliquot.adapters.host.encoding import encode_json
from aliquot.adapters.host.process import processes
from aliquot.adapters.host.users import user_name
from aliquot.adapters.storage.store import StoreError
from aliquot.model.refusal import Invalid
from aliquot.model.status.answers import Answer, EndedRuns, PolicyStatus, RunLog, Send, StoppedRun, StoppingDaemon
from aliquot.model.status.machine import DaemonStatus, Status
from aliquot.model.status.requests import (
    NameRequest,
    Nothing,
    PolicyRequest,
    StopRequest,
    UsageRequest,
)
from aliquot.model.status.usage import UsageReport
from aliquot.model.tenancy import Tenancy
from aliquot.services.daemon.accepting import StreamServer
from aliquot.services.daemon.connections import PIECE, Client, Clients
from aliquot.services.daemon.control import Caller, RefusedError, caller_of, close_connection, invalid, request_of, send
from aliquot.services.daemon.pace import Steps
from aliquot.services.daemon.requests import Operation
from aliquot.services.daemon.tasks import termination_signal
from aliquot.services.machine.history import ended_status
from aliquot.services.machine.parking import Parking
from aliquot.services.machine.queue import QueuedRequest
from aliquot.services.machine.requests import parse_run_request
from aliquot.services.machine.status import status
from aliquot.services.machine.sweeper import Sweeper
from aliquot.services.machine.tenants.machine import LocalMachine
from aliquot.services.machine.tenants.members import user_of
from aliquot.services.runtime.cards.meter import CardMeter
from aliquot.services.runtime.usage.billing import Billing
from aliquot.services.runtime.usage.report import answer_usage

_LOG = logging.getLogger("aliquot.control")
_SWEEP = 0.25  # seconds between checks of tenants without a root process
_BACKLOG = 1024
_BETWEEN_STARTS = 0.01  # seconds at least between two looks at the whole queue
_BETWEEN_UPDATES = 0.1  # and between two rounds of updates
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.1  # seconds between checks whether a run has ended
_NAME_PATIENCE = 2.0  # seconds that a run waits for the name of one that is about to end
_AT_ONCE = 64  # processes, before others have their turn: a run may have thousands


class ControlServer:
    """See the module docstring."""

    def __init__(
        self,
        machine: LocalMachine,
        meter: CardMeter,
        about: DaemonStatus,
        sweeper: Sweeper,
        billing: Billing | None = None,
    ) -> None:
        self.machine = machine
        self._sweeper = sweeper
        self._parking = Parking(machine, self._owner_only)
        self.about = about
        self._meter, self._billing = meter, billing
        self._stopping = asyncio.Event()
        self._orphaned = asyncio.Event()  # the root process of a tenant has ended
        machine.tenant_orphaned = self._orphaned.set
        self._one_by_one = asyncio.Lock()  # in each round of the loop one of the runs that have waited for their name
        self._for_good = False  # `aliquot down`; over a restart, queued runs keep waiting
        self._clients = Clients()
        self._next_status: asyncio.Future[bytes] | None = None  # for all who ask before it is made
        self._operations: dict[str, Operation[Any]] = {
            "hello": Operation(Nothing, self._hello),
            "policy": Operation(PolicyRequest, self._policy),
            "stop": Operation(StopRequest, self._stop),
            "logs": Operation(NameRequest, self._logs),
            "ended": Operation(Nothing, self._ended),
            "usage": Operation(UsageRequest, self._usage),
            "down": Operation(Nothing, self._down),
            **self._parking.operations,
        }

    async def serve(self, listener: socket.socket, ready: Callable[[], None]) -> None:
        """Serve until SIGTERM, SIGINT or `down`."""
        termination_signal(self._stopping)
        self.machine.admission.room_changed = Steps(self.machine.admission.start_waiting, every=_BETWEEN_STARTS)
        self.machine.admission.queue_changed = Steps(self.machine.admission.notify_waiting, every=_BETWEEN_UPDATES)
        listener.listen(_BACKLOG)
        server = StreamServer(self._connected, listener, limit=PIECE)
        sweeping = asyncio.create_task(self._sweep())
        ready()
        await self._stopping.wait()
        sweeping.cancel()
        server.close()
        for entry in list(self.machine.queue):
            if self._for_good:
                entry.notify({"error": {"kind": "stopped", "text": "`aliquot down` stopped the daemon"}})
                self.machine.queue.remove(entry)
            else:
                entry.notify({"event": {"ending": True}})  # whoever ended it decides whether the next one starts
        await asyncio.sleep(0)  # let the last answers go out

    async def _sweep(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SWEEP):
                    await self._orphaned.wait()
            self._orphaned.clear()
            try:
                self.machine.register_again()
                await self._sweeper.look()
            except Exception:  # one failed sweep must not be the last
                _LOG.exception("sweep_failed")

    # --- one connection ----------------------------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = caller_of(writer)
        client: Client | None = None
        try:
            client = self._clients.admit(reader, writer, caller)
            await self._serve_client(client, caller)
        except RefusedError as refused:
            send(writer, {"error": refused.details})
        except StoreError as error:
            send(writer, {"error": {"kind": "failed", "text": str(error)}})
        except ConnectionError:
            pass
        except Exception as error:
            _LOG.exception("control_request_failed")
            send(writer, {"error": {"kind": "failed", "text": f"internal error: {type(error).__name__}: {error}"}})
        finally:
            await close_connection(writer)
            if client is not None:
                client.forget()

    async def _serve_client(self, client: Client, caller: Caller) -> None:
        request = await request_of(client)
        client.silent_since = None
        self._clients.check_unread(caller.uid)
        name = str(request.get("op"))
        if name == "run":
            client.expect_updates()
            await self._run(request, caller, client)
        elif name == "status":
            client.send_line(await self._status())
        elif name in self._operations:
            client.send({"ok": await self._operations[name](request, caller, client.send)})
        else:
            known = ", ".join(("run", "status", *self._operations))
            raise RefusedError("malformed", text=f"unknown operation; known are {known}")

    async def _run(self, request: Mapping[str, object], caller: Caller, client: Client) -> None:
        """Returns when the run has its answer. The run leaves the queue when its connection closes."""
        run_request = parse_run_request(request)
        if isinstance(run_request, Invalid):
            raise invalid(run_request)
        done = asyncio.Event()

        def notify(answer: Answer) -> None:
            client.send(answer)
            if "event" not in answer:
                done.set()

        if self.machine.move_on(caller):
            await self._sweeper.look(caller.uid)
        await self._until_free(run_request.name)
        entry = self.machine.admission.submit(run_request, caller, time.time(), notify)
        if done.is_set():
            return
        left = asyncio.create_task(client.until_closed())
        ended = asyncio.create_task(done.wait())
        try:
            await asyncio.wait({left, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
            ended.cancel()
            self.machine.admission.leave(entry, time.time())

    async def _until_free(self, name: str | None) -> None:
        """The run of that name, if its first process has ended, keeps it until the last one is seen to have ended: in a
        loop of a shell the next run of the name may ask before that."""
        deadline, pause, waited = time.monotonic() + _NAME_PATIENCE, _FIRST_PAUSE, False
        while name is not None and self.machine.is_ending(name) and time.monotonic() < deadline:
            await self._sweeper.look()
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
            waited = True
        if waited:
            async with self._one_by_one:  # all who have waited go on at one moment
                await asyncio.sleep(0)

    # --- operations --------------------------------------------------------------------------------------------

    async def _hello(self, _request: Nothing, _caller: Caller, _send: Send) -> DaemonStatus:
        return self.about

    async def _status(self) -> bytes:
        """The answer to `status`. It is made once for all who have asked by then, however many they are."""
        if self._next_status is None:
            loop = asyncio.get_running_loop()
            self._next_status = loop.create_future()
            loop.call_soon(self._make_status)
        return await asyncio.shield(self._next_status)

    def _make_status(self) -> None:
        future, self._next_status = self._next_status, None
        assert future is not None
        try:
            future.set_result(b'{"ok":' + encode_json(self.status()) + b"}")
        except Exception as error:
            future.set_exception(error)

    def status(self) -> Status:
        """The answer to `status`."""
        return status(self.machine, self._meter.readings, time.time(), self.about)

    async def _policy(self, request: PolicyRequest, caller: Caller, _send: Send) -> PolicyStatus:
        rules, delay = self.machine.rules, request.release_delay
        if request.policy is not None:
            rules = replace(rules, isolation=request.policy)
        if delay is not None:
            rules = replace(rules, release_delay=None if isinstance(delay, str) else delay)
        if request.oversubscribe is not None:
            await self._parking.set_factor(request.oversubscribe, request.card, caller)
        if request.policy is not None or delay is not None:
            if rules != self.machine.rules:
                self._owner_only(caller, "change the policy")
            await self.machine.change_rules(rules)
        parking = self._parking
        return PolicyStatus(rules.isolation, rules.release_delay, parking.factors(), parking.notes())

    async def _stop(self, request: StopRequest, caller: Caller, send: Send) -> StoppedRun:
        """SIGTERM to all processes of the run, SIGKILL to those left after the timeout."""
        found = self.machine.find(request.name)
        if isinstance(found, QueuedRequest):
            self._owner_only(caller, f"stop {found.name}", found.uid)
            found.notify({"error": {"kind": "stopped", "text": "`aliquot stop` removed it from the queue"}})
            self.machine.admission.leave(found, time.time())
            return StoppedRun(found.name, "waiting")
        tenant = found.tenant
        self._owner_only(caller, f"stop {tenant.name}", tenant.uid)
        for number, patience in ((signal.SIGTERM, request.timeout), (signal.SIGKILL, 5.0)):
            living = await self._processes(found)
            send({"event": {"signal": number.name, "pids": sorted(living)}})
            await _signal_all(living, number, caller.uid)
            deadline, pause = time.monotonic() + patience, _FIRST_PAUSE
            while tenant.id in self.machine.tenancies and time.monotonic() < deadline:
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, _LONGEST_PAUSE)
                living = await _from_first_living(living)
                if living:
                    continue
                pause, living = _FIRST_PAUSE, await self._processes(found)  # started meanwhile
                await _signal_all(living, number, caller.uid)
                if not living:
                    await asyncio.sleep(0.02)  # `watch_root` calls it first: that knows the exit code
                    self.machine.ended(tenant.id, time.time())
            if tenant.id not in self.machine.tenancies:
                return StoppedRun(tenant.name, "running", number.name)
        left = ", ".join(map(str, sorted(await self._processes(found)))) or "none"
        raise RefusedError("failed", text=f"{tenant.name} has not ended; processes left: {left}")

    async def _processes(self, tenancy: Tenancy) -> dict[int, int]:
        """All live processes of the tenant, with their start times."""
        found = await self._sweeper.scan({user_of(tenancy)})
        if tenancy.id not in self.machine.tenancies:  # it ended meanwhile; its root may be another tenant's
            return {}
        return self.machine.members(tenancy, found)

    async def _logs(self, request: NameRequest, caller: Caller, _send: Send) -> RunLog:
        """The path of the output. The caller reads it with its own permissions."""
        name = request.name
        try:
            found = self.machine.find(name)
        except RefusedError:
            if name is not None and (ended := self._log_of_ended(name, caller)) is not None:
                return ended
            raise
        owner = found.uid if isinstance(found, QueuedRequest) else found.tenant.uid
        self._owner_only(caller, f"read the output of {name}", owner)
        if isinstance(found, QueuedRequest):
            return RunLog(found.name, found.log, running=True, id=found.id, pid=found.pid, output=None)
        pid = found.tenant.root
        output = None if pid is None else processes.output_of(pid)
        output = output if processes.is_proven(pid, found.started) else None  # else it may be another process's
        return RunLog(found.tenant.name, found.log, running=True, id=found.id, pid=pid, output=output)

    def _log_of_ended(self, name: str, caller: Caller) -> RunLog | None:
        """None if no run of that name has ended. Its output outlives the record of how it ended."""
        path: str | None = None
        writer = None
        if "/" not in name and "\0" not in name:  # the name must stay in the folder
            log = self.machine.home.log_of(name)
            try:
                writer, path = samemount.lstat(log).st_uid, log
            except ValueError:  # no file can have that name
                pass
            except OSError as error:
                if error.errno not in (*samemount.NO_SUCH, errno.EXDEV):
                    raise RefusedError("failed", text=f"{log}: {error.strerror}") from error
        run = self.machine.history.last(name, path)
        owner = writer if path else run.user if run else None
        if owner is None:
            return None
        self._owner_only(caller, f"read the output of {name}", owner)
        return RunLog(name, path, running=False, ended=None if run is None else ended_status(run))

    async def _ended(self, _request: Nothing, _caller: Caller, _send: Send) -> EndedRuns:
        return EndedRuns(self.machine.history.status())

    async def _usage(self, request: UsageRequest, _caller: Caller, _send: Send) -> UsageReport:
        return await answer_usage(self._billing, request)

    async def _down(self, _request: Nothing, caller: Caller, _send: Send) -> StoppingDaemon:
        self._owner_only(caller, "stop the daemon")
        self._for_good = True
        parked = [] if self.about.simulated is not None else self._parking.away()
        asyncio.get_running_loop().call_later(0.05, self._stopping.set)
        names = sorted({tenancy.tenant.name for tenancy in self.machine.tenancies.values()})
        waiting = [entry.name for entry in self.machine.queue]
        return StoppingDaemon(os.getpid(), names, waiting, parked)

    def _owner_only(self, caller: Caller, what: str, *also: int | None) -> None:
        if caller.uid not in (0, os.geteuid(), *also):
            owner = also[0] if also else os.geteuid()
            raise RefusedError("denied", text=f"only root{f' and {user_name(owner)}' if owner else ''} may {what}")


def watch_root(machine: LocalMachine, tenancy: Tenancy) -> None:
    """Call `machine.ended` when the tenant's root process ends; soon, if it has ended already."""
    tenant = tenancy.tenant
    processes.when_ended(tenant.root, tenancy.started, lambda code: machine.ended(tenant.id, time.time(), code))


async def _from_first_living(start_times: dict[int, int]) -> dict[int, int]:
    """Without those before the first that lives: each is found to have ended once, and one that lives is enough."""
    left = dict(start_times)
    for at, (pid, started) in enumerate(start_times.items(), 1):
        if processes.lives(pid, started):
            break
        del left[pid]
        if at % _AT_ONCE == 0:
            await asyncio.sleep(0)
    return left


async def _signal_all(start_times: dict[int, int], number: signal.Signals, user: int) -> None:
    """To those that the user may signal: root's daemon does no more for a user than the user could."""
    for at, (pid, started) in enumerate(start_times.items(), 1):
        if at % _AT_ONCE == 0:
            await asyncio.sleep(0)
        try:
            processes.send_signal(pid, number, started, user=user)
            if number is signal.SIGTERM:
                processes.send_signal(pid, signal.SIGCONT, started, user=user)  # a stopped one reacts to nothing else
        except OSError as error:  # also without a file to look
            _LOG.warning("signal_failed", extra={"data": {"pid": pid, "error": str(error)}})
