"""Who comes in at the tenants' doors, and what they say. One thread listens to all of them.

A tenant may come and talk as often as it likes. So each has so many connections and messages in a second, those of all
its processes together; past that nobody listens to it until the next second, and it costs us no more.
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
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from aliquot.adapters.gpu import link, rm
from aliquot.adapters.gpu.link import Done, GroupSeen, Hello, LinkError, Wake
from aliquot.adapters.gpu.page import Page
from aliquot.model.tenant import Level, Tenant
from aliquot.services.runtime.cardloop import CardLoop
from aliquot.services.runtime.channelgroups import ChannelGroups
from aliquot.services.runtime.contexts import Seat

_MOST_GROUPS = 64  # of one process: a context has one for compute and a few for copies
_MOST_MESSAGES = 500  # of one process in a second; an honest one sends a few
_MOST_COMING = 256  # groups that the processes of one tenant have begun to tell: each is a file of ours
_MOST_HEARD = 2000  # messages of one tenant in a second
_MOST_ACCEPTED = 100  # connections of one tenant in a second; an honest process makes one in its life
_QUIET = 1.0  # a tenant's faults are logged this often at most: it may provoke as many as it likes
_FULL = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Process:
    """A connection, and the process behind it."""

    tenant: str
    pid: int
    connection: socket.socket
    pidfd: int
    grouping: ChannelGroups
    slot: int | None = None
    coming: list[GroupSeen] = field(default_factory=list)  # since the hello or the last done
    cards: set[str] = field(default_factory=set)  # where it has a seat
    messages: int = 0
    counted: float = 0.0


@dataclass(slots=True, eq=False)
class Tenancy:
    """A tenant here: its folder, page and door."""

    tenant: Tenant
    directory: Path
    page: Page
    door: socket.socket
    processes: set[Process] = field(default_factory=set)
    scolded: float = float("-inf")  # when its faults were last logged
    second: int = -1  # of which these are counted:
    accepted: int = 0  # connections
    heard: int = 0  # messages
    reach: int = 0  # slots of the page that its processes had, up to the last one


class Registrar:
    """See the head of the file. `lock` is over the tenancies and what hangs on them.

    `unwelcome` tells why a process (pid, uid) is not let in at a tenant's door; None: it is.
    """

    def __init__(
        self,
        lock: threading.RLock,
        workers: Mapping[str, CardLoop],
        *,
        simulated: bool,
        unwelcome: Callable[[Tenancy, int, int], str | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock, self._workers, self._simulated = lock, workers, simulated
        self._unwelcome, self._clock = unwelcome, clock
        self._unheard: set[Tenancy] = set()  # until the next second
        self._selector = selectors.DefaultSelector()
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._drain)

    def open(self, tenancy: Tenancy) -> None:
        """From now on its processes may come. Any thread."""
        with self._lock:
            self._watch_door(tenancy)
        self.ring()

    def shut(self, tenancy: Tenancy) -> None:
        """Nobody may any more, and who is in is sent away. Any thread."""
        with self._lock:
            for process in list(tenancy.processes):
                self._hang_up(tenancy, process)
            self._unheard.discard(tenancy)
            self._unwatch(tenancy.door)
            tenancy.door.close()

    def ring(self) -> None:
        """Wake the listening thread. Any thread."""
        with contextlib.suppress(OSError):
            self._waker.send(b"x")

    def close(self) -> None:
        """After the thread has ended and every door is shut."""
        self._selector.close()
        self._waker.close()
        self._woken.close()

    # --- the listening thread ----------------------------------------------------------------------------------

    def run(self, stopping: threading.Event) -> None:
        """Until told to stop, and rung."""
        while not stopping.is_set():
            try:
                self.turn()
            except Exception:  # one bad guest must not close the door for the others
                log.exception("listening to tenants failed")
                time.sleep(0.05)

    def turn(self) -> None:
        """Wait until somebody wants something, and hear each of them once."""
        wait = 1.0 - self._clock() % 1.0 if self._unheard else 1.0
        for key, _ in self._selector.select(timeout=wait):
            key.data()
        if self._unheard:
            self._hear_again()

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)

    # --- how much of our time a tenant gets --------------------------------------------------------------------

    def _spend(self, tenancy: Tenancy, *, accepted: int = 0, heard: int = 0) -> None:
        second = int(self._clock())
        if tenancy.second != second:
            tenancy.second, tenancy.accepted, tenancy.heard = second, 0, 0
        tenancy.accepted += accepted
        tenancy.heard += heard
        if tenancy.accepted < _MOST_ACCEPTED and tenancy.heard < _MOST_HEARD:
            return
        what = f"{tenancy.accepted} connections and {tenancy.heard} messages in a second"
        scold(tenancy, f"{what}: nobody listens to it until the next one")
        self._unheard.add(tenancy)
        self._unwatch(tenancy.door)
        for process in tenancy.processes:
            self._unwatch(process.connection)

    def _hear_again(self) -> None:
        """Those whose second is over. One look for all of them: no timer is theirs."""
        second = int(self._clock())
        with self._lock:
            for tenancy in [each for each in self._unheard if each.second != second]:
                self._unheard.discard(tenancy)
                self._watch_door(tenancy)
                for process in tenancy.processes:
                    self._watch_link(tenancy, process)

    def _watch_door(self, tenancy: Tenancy) -> None:
        self._selector.register(tenancy.door, selectors.EVENT_READ, lambda: self._accept(tenancy))

    def _watch_link(self, tenancy: Tenancy, process: Process) -> None:
        self._selector.register(process.connection, selectors.EVENT_READ, lambda: self._hear(tenancy, process))

    def _unwatch(self, file: socket.socket | int) -> None:
        with contextlib.suppress(KeyError):  # its tenant is not listened to
            self._selector.unregister(file)

    # --- who comes ---------------------------------------------------------------------------------------------

    def _accept(self, tenancy: Tenancy) -> None:
        try:
            connection, _ = tenancy.door.accept()
        except OSError as error:
            if error.errno in _FULL:  # it will be there the next time too: do not ask without pause
                time.sleep(0.01)
            return
        connection.setblocking(False)
        with self._lock:
            self._let_in(tenancy, connection)
            if tenancy.door.fileno() >= 0:
                self._spend(tenancy, accepted=1)

    def _let_in(self, tenancy: Tenancy, connection: socket.socket) -> None:
        pid, uid = link.peer(connection)
        why = self._unwelcome(tenancy, pid, uid)
        try:
            pidfd = link.watch(connection, pid) if why is None else -1
        except OSError:
            why = "it is gone already"
        if why is not None:
            scold(tenancy, f"process {pid} is not let in: {why}")
            connection.close()
            return
        for former in [process for process in tenancy.processes if process.pid == pid]:
            self._hang_up(tenancy, former)  # it has only one link, and this is the newer
        grouping = ChannelGroups(simulated=self._simulated, complain=partial(scold, tenancy))
        process = Process(tenancy.tenant.id, pid, connection, pidfd, grouping)
        tenancy.processes.add(process)
        self._watch_link(tenancy, process)
        # A forked child may hold the connection open after its parent's death: the kernel tells of the death.
        self._selector.register(pidfd, selectors.EVENT_READ, lambda: self._died(tenancy, process))

    # --- what it says ------------------------------------------------------------------------------------------

    def _hear(self, tenancy: Tenancy, process: Process) -> None:
        """One message of one process, so that a loud one does not drown the others."""
        with self._lock:
            if process not in tenancy.processes or tenancy in self._unheard:
                return
            try:
                message = link.receive(process.connection)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                message = None
            except LinkError as error:
                self._throw_out(tenancy, process, str(error))
                return
            if message is None:
                self._hang_up(tenancy, process)
                return
            self._spend(tenancy, heard=1)
            try:
                came = self._heed(tenancy, process, message)
            except LinkError as error:
                self._throw_out(tenancy, process, str(error))
                return
        if came is not None:
            self._register(tenancy, process, came)

    def _heed(self, tenancy: Tenancy, process: Process, message: link.Message) -> list[GroupSeen] | None:
        """The groups, when they are complete."""
        now = self._clock()
        if now - process.counted > 1.0:
            process.messages, process.counted = 0, now
        process.messages += 1
        if isinstance(message, GroupSeen):
            process.coming.append(message)
        if process.messages > _MOST_MESSAGES:
            raise LinkError("it sends too many messages")
        if isinstance(message, Hello):
            if process.slot is not None:
                raise LinkError("a second hello")
            process.slot = message.slot
        elif process.slot is None:
            raise LinkError("no hello")
        elif len(process.coming) > _MOST_GROUPS:
            raise LinkError(f"more than {_MOST_GROUPS} groups")
        elif sum(len(process.coming) for process in tenancy.processes) > _MOST_COMING:
            raise LinkError(f"more than {_MOST_COMING} groups of its tenant are on their way")
        elif isinstance(message, Done):
            if message.groups != len(process.coming):
                raise LinkError(f"{len(process.coming)} groups came, {message.groups} were sent")
            came, process.coming = process.coming, []
            return came
        elif isinstance(message, Wake) and message.card < len(tenancy.page.uuids):
            uuid = tenancy.page.uuids[message.card]
            if uuid in process.cards:
                self._workers[uuid].wake(_context(process))
        return None

    def _register(self, tenancy: Tenancy, process: Process, came: list[GroupSeen]) -> None:
        """Seat the process on the cards its groups are on. Without the lock it is asked which those are: the driver may
        take long, or hang for a card that fell off, and others have other things to do."""
        by_card, gated = process.grouping.sort(came, {uuid for uuid in tenancy.page.uuids if uuid in self._workers})
        with self._lock:
            if process in tenancy.processes:
                self._seat(tenancy, process, by_card, gated)
            else:  # it was let go meanwhile
                for group in (group for groups in by_card.values() for group in groups):
                    link.discard(group.fd)

    def _seat(
        self, tenancy: Tenancy, process: Process, by_card: Mapping[str, Sequence[rm.Group]], gated: Set[str]
    ) -> None:
        assert process.slot is not None
        for uuid in process.cards - by_card.keys():
            self._workers[uuid].leave(_context(process))
        process.cards = set(by_card)
        for uuid, groups in by_card.items():
            seat = Seat(
                _context(process),
                process.tenant,
                process.pid,
                tenancy.page,
                process.slot,
                tenancy.page.index[uuid],
                tuple(groups),
                Level.GATE if uuid in gated else Level.HARDWARE,
            )
            self._workers[uuid].join(seat)

    def _died(self, tenancy: Tenancy, process: Process) -> None:
        with self._lock:
            self._hang_up(tenancy, process)

    def _throw_out(self, tenancy: Tenancy, process: Process, why: str) -> None:
        scold(tenancy, f"process {process.pid} is thrown out: {why}")
        self._hang_up(tenancy, process)

    def _hang_up(self, tenancy: Tenancy, process: Process) -> None:
        """The process is gone, or no guest any more."""
        if process not in tenancy.processes:
            return
        tenancy.processes.discard(process)
        self._unwatch(process.connection)
        self._unwatch(process.pidfd)
        process.connection.close()
        os.close(process.pidfd)
        for seen in process.coming:
            link.discard(seen.fd)
        for uuid in process.cards:
            self._workers[uuid].leave(_context(process))


def scold(tenancy: Tenancy, what: str) -> None:
    """Log what a tenant did, unless something was a moment ago."""
    now = time.monotonic()
    if now - tenancy.scolded >= _QUIET:
        tenancy.scolded = now
        log.warning("tenant %s: %s", tenancy.tenant.name, what)


def _context(process: Process) -> str:
    return f"{process.tenant}/{process.pid}"
