"""Runs that request a slice: each starts, waits in the queue or is refused.

    submit         a run requests a slice
    leave          a queued request gives up
    start_waiting  starts those that fit, when room has come

Promises are persisted first: a tenant is in the store before its run may start.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec

from aliquot import dialects
from aliquot.adapters.host.messages import Granted
from aliquot.adapters.host.process import processes
from aliquot.adapters.host.users import account_of, user_name
from aliquot.model.grant import Grant
from aliquot.model.node import Node
from aliquot.model.status.answers import Send
from aliquot.model.tenancy import Tenancy, TenantEnvironment, shares_of
from aliquot.placement.book import occupant_of
from aliquot.services.daemon.connections import FairShare, most_files
from aliquot.services.daemon.control import Caller, RefusedError, invalid
from aliquot.services.machine.queue import Queue, QueuedRequest
from aliquot.services.machine.requests import RunRequest, never_fits, on_all_cards
from aliquot.services.machine.tenants.registry import Registry
from aliquot.services.machine.tenants.runfiles import RunNames, make_folder, new_id, new_log, remove_log

_LOG = logging.getLogger("aliquot.tenants")
_MOST_RUNS = 2048  # at once, also where the daemon may have any number of files


class Admission:
    """Single-threaded; callers pass the time in."""

    def __init__(
        self,
        registry: Registry,
        queue: Queue,
        *,
        nodes: Callable[[], Sequence[Node]],
        leave_earlier: Callable[[Caller], None],
        watch: Callable[[Tenancy], None],
        environment: Callable[[Tenancy, str], TenantEnvironment],
        clock: Callable[[], float],
    ) -> None:
        self._registry, self._queue, self._nodes, self._clock = registry, queue, nodes, clock
        self._leave_earlier = leave_earlier  # the tenant that the calling process has already
        self._watch = watch  # arranges that the end of the root process is noticed
        self._environment = environment  # of the tenant's processes
        self._names = RunNames(registry.home, registry.store)
        self._most_runs = min(_MOST_RUNS, most_files() // 16)  # of all users but root
        self._room_is_new = False  # not offered to the queue yet
        self._admitting = False
        # With an event loop (control.py) both are done a little later, once for all changes, and in small steps.
        self.room_changed: Callable[[], None] = lambda: _exhaust(self.start_waiting())
        self.queue_changed: Callable[[], None] = lambda: _exhaust(self.notify_waiting())

    def submit(self, request: RunRequest, caller: Caller, now: float, notify: Send) -> QueuedRequest:
        """Request a slice for a run. `notify` gets every answer. Raises RefusedError if the run cannot even wait."""
        nodes = [node.cards for node in self._nodes()]
        request = on_all_cards(request, nodes)
        broken = never_fits(request, nodes)
        if broken is not None:
            raise invalid(broken)
        self._check_share(account_of(caller.uid))
        if request.group:
            self._registry.group_members.may_join(request.group, request.app_class, caller.uid)
        started, home = self._start_time(caller), self._registry.home
        name = self._name(request)
        entry = QueuedRequest(
            request.claim(new_id(home), name), request, caller.pid, caller.uid, caller.gid, started, self._clock(),
            notify, log=new_log(home.log_of(name), name, caller) if request.detach else None,
        )  # fmt: skip
        self._queue.add(entry)
        if not self._room_is_new or not request.wait:
            self._start(entry, now)
        if not request.wait and entry.queued:
            position = self._queue.position_of(entry)
            self._queue.remove(entry)
            remove_log(entry.log)
            raise RefusedError("busy", **msgspec.to_builtins(position))  # the others' positions did not change
        self.queue_changed()
        return entry

    def _start_time(self, caller: Caller) -> int:
        """Start time of the calling process. It leaves the tenant that it has."""
        self.may_run(caller)
        if caller.started is None or not processes.lives(caller.pid, caller.started):
            raise RefusedError("denied", text="the requesting process has ended")
        self._leave_earlier(caller)
        return caller.started

    def leave(self, entry: QueuedRequest, now: float) -> None:
        """Remove the request from the queue: its process ended or the user stopped it."""
        was_first = next(iter(self._queue), None) is entry
        if self._queue.remove(entry):
            if not processes.lives(entry.pid, entry.started):  # else it asks the next daemon, and keeps its output
                remove_log(entry.log)
            (self.look_at_queue if was_first else self.queue_changed)()  # only the first has cards reserved

    def look_at_queue(self) -> None:
        """Some request in the queue may fit now."""
        self._room_is_new = True
        self.room_changed()

    def start_waiting(self) -> Iterator[None]:
        """Start every queued request that fits, one at a step, then notify the others of their position."""
        try:
            while (found := self._queue.next()) is not None:
                self._admit(*found, time.time())
                yield
        finally:
            self._room_is_new = False  # only now: until then a newcomer would overtake those that wait
        self.queue_changed()

    def _start(self, entry: QueuedRequest, now: float) -> None:
        """Start the request that came last, if it fits."""
        if (found := self._queue.next(only=entry)) is not None:
            self._admit(*found, now)

    def notify_waiting(self) -> Iterator[None]:
        """Send every queued request its position, one at a step, if it changed."""
        for entry, position in self._queue.positions():
            if entry.request.wait and position != entry.last_position:
                entry.last_position = position
                entry.notify({"event": {"waiting": msgspec.to_builtins(position), "log": entry.log}})
            yield

    def _admit(self, entry: QueuedRequest, grant: Grant, now: float) -> None:
        self._queue.remove(entry)
        self._admitting = True
        try:
            self._prepare(entry, grant, now)
        finally:
            self._admitting = False

    def _prepare(self, entry: QueuedRequest, grant: Grant, now: float) -> None:
        """Book its cards and write that down; `_stored` goes on."""
        shares = shares_of(grant, {})
        tenancy = Tenancy(
            entry.id, "", entry.name, entry.claim.app_class, shares, now,
            entry.uid, entry.pid, entry.started, entry.request.command, entry.log, park_after=entry.claim.park_after,
            group=entry.claim.group, latency=entry.claim.latency, release_delay=dialects.release_delay(entry.claim),
        )  # fmt: skip
        folder = self._registry.directory(entry.id)
        self._registry.ledger.confirm(entry.id, grant.node, occupant_of(entry.claim, grant))
        self._registry.tenancies[entry.id] = tenancy
        try:
            make_folder(folder, entry.uid, entry.gid)
        except OSError as error:
            self._not_started(entry, tenancy, error)
            return
        self._registry.store.writer.put(
            lambda: self._registry.keep(tenancy), lambda error: self._stored(entry, tenancy, grant, error)
        )

    def _stored(self, entry: QueuedRequest, tenancy: Tenancy, grant: Grant, error: Exception | None) -> None:
        """The tenant is on the disk, or it cannot be: now its run starts, or is refused; first its group's server."""
        if (
            error is None
            and tenancy.group
            and self._registry.groups is not None
            and tenancy.id in self._registry.tenancies
        ):
            members = [one for one in self._registry.group_members.of(tenancy.group_id) if one is not tenancy]
            self._registry.groups.join([*members, tenancy], lambda failed: self._ready(entry, tenancy, grant, failed))
        else:
            self._ready(entry, tenancy, grant, error)

    def _ready(self, entry: QueuedRequest, tenancy: Tenancy, grant: Grant, error: Exception | None) -> None:
        if self._registry.tenancies.get(tenancy.id) is not tenancy:
            entry.notify({"error": {"kind": "stopped", "text": "it was stopped before it started"}})
            return
        folder = self._registry.directory(tenancy.id)
        try:
            if error is not None:
                raise error
            self._registry.arbiter.add(tenancy.tenant, folder)
        except Exception as failed:
            self._not_started(entry, tenancy, failed)
            return
        self._watch(tenancy)
        environment = self._environment(tenancy, str(folder))
        granted: Granted = {
            "name": entry.name,
            "cards": [{"index": share.card, "uuid": share.uuid} for share in tenancy.shares],
            "log": entry.log,
            "set": environment.fixed,
            "front": environment.front,
        }
        entry.notify({"ok": granted})

    def _not_started(self, entry: QueuedRequest, tenancy: Tenancy, error: Exception) -> None:
        """Leave nothing behind after a failure."""
        _LOG.error("tenant_start_failed", exc_info=error, extra={"data": {"tenant": entry.name}})
        self._registry.discard(tenancy)
        remove_log(entry.log)
        entry.notify({"error": {"kind": "failed", "text": f"cannot prepare the run: {error}"}})
        if not self._admitting:  # else the caller goes on with the next request
            self.look_at_queue()

    def may_run(self, caller: Caller) -> None:
        """Raises RefusedError. A daemon without root cannot give a folder to another user."""
        if os.geteuid() not in (0, caller.uid):
            raise RefusedError(
                "denied", text=f"this daemon runs as {user_name(os.geteuid())} and serves only that user"
            )

    def _check_share(self, user: int) -> None:
        """Raises RefusedError: each run takes files of the daemon, which others need too."""
        of_one = self._most_runs // 4
        share = FairShare(self._most_runs, of_one)
        users = Counter(one.user for one in self._registry.tenancies.values())
        users.update(entry.uid for entry in self._queue)
        for uid, count in users.items():
            if uid is not None:
                share.hold(account_of(uid), count)
        if share.take(user):
            return
        if share.held(user) < of_one:
            few = self._most_runs < _MOST_RUNS
            allowed = f"{self._most_runs} runs of all users{few * ' are what its limit of open files allows'}"
            raise RefusedError(
                "failed",
                text=f"the daemon has no room for another run: {allowed}. Wait until some end"
                f"{few * ', or raise that limit (LimitNOFILE of the systemd unit)'}",
            )
        raise RefusedError(
            "failed",
            text=f"this user has too many runs at once: {share.limit(user)} are allowed now. Wait until some end, "
            "or stop some",
        )

    def _name(self, request: RunRequest) -> str:
        taken = {tenancy.key for tenancy in self._registry.tenancies.values()} | {entry.name for entry in self._queue}
        return self._names.new(request, taken)


def _exhaust(steps: Iterator[None]) -> None:
    for _ in steps:
        pass
