"""The arbiter at work on one node: tenants' processes register, each card's loop holds them to their shares.

One thread listens to all tenants (link), one runs per card (cardworker), one looks around (patrol). A tenant's process
is known by the socket it came in through and by what the kernel says of it (SO_PEERCRED, its ancestors), not by what it
says of itself.
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
import stat
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aliquot.adapters import link, processes, rm
from aliquot.adapters.link import Done, GroupSeen, Hello, LinkError, Wake
from aliquot.adapters.nvml import Nvml
from aliquot.adapters.page import SLOTS, Page
from aliquot.arbiter.roster import Member
from aliquot.model.device import Card
from aliquot.model.tenant import Finding, Level, SharingRules, Standing, Tenant

from .cardworker import CardWorker, Seat
from .patrol import Patrol, Place, Register

_MOST_GROUPS = 64  # of one process: a context has one for compute and a few for copies
_MOST_MESSAGES = 500  # of one process in a second; an honest one sends a few
_MOST_COMING = 256  # groups that the processes of one tenant have begun to tell: each is a file of ours
_QUIET = 1.0  # a tenant's faults are logged this often at most: it may provoke as many as it likes
_NOWHERE = (None, Level.NONE)  # no file of the driver's, or no object of that file
_FULL = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Process:
    """A connection, and the process behind it."""

    tenant: str
    pid: int
    connection: socket.socket
    pidfd: int
    slot: int | None = None
    probed: dict[tuple[int, int, int], tuple[str | None, Level]] = field(default_factory=dict)
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
    """See the head of the file. All methods may be called from any thread, and are quick."""

    def __init__(self, cards: Sequence[Card], *, rules: SharingRules, nvml: Nvml, simulated: bool) -> None:
        self._workers = {card.uuid: CardWorker(card.uuid, rules) for card in cards}
        self._simulated = simulated
        self._tenancies: dict[str, _Tenancy] = {}
        self._lock = threading.RLock()  # over the tenancies and what hangs on them
        self._selector = selectors.DefaultSelector()
        register = Register(self._lock, self._seated, self._owner_name, self._sweep)
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
        """Make or adopt the tenant's page and door. Saying it twice changes nothing."""
        with self._lock:
            if tenant.id in self._tenancies:
                return
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            page = Page(directory / "page", tenant.allotments)
            try:
                page.sweep()
                door = _open_door(directory / "sock", tenant.uid)
                if os.geteuid() == 0:
                    os.fchown(page.fileno(), tenant.uid, -1)
                    os.chown(directory, tenant.uid, -1, follow_symlinks=False)
            except BaseException:
                page.close()
                raise
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
            for process in list(tenancy.processes):
                self._hang_up(tenancy, process)
            self._selector.unregister(tenancy.door)
            tenancy.door.close()
            workers = [self._workers[each.uuid] for each in tenancy.tenant.allotments if each.uuid in self._workers]
        page_is_free = _after(len(workers), tenancy.page.close)
        for worker in workers:
            worker.dismiss(tenant_id, page_is_free)
        shutil.rmtree(tenancy.directory, ignore_errors=True)

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
                    uuid, tenancy.tenant.root, f"the page of tenant {tenancy.tenant.name} cannot be written: {trouble}"
                )
                for tenancy in self._tenancies.values()
                if (trouble := tenancy.page.trouble) is not None
                for uuid in tenancy.page.uuids[:1]
            ]

    def alive(self, tenant_id: str) -> bool:
        """Whether any of its processes that registered still lives."""
        with self._lock:
            tenancy = self._tenancies.get(tenant_id)
            return tenancy is not None and (bool(tenancy.processes) or bool(tenancy.page.sweep()))

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
            process = _Process(tenancy.tenant.id, pid, connection, pidfd)
            tenancy.processes.add(process)
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._hear(tenancy, process))
            # A forked child may hold the connection open after its parent's death: the kernel tells of the death.
            self._selector.register(pidfd, selectors.EVENT_READ, lambda: self._died(tenancy, process))

    def _unwelcome(self, tenancy: _Tenancy, pid: int, uid: int) -> str | None:
        """Why this process is not of this tenant."""
        if tenancy.tenant.id not in self._tenancies:
            return "the tenant is gone"
        if uid not in (0, tenancy.tenant.uid, os.geteuid()):
            return f"it is user {uid}'s, the tenant is user {tenancy.tenant.uid}'s"
        if len(tenancy.processes) >= SLOTS:
            return f"the tenant has {SLOTS} processes already"
        owner = self._owner(pid)
        if owner is not None and owner != tenancy.tenant.id:
            return f"it belongs to tenant {self._tenancies[owner].tenant.name}"
        return None

    def _owner(self, pid: int) -> str | None:
        """Whose descendant it is; None: nobody's we know (a daemon that left its parents, say)."""
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
                self._heed(tenancy, process, message)
            except LinkError as error:
                self._throw_out(tenancy, process, str(error))

    def _heed(self, tenancy: _Tenancy, process: _Process, message: link.Message) -> None:
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
            self._register(tenancy, process)
        elif isinstance(message, Wake) and message.card < len(tenancy.page.uuids):
            uuid = tenancy.page.uuids[message.card]
            if uuid in process.cards:
                self._workers[uuid].wake(_context(process))

    def _register(self, tenancy: _Tenancy, process: _Process) -> None:
        """The groups are complete: seat the process on the cards they are on."""
        assert process.slot is not None
        by_card, gated = self._sort(tenancy, process)
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

    def _sort(self, tenancy: _Tenancy, process: _Process) -> tuple[dict[str, list[rm.Group]], set[str]]:
        """The groups that came, by the tenant's card they are on; and the cards where only the gate holds it."""
        came, process.coming = process.coming, []
        mine = {uuid for uuid in tenancy.page.uuids if uuid in self._workers}
        # It uses CUDA, but its groups were not seen (under MPS they are the server's): only the gate holds it.
        gated = set() if came else set(mine)
        by_card: dict[str, list[rm.Group]] = {}
        told: set[tuple[int, int]] = set()
        for seen in came:
            group = rm.Group(seen.fd, seen.client, seen.group, seen.subdevice, seen.channels)
            twice = (seen.client, seen.group) in told
            uuid, level = self._place(process, group) if seen.compute and not twice else _NOWHERE
            if level is Level.GATE:
                gated |= mine if uuid is None else mine & {uuid}
            if uuid is None or uuid not in mine:
                link.discard(seen.fd)  # copies are not divided; cards that are not the tenant's the patrol tells of
                continue
            told.add((seen.client, seen.group))
            by_card.setdefault(uuid, []).append(group)
        return {uuid: [] for uuid in gated} | by_card, gated

    def _place(self, process: _Process, group: rm.Group) -> tuple[str | None, Level]:
        """As `_probe`, asked once of each group: a context registers dozens of times while it is made.

        The file is looked at each time: with known handles another one may come.
        """
        key = (group.client, group.group, group.subdevice)
        if not self._is_ours(group.fd):
            return _NOWHERE
        if key not in process.probed:
            found = self._probe(group)
            if found == _NOWHERE:
                return found
            process.probed[key] = found
        return process.probed[key]

    def _probe(self, group: rm.Group) -> tuple[str | None, Level]:
        """Which card it is on (None: the driver does not tell), and whether the driver lets us control it."""
        uuid = None
        try:
            uuid = rm.uuid_of(group)
            rm.set_slice(group, rm.get_slice(group))
        except rm.RmError as error:
            if error.gone:
                return _NOWHERE
            log.warning("card %s: %s: its tenant is held at the gate", uuid or "unknown", error)
            return uuid, Level.GATE
        return uuid, Level.HARDWARE

    def _is_ours(self, fd: int) -> bool:
        try:
            return rm.is_rm_file(fd, simulated=self._simulated)
        except OSError:
            return False

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

    def _owner_name(self, pid: int) -> str | None:
        owner = self._owner(pid)
        return None if owner is None else self._tenancies[owner].tenant.name

    def _sweep(self) -> None:
        for tenancy in self._tenancies.values():
            tenancy.page.sweep()


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


def _open_door(path: Path, uid: int) -> socket.socket:
    """The tenant's socket, listening. A door left by a daemon before us is replaced at once."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        os.fchmod(door.fileno(), 0o600)  # the name's mode when it is bound
        door.bind(str(fresh))
        if os.geteuid() == 0:
            _give(fresh, uid)
        door.listen(64)
        door.setblocking(False)
        os.replace(fresh, path)
    except BaseException:
        door.close()
        raise
    return door


def _give(path: Path, uid: int) -> None:
    """The socket of that name to that user. The folder is theirs: by now the name may be another file's."""
    file = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(file).st_mode):
            raise FileExistsError(errno.EEXIST, "somebody put another file there", str(path))
        os.chown(f"/proc/self/fd/{file}", uid, -1)
    finally:
        os.close(file)
