"""The arbiter at work on one node: tenants' processes register, each card's loop holds them to their shares.

One thread listens to all tenants (link), one runs per card (cardworker), one looks around (patrol). A tenant's process
is known by the socket it came in through and by what the kernel says of it (SO_PEERCRED, then its ancestors, or its
cgroup where tenants are Pods), not by what it says of itself.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import selectors
import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

from aliquot.adapters import link, processes, rm, tenantfolder
from aliquot.adapters.link import Done, GroupSeen, Hello, LinkError, Wake
from aliquot.adapters.nvml import Nvml
from aliquot.adapters.page import SLOTS, Page
from aliquot.arbiter.roster import Member
from aliquot.model.device import Card
from aliquot.model.tenant import Finding, Level, Oddity, SharingRules, Standing, Tenant

from .cardworker import CardWorker, Seat
from .grouping import Grouping
from .patrol import Owner, Patrol, Place, Register

_MOST_GROUPS = 64  # of one process: a context has one for compute and a few for copies
_MOST_MESSAGES = 500  # of one process in a second; an honest one sends a few
_MOST_COMING = 256  # groups that the processes of one tenant have begun to tell: each is a file of ours
_QUIET = 1.0  # a tenant's faults are logged this often at most: it may provoke as many as it likes
_FULL = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_UNSEEN = "its process id cannot be seen from here: an agent in a container needs the host's (hostPID: true)"

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Process:
    """A connection, and the process behind it."""

    tenant: str
    pid: int
    connection: socket.socket
    pidfd: int
    grouping: Grouping
    slot: int | None = None
    coming: list[GroupSeen] = field(default_factory=list)  # since the hello or the last done
    cards: set[str] = field(default_factory=set)  # where it has a seat
    messages: int = 0
    counted: float = 0.0


@dataclass(slots=True)
class _Tenancy:
    """A tenant here: its folder, page and door."""

    tenant: Tenant
    directory: Path
    page: Page
    door: socket.socket
    processes: set[_Process] = field(default_factory=set)
    scolded: float = float("-inf")  # when its faults were last logged


class Arbiterd:
    """See the head of the file. All methods may be called from any thread, and are quick.

    `whose` tells the id of the tenant that a process is of. Where it is given, only its word counts: whoever it does
    not know is let in nowhere. Without it a process is of the tenant whose descendant it is.
    """

    def __init__(
        self,
        cards: Sequence[Card],
        *,
        rules: SharingRules,
        nvml: Nvml,
        simulated: bool,
        whose: Callable[[int], str | None] | None = None,
    ) -> None:
        self._workers = {card.uuid: CardWorker(card.uuid, rules) for card in cards}
        self._simulated = simulated
        self._whose = whose
        self._tenancies: dict[str, _Tenancy] = {}
        self._lock = threading.RLock()  # over the tenancies and what hangs on them
        self._selector = selectors.DefaultSelector()
        register = Register(self._lock, self._seated, self._owner_of, self._sweep, pods=whose is not None)
        self._patrol = Patrol(self._workers, nvml, register)
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._listen, name="link", daemon=True),
            threading.Thread(target=self._patrol.run, args=(self._stopping,), name="patrol", daemon=True),
        ]
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._drain)

    def start(self) -> None:
        """Begin."""
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # several files for each process on the cards
        for worker in self._workers.values():
            worker.start()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End; nobody stays paused. Pages and tenants' folders stay, for the next one."""
        self._stopping.set()
        self._ring()
        for thread in self._threads:  # first: they post to the workers
            if thread.is_alive():
                thread.join(timeout=5)
        for worker in self._workers.values():
            worker.stop()
        with self._lock:
            for tenancy in self._tenancies.values():
                self._close(tenancy)
            self._tenancies.clear()
        self._selector.close()
        self._waker.close()
        self._woken.close()

    def add(self, tenant: Tenant, directory: Path) -> None:
        """Make or adopt the tenant's page and door. Saying it twice changes nothing, but puts a folder right that
        somebody removed meanwhile. Raises OSError and PageError."""
        with self._lock:
            there = self._tenancies.get(tenant.id)
            if there is not None:
                if tenantfolder.is_whole(directory, there.page):
                    return
                log.warning("tenant %s: %s was taken away: it is made anew", tenant.name, directory)
                self._drop(self._tenancies.pop(tenant.id))
            page, door = tenantfolder.furnish(directory, tenant.allotments, tenant.uid)
            tenancy = _Tenancy(tenant, directory, page, door)
            self._tenancies[tenant.id] = tenancy
            for at, each in enumerate(tenant.allotments):
                worker = self._workers.get(each.uuid)
                if worker is not None:
                    member = Member(tenant.id, tenant.app_class, each.quota_milli)
                    worker.admit(member, page, at, each.memory_bytes)
            self._selector.register(door, selectors.EVENT_READ, lambda: self._accept(tenancy))
        self._ring()

    def remove(self, tenant_id: str) -> None:
        """Forget the tenant and remove its folder."""
        with self._lock:
            tenancy = self._tenancies.pop(tenant_id, None)
            if tenancy is None:
                return
            self._drop(tenancy)
        shutil.rmtree(tenancy.directory, ignore_errors=True)

    def _drop(self, tenancy: _Tenancy) -> None:
        """Let go of all that hangs on it; its folder stays. The page is closed when no card's loop touches it."""
        for process in list(tenancy.processes):
            self._hang_up(tenancy, process)
        self._selector.unregister(tenancy.door)
        tenancy.door.close()
        workers = [self._workers[each.uuid] for each in tenancy.tenant.allotments if each.uuid in self._workers]
        page_is_free = _after(len(workers), tenancy.page.close)
        for worker in workers:
            worker.dismiss(tenancy.tenant.id, page_is_free)

    def configure(self, rules: SharingRules) -> None:
        """Other rules from now on."""
        for worker in self._workers.values():
            worker.configure(rules)

    def standings(self) -> list[Standing]:
        """Every tenant on every card."""
        return [standing for worker in self._workers.values() for standing in worker.standings()]

    def findings(self) -> list[Finding]:
        """What should not be."""
        inside = [each for worker in self._workers.values() for each in list(worker.findings.values())]
        return inside + self._patrol.findings + self._unwritable()

    def _unwritable(self) -> list[Finding]:
        """Tenants whose page could not be written: no heartbeat, no gate, no pause holds there."""
        with self._lock:
            return [
                Finding(
                    uuid,
                    tenant.root,
                    Oddity.PAGE,
                    f"the page of tenant {tenant.name} cannot be written: {trouble}",
                    tenant.id,
                )
                for tenancy in self._tenancies.values()
                if (trouble := tenancy.page.trouble) is not None
                for tenant in (tenancy.tenant,)
                for uuid in tenancy.page.uuids[:1]
            ]

    def alive(self, tenant_id: str) -> bool:
        """Whether any of its processes that registered still lives."""
        with self._lock:
            tenancy = self._tenancies.get(tenant_id)
            if tenancy is None or tenancy.processes:
                return tenancy is not None
            holders = [tenancy.page.holder(slot) for slot in tenancy.page.sweep()]
            # A Pod may have handed its page to another one, which would keep its place for it after its end.
            return any(
                pid == 0 or self._whose is None or self._whose(pid) == tenant_id for pid in holders if pid is not None
            )

    # --- the listening thread ----------------------------------------------------------------------------------

    def _listen(self) -> None:
        while not self._stopping.is_set():
            try:
                for key, _ in self._selector.select(timeout=1.0):
                    key.data()
            except Exception:  # one bad guest must not close the door for the others
                log.exception("listening to tenants failed")
                time.sleep(0.05)

    def _ring(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b"x")

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)

    def _accept(self, tenancy: _Tenancy) -> None:
        try:
            connection, _ = tenancy.door.accept()
        except OSError as error:
            if error.errno in _FULL:  # it will be there the next time too: do not ask without pause
                time.sleep(0.01)
            return
        connection.setblocking(False)
        with self._lock:
            pid, uid = link.peer(connection)
            why = self._unwelcome(tenancy, pid, uid)
            try:
                pidfd = os.pidfd_open(pid) if why is None else -1
            except OSError:
                why = "it is gone already"
            if why is not None:
                _scold(tenancy, f"process {pid} is not let in: {why}")
                connection.close()
                return
            for former in [each for each in tenancy.processes if each.pid == pid]:
                self._hang_up(tenancy, former)  # it has only one link, and this is the newer
            process = _Process(tenancy.tenant.id, pid, connection, pidfd, Grouping(simulated=self._simulated))
            tenancy.processes.add(process)
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._hear(tenancy, process))
            # A forked child may hold the connection open after its parent's death: the kernel tells of the death.
            self._selector.register(pidfd, selectors.EVENT_READ, lambda: self._died(tenancy, process))

    def _unwelcome(self, tenancy: _Tenancy, pid: int, uid: int) -> str | None:
        """Why this process is not of this tenant."""
        if tenancy.tenant.id not in self._tenancies:
            return "the tenant is gone"
        if pid <= 0:  # in a pid namespace that is not below ours
            return _UNSEEN
        if tenancy.tenant.uid is not None and uid not in (0, tenancy.tenant.uid, os.geteuid()):
            return f"it is user {uid}'s, the tenant is user {tenancy.tenant.uid}'s"
        if len(tenancy.processes) >= SLOTS:
            return f"the tenant has {SLOTS} processes already"
        owner = self._owner(pid)
        if owner is None and self._whose is not None:
            return "it is in no Pod's cgroup"
        if owner is not None and owner != tenancy.tenant.id:
            other = self._tenancies.get(owner)
            return f"it belongs to Pod {owner}" if other is None else f"it belongs to tenant {other.tenant.name}"
        return None

    def _owner(self, pid: int) -> str | None:
        """As `whose` says; without it whose descendant it is. None: nobody's we know (it left its parents, say)."""
        if self._whose is not None:
            return self._whose(pid)
        roots = {each.tenant.root: name for name, each in self._tenancies.items() if each.tenant.root is not None}
        known = {process.pid: name for name, each in self._tenancies.items() for process in each.processes}
        anchors = known | roots
        return next((anchors[each] for each in processes.ancestors(pid) if each in anchors), None)

    def _hear(self, tenancy: _Tenancy, process: _Process) -> None:
        """One message of one process, so that a loud one does not drown the others."""
        with self._lock:
            if process not in tenancy.processes:
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
            try:
                came = self._heed(tenancy, process, message)
            except LinkError as error:
                self._throw_out(tenancy, process, str(error))
                return
        if came is not None:
            self._register(tenancy, process, came)

    def _heed(self, tenancy: _Tenancy, process: _Process, message: link.Message) -> list[GroupSeen] | None:
        """The groups, when they are complete."""
        now = time.monotonic()
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
        elif sum(len(each.coming) for each in tenancy.processes) > _MOST_COMING:
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

    def _register(self, tenancy: _Tenancy, process: _Process, came: list[GroupSeen]) -> None:
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
        self, tenancy: _Tenancy, process: _Process, by_card: Mapping[str, Sequence[rm.Group]], gated: Set[str]
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

    def _died(self, tenancy: _Tenancy, process: _Process) -> None:
        with self._lock:
            self._hang_up(tenancy, process)

    def _throw_out(self, tenancy: _Tenancy, process: _Process, why: str) -> None:
        _scold(tenancy, f"process {process.pid} is thrown out: {why}")
        self._hang_up(tenancy, process)

    def _hang_up(self, tenancy: _Tenancy, process: _Process) -> None:
        """The process is gone, or no guest any more."""
        if process not in tenancy.processes:
            return
        tenancy.processes.discard(process)
        self._selector.unregister(process.connection)
        self._selector.unregister(process.pidfd)
        process.connection.close()
        os.close(process.pidfd)
        for seen in process.coming:
            link.discard(seen.fd)
        for uuid in process.cards:
            self._workers[uuid].leave(_context(process))

    def _close(self, tenancy: _Tenancy) -> None:
        for process in list(tenancy.processes):
            self._hang_up(tenancy, process)
        tenancy.door.close()
        tenancy.page.close()

    # --- what the patrol asks ----------------------------------------------------------------------------------

    def _seated(self, uuid: str) -> dict[int, Place]:
        """Who has a seat, with what its page says it has on the card."""
        return {
            process.pid: Place(tenancy.page, process.slot, at, tenancy.page.use(process.slot, at).memory)
            for tenancy in self._tenancies.values()
            if (at := tenancy.page.index.get(uuid)) is not None
            for process in tenancy.processes
            if process.slot is not None
        }

    def _owner_of(self, pid: int) -> Owner | None:
        """Whose a process on a card is."""
        owner = self._owner(pid)
        if owner is None:
            return None
        tenancy = self._tenancies.get(owner)
        return Owner(owner) if tenancy is None else Owner(owner, tenancy.tenant.name, frozenset(tenancy.page.uuids))

    def _sweep(self) -> list[int]:
        too_long = []
        for tenancy in self._tenancies.values():
            tenancy.page.sweep()
            if tenancy.page.is_longer():
                _scold(tenancy, "it made its page longer, which fills the host's memory: it is cut")
                with contextlib.suppress(OSError):  # no number is free: the next sweep finds it again
                    too_long.append(os.dup(tenancy.page.fileno()))
        return too_long


def _context(process: _Process) -> str:
    return f"{process.tenant}/{process.pid}"


def _after(calls: int, then: Callable[[], None]) -> Callable[[], None]:
    """Something to call so many times, the last of which does it."""
    left, lock = [calls], threading.Lock()

    def one_more() -> None:
        with lock:
            left[0] -= 1
            last = left[0] == 0
        if last:
            then()

    if not calls:
        then()
    return one_more


def _scold(tenancy: _Tenancy, what: str) -> None:
    now = time.monotonic()
    if now - tenancy.scolded >= _QUIET:
        tenancy.scolded = now
        log.warning("tenant %s: %s", tenancy.tenant.name, what)
