"""The arbiter at work on one node: tenants' processes register, each card's loop holds them to their shares.

One thread listens to all tenants (link), one runs per card (cardworker), one looks around (unknown processes on the
cards, memory that the driver takes beside allocations). A tenant's process is known by the socket it came in through
and by what the kernel says of it (SO_PEERCRED, its ancestors), not by what it says of itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import shutil
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aliquot.adapters import link, processes, rm
from aliquot.adapters.link import Done, GroupSeen, Hello, LinkError, Wake
from aliquot.adapters.nvml import Nvml, NvmlError
from aliquot.adapters.page import SLOTS, Page
from aliquot.arbiter.roster import Member
from aliquot.model.device import Card
from aliquot.model.tenant import Finding, Level, SharingRules, Standing, Tenant

from .cardworker import CardWorker, Seat

_MOST_GROUPS = 64  # of one process: a context has one for compute and a few for copies
_MOST_MESSAGES = 500  # of one process in a second; an honest one sends a few
_LOOK = 1.0  # how often the cards are looked at from outside
_GRACE = 3.0  # a process this young on a card may be about to register

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Process:
    """A connection, and the process behind it."""

    tenant: str
    pid: int
    connection: socket.socket
    pidfd: int
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


class Arbiterd:
    """See the head of the file. All methods may be called from any thread, and are quick."""

    def __init__(self, cards: Sequence[Card], *, rules: SharingRules, nvml: Nvml, simulated: bool) -> None:
        self._workers = {card.uuid: CardWorker(card.uuid, rules) for card in cards}
        self._nvml = nvml
        self._simulated = simulated
        self._tenancies: dict[str, _Tenancy] = {}
        self._lock = threading.RLock()  # over the tenancies and what hangs on them
        self._selector = selectors.DefaultSelector()
        self._strangers: dict[tuple[str, int], float] = {}  # unknown on a card since when
        self._outside: list[Finding] = []
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._listen, name="link", daemon=True),
            threading.Thread(target=self._look_around, name="lookout", daemon=True),
        ]
        self._waker, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._drain)

    def start(self) -> None:
        """Begin."""
        for worker in self._workers.values():
            worker.start()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End; nobody stays paused. Pages and tenants' folders stay, for the next one."""
        self._stopping.set()
        self._ring()
        for worker in self._workers.values():
            worker.stop()
        for thread in self._threads:
            thread.join(timeout=5)
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
            page.sweep()
            door = _open_door(directory / "sock")
            if os.geteuid() == 0:
                for path in (directory, directory / "page", directory / "sock"):
                    os.chown(path, tenant.uid, -1)
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
        return inside + list(self._outside)

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
        except OSError:
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
                log.warning("tenant %s: process %d is not let in: %s", tenancy.tenant.name, pid, why)
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
        elif isinstance(message, Done):
            self._register(tenancy, process)
        elif isinstance(message, Wake) and message.card < len(tenancy.page.uuids):
            uuid = tenancy.page.uuids[message.card]
            if uuid in process.cards:
                self._workers[uuid].wake(_context(process))

    def _register(self, tenancy: _Tenancy, process: _Process) -> None:
        """The groups are complete: seat the process on the cards they are on."""
        assert process.slot is not None
        came, process.coming = process.coming, []
        by_card: dict[str, list[rm.Group]] = {}
        levels: dict[str, Level] = {}
        for seen in came:
            group = rm.Group(seen.fd, seen.client, seen.group, seen.subdevice, seen.channels)
            found = self._probe(group) if seen.compute else None
            if found is None or found[0] not in tenancy.page.index or found[0] not in self._workers:
                os.close(seen.fd)  # copies are not divided; a card that is not the tenant's is the lookout's to tell
                continue
            uuid, level = found
            by_card.setdefault(uuid, []).append(group)
            levels[uuid] = Level.GATE if Level.GATE in (level, levels.get(uuid)) else level
        if not by_card and not came:
            # It uses CUDA, but its groups were not seen (under MPS they are the server's): only the gate holds it.
            by_card = {uuid: [] for uuid in tenancy.page.uuids if uuid in self._workers}
            levels = dict.fromkeys(by_card, Level.GATE)
        for uuid in process.cards - by_card.keys():
            self._workers[uuid].leave(_context(process))
        process.cards = set(by_card)
        for uuid, groups in by_card.items():
            at = tenancy.page.index[uuid]
            seat = Seat(
                _context(process),
                process.tenant,
                process.pid,
                tenancy.page,
                process.slot,
                at,
                tuple(groups),
                levels[uuid],
            )
            self._workers[uuid].join(seat)

    def _probe(self, group: rm.Group) -> tuple[str, Level] | None:
        """Which card it is on, and whether the driver lets us control it. None: no file or object of the driver's."""
        try:
            if not rm.is_rm_file(group.fd, simulated=self._simulated):
                return None
            uuid = rm.uuid_of(group)
        except (rm.RmError, OSError):
            return None
        try:
            rm.set_slice(group, rm.get_slice(group))
            rm.set_paused(group, False)
        except rm.RmError as error:
            if error.gone:
                return None
            log.warning("card %s: %s: its tenant is held at the gate", uuid, error)
            return uuid, Level.GATE
        return uuid, Level.HARDWARE

    def _died(self, tenancy: _Tenancy, process: _Process) -> None:
        with self._lock:
            self._hang_up(tenancy, process)

    def _throw_out(self, tenancy: _Tenancy, process: _Process, why: str) -> None:
        log.warning("tenant %s: process %d is thrown out: %s", tenancy.tenant.name, process.pid, why)
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
            os.close(seen.fd)
        for uuid in process.cards:
            self._workers[uuid].leave(_context(process))

    def _close(self, tenancy: _Tenancy) -> None:
        for process in list(tenancy.processes):
            self._hang_up(tenancy, process)
        tenancy.door.close()
        tenancy.page.close()

    # --- the looking thread ------------------------------------------------------------------------------------

    def _look_around(self) -> None:
        while not self._stopping.wait(_LOOK):
            found: list[Finding] = []
            for uuid in self._workers:
                try:
                    found += self._look_at(uuid)
                except NvmlError as error:
                    found.append(Finding(uuid, None, f"the card does not answer: {error}"))
                except Exception:
                    log.exception("looking at card %s failed", uuid)
            self._outside = found
            with self._lock:
                for tenancy in self._tenancies.values():
                    tenancy.page.sweep()

    def _look_at(self, uuid: str) -> list[Finding]:
        """Memory beside allocations goes onto the pages; processes that are nobody's are told."""
        before = self._reserved(uuid)
        on_card = self._nvml.processes(uuid)
        with self._lock:
            after = self._reserved(uuid)
            for pid, (page, slot, at, bytes_) in after.items():
                if pid in on_card and before.get(pid) == after[pid]:  # nothing was allocated while we looked
                    page.set_overhead(slot, at, max(0, on_card[pid] - bytes_))
            strange = {pid for pid in on_card if pid not in after and pid != os.getpid()}
            owners = {pid: self._owner(pid) for pid in strange}
        now = time.monotonic()
        self._strangers = {
            (card, pid): since for (card, pid), since in self._strangers.items() if card != uuid or pid in strange
        }
        return [
            self._stranger(uuid, pid, owners[pid])
            for pid in sorted(strange)
            if now - self._strangers.setdefault((uuid, pid), now) > _GRACE
        ]

    def _stranger(self, uuid: str, pid: int, owner: str | None) -> Finding:
        tenancy = self._tenancies.get(owner) if owner is not None else None
        if tenancy is None:
            return Finding(uuid, pid, "uses the card without being a tenant: start it with `aliquot run`")
        return Finding(uuid, pid, f"is tenant {tenancy.tenant.name}'s but has not registered: is it statically linked?")

    def _reserved(self, uuid: str) -> dict[int, tuple[Page, int, int, int]]:
        """Who is seated on the card, with what its page says it has there."""
        with self._lock:
            return {
                process.pid: (tenancy.page, process.slot, at, tenancy.page.use(process.slot, at).memory)
                for tenancy in self._tenancies.values()
                if (at := tenancy.page.index.get(uuid)) is not None
                for process in tenancy.processes
                if process.slot is not None
            }


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


def _open_door(path: Path) -> socket.socket:
    """The tenant's socket, listening. A door left by a daemon before us is replaced at once."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()
    door.bind(str(fresh))
    os.chmod(fresh, 0o600)
    door.listen(64)
    door.setblocking(False)
    os.replace(fresh, path)
    return door
