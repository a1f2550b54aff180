"""Accepts the shims' connections on the tenants' sockets and registers their processes. One thread serves all tenants.

A tenant can connect and send as often as it likes. So each tenant has a budget of connections and messages per second,
for all its processes together, and so has each user, for all runs (budgets.py). Beyond that it is muted until the next
second, and costs us nothing more.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from aliquot.adapters.gpu import link
from aliquot.adapters.gpu.link import Done, GroupSeen, Hello, LinkError, MoverHello, Wake
from aliquot.adapters.gpu.page import SLOTS
from aliquot.adapters.host.handedfiles import Listener, discard, is_behind
from aliquot.adapters.host.peers import has_ended
from aliquot.adapters.host.process import processes
from aliquot.adapters.host.users import account_of
from aliquot.model.tenant import Level
from aliquot.services.daemon.connections import FairShare, most_files
from aliquot.services.runtime.processes.anchors import Anchors
from aliquot.services.runtime.processes.budgets import OwnerBudgets
from aliquot.services.runtime.processes.channelgroups import ChannelGroups, Placement
from aliquot.services.runtime.processes.contexts import Context
from aliquot.services.runtime.processes.tenancies import Process, Tenancy

__all__ = ["Contexts", "Process", "Registrar", "Tenancy", "context_name", "log_fault"]

_MOST_GROUPS = 64  # of one process: a context has one for compute and a few for copies
_MOST_MESSAGES = 500  # of one process in a second; an honest one sends a few
# Groups of one tenant's processes whose registration is not complete. Each is an open file: users have fair shares too.
_MOST_PENDING = 256
_MOST_RECEIVED = 2000  # messages of one tenant in a second
_MOST_ACCEPTED = 100  # connections of one tenant in a second; an honest process makes one in its life
_MOST_PROCESSES = 2 * SLOTS  # of one tenant: a page has a slot for each, and each may have a connection for the mover
_LOG_EVERY = 1.0  # seconds between two logged faults of a tenant: it can provoke as many as it likes
_NO_FILE_PAUSE = 0.01  # seconds
_FULL = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = logging.getLogger(__name__)


class Contexts(Protocol):
    """Where the contexts of a card go: its loop. Any thread."""

    def join(self, context: Context) -> None: ...
    def leave(self, name: str) -> None: ...
    def wake(self, name: str) -> None: ...


class Registrar:
    """See the head of the file. `lock` guards the tenancies and everything they hold.

    `refusal` returns why a process (pid, uid) may not register with a tenant; None: it may. It may take long.
    """

    def __init__(
        self,
        lock: threading.RLock,
        loops: Mapping[str, Contexts],
        *,
        simulated: bool,
        refusal: Callable[[Tenancy, int, int], str | None],
        anchors: Anchors | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock, self._loops, self._simulated = lock, loops, simulated
        self._refusal, self._clock = refusal, clock
        self._anchors = anchors or Anchors()
        self._budgets = OwnerBudgets()
        self.hand_over: Callable[[Tenancy, socket.socket, int, int, int], None] | None = None
        self.parking_wake: Callable[[str], None] = lambda uuid: None
        self._controlled: set[str] = set()  # cards on which the driver let us control some context
        self._refused: set[str] = set()  # cards on which it refused that for some
        self._muted: set[Tenancy] = set()  # not read until the next second
        self._is_full = False  # a connection could not be accepted: no file is left
        self._connections = FairShare(most_files() // 4, most_files() // 16)  # each is two files
        self._unchecked = FairShare(most_files() // 4, most_files() // 16)  # groups that are pending
        self._selector = selectors.DefaultSelector()
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._drain)

    def add(self, tenancy: Tenancy) -> None:
        """Accept its processes from now on. Any thread."""
        if isinstance(tenancy.listener, Listener):  # also for connections that are never accepted
            tenancy.listener.owner = owner_of(tenancy)
        tenant = tenancy.tenant
        with self._lock:
            self._anchors.admit(tenant.id)
            if tenant.root is not None:
                self._anchors.put(tenancy, tenant.id, tenant.root, tenant.started)
            self._watch_listener(tenancy)
        self.wake()

    def remove(self, tenancy: Tenancy) -> None:
        """Accept no more, and disconnect its processes. Any thread."""
        with self._lock:
            for process in list(tenancy.processes):
                self._disconnect(tenancy, process)
            self._muted.discard(tenancy)
            if tenancy.tenant.root is not None:
                self._anchors.drop(tenancy, tenancy.tenant.root)
            self._anchors.forget(tenancy.tenant.id)
            if tenancy.tenant.uid is None:  # else its user may have other tenants
                self._budgets.forget(owner_of(tenancy))
            self._unwatch(tenancy.listener)
            tenancy.listener.close()

    def is_proven(self, process: Process, uuid: str) -> bool:
        """Whether the process has registered its context on that card. A driver that refuses all control cannot say;
        one that controls others refuses what is no group."""
        return uuid in process.proven or (uuid in process.refused and uuid not in self._controlled)

    def is_refused(self, uuid: str) -> bool:
        """Whether the driver refused all control on the card whenever it was tried."""
        return uuid in self._refused and uuid not in self._controlled

    def wake(self) -> None:
        """Wake the listening thread. Any thread."""
        with contextlib.suppress(OSError):
            self._waker.send(b"x")

    def close(self) -> None:
        """After the thread has ended and every tenant is removed."""
        self._selector.close()
        self._waker.close()
        self._woken.close()

    # --- the listening thread ----------------------------------------------------------------------------------

    def run(self, stopping: threading.Event) -> None:
        """Until `stopping` is set and `wake` is called."""
        while not stopping.is_set():
            try:
                self.poll()
            except Exception:  # one bad tenant must not stop the others
                log.exception("process_registration_failed")
                time.sleep(0.05)

    def poll(self) -> None:
        """Wait until a socket is readable, and handle each of them once."""
        wait = 1.0 - self._clock() % 1.0 if self._muted else 1.0
        for key, _ in self._selector.select(timeout=wait):
            key.data()
        if self._is_full:  # one pause for all who wait: as long as one for each, others would not be heard
            self._is_full = False
            time.sleep(_NO_FILE_PAUSE)
        if self._muted:
            self._unmute()

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)

    # --- a tenant's budget -------------------------------------------------------------------------------------

    def _charge(self, tenancy: Tenancy, *, accepted: int = 0, received: int = 0) -> None:
        second, owner = int(self._clock()), owner_of(tenancy)
        _begin_second(tenancy, second)
        tenancy.accepted += accepted
        tenancy.received += received
        self._budgets.charge(owner, second, accepted=accepted, received=received)
        behind = is_behind(owner)
        if tenancy.accepted < _MOST_ACCEPTED and tenancy.received < _MOST_RECEIVED and not behind:
            return
        until = "its files are closed" if behind else "next second"
        log_fault(tenancy, "tenant_muted", connections=tenancy.accepted, messages=tenancy.received, until=until)
        self._mute(tenancy)

    def _is_muted(self, tenancy: Tenancy) -> bool:
        """Whether nothing of it is served now. Of a user that has nothing left in this second, each run is muted when
        something of it comes: to mute all of them at once would take long."""
        if tenancy in self._muted:
            return True
        second = int(self._clock())
        if not self._budgets.is_over(owner_of(tenancy), second):
            return False
        _begin_second(tenancy, second)
        self._mute(tenancy)
        return True

    def _mute(self, tenancy: Tenancy) -> None:
        self._muted.add(tenancy)
        self._unwatch(tenancy.listener)
        for process in tenancy.processes:
            self._unwatch(process.connection)

    def _unmute(self) -> None:
        """Listen again to those whose second is over. One pass for all: no tenant has a timer of its own."""
        second = int(self._clock())
        with self._lock:
            over = [one for one in self._muted if one.second != second and not is_behind(owner_of(one))]
            for tenancy in over:
                self._muted.discard(tenancy)
                self._watch_listener(tenancy)
                for process in tenancy.processes:
                    self._watch_connection(tenancy, process)

    def _watch_listener(self, tenancy: Tenancy) -> None:
        self._selector.register(tenancy.listener, selectors.EVENT_READ, lambda: self._accept(tenancy))

    def _watch_connection(self, tenancy: Tenancy, process: Process) -> None:
        self._selector.register(process.connection, selectors.EVENT_READ, lambda: self._receive(tenancy, process))

    def _unwatch(self, file: socket.socket | int) -> None:
        with contextlib.suppress(KeyError):  # its tenant is muted
            self._selector.unregister(file)

    # --- connections -------------------------------------------------------------------------------------------

    def _accept(self, tenancy: Tenancy) -> None:
        with self._lock:
            if self._is_muted(tenancy):  # by what came with the same look
                return
        try:
            connection, _ = tenancy.listener.accept()
        except OSError as error:
            self._is_full |= error.errno in _FULL  # the connection stays in the queue
            return
        connection.setblocking(False)
        pid, uid = link.peer(connection)
        try:
            pidfd = link.watch(connection)
        except OSError:
            pidfd = -1
        started = processes.start_time(pid)  # its own, unless it has ended by the look below
        why = self._refusal(tenancy, pid, uid)
        if why is None and (pidfd < 0 or has_ended(pidfd)):  # the refusal may have been about another process
            why = "it is gone already"
        with self._lock:
            is_there = tenancy.listener.fileno() >= 0  # its end did not wait for that look
            self._admit(tenancy, connection, pid, pidfd, started, why if is_there else "the tenant is gone")
            if is_there:
                self._charge(tenancy, accepted=1)

    def _admit(
        self,
        tenancy: Tenancy,
        connection: socket.socket,
        pid: int,
        pidfd: int,
        started: int | None,
        why: str | None,
    ) -> None:
        """`why`: why it is refused."""
        if why is not None:
            log_fault(tenancy, "process_refused", pid=pid, why=why)
            connection.close()
            if pidfd >= 0:
                os.close(pidfd)
            return
        for silent in [other for other in tenancy.processes if other.pid == pid and other.slot is None]:
            self._disconnect(tenancy, silent)  # a process has one connection, and at most one more for the mover
        if len(tenancy.processes) >= _MOST_PROCESSES or not self._connections.take(owner_of(tenancy)):
            log_fault(tenancy, "process_refused", pid=pid, why="its tenant or user has too many connections")
            connection.close()
            os.close(pidfd)
            return
        fault = partial(log_fault, tenancy)
        groups = ChannelGroups(simulated=self._simulated, log_fault=fault, owner=owner_of(tenancy))
        process = Process(tenancy.tenant.id, pid, connection, pidfd, groups, started=started)
        tenancy.processes.add(process)
        if pid != tenancy.tenant.root:
            self._anchors.put(process, process.tenant, pid, started)
        self._watch_connection(tenancy, process)
        # A forked child may hold the connection open after its parent's death: the pidfd reports the death.
        self._selector.register(pidfd, selectors.EVENT_READ, lambda: self._died(tenancy, process))

    # --- messages ----------------------------------------------------------------------------------------------

    def _receive(self, tenancy: Tenancy, process: Process) -> None:
        """One message of one process, so that a busy process does not hold up the others."""
        with self._lock:
            if process not in tenancy.processes or self._is_muted(tenancy):
                return
            try:
                message = link.receive(process.connection)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                message = None
            except LinkError as error:
                self._expel(tenancy, process, str(error))
                return
            if message is None:
                self._disconnect(tenancy, process)
                return
            self._charge(tenancy, received=1)
            try:
                groups = self._handle(tenancy, process, message)
            except LinkError as error:
                self._expel(tenancy, process, str(error))
                return
        if groups is not None:
            self._register(tenancy, process, groups)

    def _handle(self, tenancy: Tenancy, process: Process, message: link.Message) -> list[GroupSeen] | None:
        """The process's channel groups, once the message completes them. Raises LinkError."""
        now = self._clock()
        if now - process.counted > 1.0:
            process.messages, process.counted = 0, now
        process.messages += 1
        if isinstance(message, GroupSeen):
            if not self._unchecked.take(owner_of(tenancy)):
                discard(message.fd, owner_of(tenancy))
                raise LinkError("too many channel groups of its user are pending")
            process.pending.append(message)
            tenancy.pending += 1
            process.seen += 1
        if process.messages > _MOST_MESSAGES:
            raise LinkError("it sends too many messages")
        if isinstance(message, Hello):
            if process.slot is not None:
                raise LinkError("it sent hello twice on one connection")
            for former in [other for other in tenancy.processes if other.pid == process.pid and other is not process]:
                self._disconnect(tenancy, former)  # a process has one connection, and this is the newer
            process.slot = message.slot
        elif isinstance(message, MoverHello):
            self._hand_over(tenancy, process, message)
        elif process.slot is None:
            raise LinkError("its first message is not hello")
        elif len(process.pending) > _MOST_GROUPS:
            raise LinkError(f"more than {_MOST_GROUPS} channel groups at once")
        elif tenancy.pending > _MOST_PENDING:
            raise LinkError(f"more than {_MOST_PENDING} channel groups of its tenant are pending")
        elif isinstance(message, Done):
            if message.groups != len(process.pending):
                raise LinkError(f"{len(process.pending)} groups came, {message.groups} were sent")
            groups, process.pending = process.pending, []
            tenancy.pending -= len(groups)
            return groups
        elif isinstance(message, Wake) and message.card < len(tenancy.page.uuids):
            uuid = tenancy.page.uuids[message.card]
            if uuid in process.cards:
                self._loops[uuid].wake(context_name(process))
            if process.slot is not None:
                move = tenancy.page.move(process.slot, message.card)
                if move.room or move.wanted:  # it does not wait for its turn, but for memory
                    self.parking_wake(uuid)
        return None

    def _hand_over(self, tenancy: Tenancy, process: Process, hello: MoverHello) -> None:
        """Not a process, but a second connection of one: for the mover. Raises LinkError."""
        first = next(
            (other for other in tenancy.processes if other.pid == process.pid and other.slot == hello.slot), None
        )
        if process.slot is not None or first is None or hello.card >= len(tenancy.page.uuids):
            raise LinkError(f"a hello for the mover, of slot {hello.slot} and card {hello.card}")
        if self.hand_over is None:
            raise LinkError("there is no mover here")
        self._remove(tenancy, process)
        os.close(process.pidfd)
        self.hand_over(tenancy, process.connection, hello.slot, hello.serial, hello.card)

    def _register(self, tenancy: Tenancy, process: Process, groups: list[GroupSeen]) -> None:
        """Join the process to the cards that its groups are on. We ask the driver which those are without the lock: it
        may take long, or hang for a card that fell off the bus."""
        cards = {uuid for uuid in tenancy.page.uuids if uuid in self._loops}
        try:
            placement = process.groups.place(groups, cards)
        finally:
            with self._lock:
                self._unchecked.give_back(owner_of(tenancy), len(groups))
        with self._lock:
            if process in tenancy.processes:
                self._join(tenancy, process, placement)
            else:  # it was disconnected meanwhile
                for group in (group for on_card in placement.by_card.values() for group in on_card):
                    discard(group.fd, owner_of(tenancy))

    def _join(self, tenancy: Tenancy, process: Process, placement: Placement) -> None:
        assert process.slot is not None
        for uuid in process.cards - placement.by_card.keys():
            self._loops[uuid].leave(context_name(process))
        process.cards, process.proven = set(placement.by_card), set(placement.proven)
        process.refused = set(placement.refused)
        self._controlled |= placement.proven
        self._refused |= placement.refused
        group = tenancy.tenant.group
        for uuid, groups in placement.by_card.items():
            context = Context(
                context_name(process),
                group or process.tenant,
                process.pid,
                tenancy.page,
                process.slot,
                tenancy.page.index[uuid],
                tuple(groups),
                Level.GATE if uuid in placement.gated else Level.HARDWARE,
                member="" if tenancy.tenant.is_group else process.tenant if group else "",
            )
            self._loops[uuid].join(context)

    def _died(self, tenancy: Tenancy, process: Process) -> None:
        with self._lock:
            self._disconnect(tenancy, process)

    def _expel(self, tenancy: Tenancy, process: Process, why: str) -> None:
        log_fault(tenancy, "process_expelled", pid=process.pid, why=why)
        self._disconnect(tenancy, process)

    def _disconnect(self, tenancy: Tenancy, process: Process) -> None:
        """Forget the process: it ended, or may not stay."""
        if process not in tenancy.processes:
            return
        self._remove(tenancy, process)
        process.connection.close()
        os.close(process.pidfd)
        for seen in process.pending:
            discard(seen.fd, owner_of(tenancy))
        tenancy.pending -= len(process.pending)
        self._unchecked.give_back(owner_of(tenancy), len(process.pending))
        for uuid in process.cards:
            self._loops[uuid].leave(context_name(process))

    def _remove(self, tenancy: Tenancy, process: Process) -> None:
        tenancy.processes.discard(process)
        self._anchors.drop(process, process.pid)
        self._connections.give_back(owner_of(tenancy))
        self._unwatch(process.connection)
        self._unwatch(process.pidfd)


def _begin_second(tenancy: Tenancy, second: int) -> None:
    if tenancy.second != second:
        tenancy.second, tenancy.accepted, tenancy.received = second, 0, 0


def log_fault(tenancy: Tenancy, key: str, **fields: object) -> None:
    """Log what a tenant did wrong, unless a fault of it was logged a moment ago."""
    now = time.monotonic()
    if now - tenancy.last_logged >= _LOG_EVERY:
        tenancy.last_logged = now
        log.warning(key, extra={"data": {"tenant": tenancy.tenant.name, **fields}})


def owner_of(tenancy: Tenancy) -> int | str:
    """Whose processes they are: a user's, over all their runs, or one Pod's."""
    tenant = tenancy.tenant
    return tenant.id if tenant.uid is None else account_of(tenant.uid)


def context_name(process: Process) -> str:
    return f"{process.tenant}/{process.pid}"
