"""The mover's process: `python -m aliquot.services.mover.main FOLDER BYTES`.

It ends by itself when nothing is kept and no daemon has been connected for a while.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from aliquot import __version__
from aliquot.adapters.gpu.page import Why
from aliquot.adapters.host.handedfiles import Connection
from aliquot.adapters.host.logs import start_text_logging
from aliquot.adapters.host.peers import credentials
from aliquot.adapters.host.users import read_lent
from aliquot.services.daemon.connections import FairShare, most_files
from aliquot.services.mover import control, wire
from aliquot.services.mover.cuda import Card, CudaError
from aliquot.services.mover.folder import is_private, take
from aliquot.services.mover.service import Mover
from aliquot.services.mover.store import Key, Store
from aliquot.wording.amounts import unlike

_SIMULATED = "ALIQUOT_SIMGPU"
_ALONE = 5.0  # seconds without a daemon and without anything kept: it died, and may come back
_FORMER_END = 1.0  # seconds that a new connection waits for the end of the one before
_UNREAD = struct.pack("@2l", 10, 0)  # seconds, microseconds: a shim that reads no answer for so long is given up
_LOG_LIMIT = 16 << 20  # bytes: tenants can provoke as many lines as they like
_MOST_SESSIONS = 8192  # of all users: each is a thread, and systemd allows a service some thousands
_TOUCHING = min(16, os.cpu_count() or 1)  # threads: one alone clears 1-2 GB/s
_REST = 3.0  # times as long as a step takes: tenants are not to feel that the pool grows

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Session:
    """A connection of a shim, and the thread that serves it. `former`: the one that it waits for, if any."""

    shim: Connection
    request: control.Serve
    former: Session | None
    owner: int | str
    pid: int  # of the process; 0: not visible here
    thread: threading.Thread = field(init=False)

    def is_left_by(self, other: Session) -> bool:
        """Whether it is one that the process of the other has left behind: it has another slot now."""
        mine, theirs = self.request, other.request
        same = (mine.tenant, mine.card, self.pid) == (theirs.tenant, theirs.card, other.pid)
        return same and self.pid > 0 and mine.slot != theirs.slot

    def hang_up(self) -> None:
        """Its thread ends, once it has copied what it began."""
        with contextlib.suppress(OSError):
            self.shim.shutdown(socket.SHUT_RDWR)


class Process:
    """Listens for daemons, and warms the pool up."""

    def __init__(self, folder: Path, size: int) -> None:
        self._store = Store(folder, size)
        self._mover = Mover(self._store)
        self._cards: dict[str, Card] = {}
        self._lock = threading.Lock()  # cards
        self._sessions: dict[tuple[str, int, str], Session] = {}
        self._sessions_lock = threading.Lock()
        most = min(_MOST_SESSIONS, most_files() // 2)
        self._shares = FairShare(most, most // 4)
        self._trouble: str | None = None
        self._daemons = 0
        self._seen = time.monotonic()

    def run(self, listener: socket.socket) -> None:
        """Serve daemons until one says to quit, or until none is connected and no memory is kept."""
        threading.Thread(target=self._warm_up, daemon=True).start()
        listener.settimeout(1.0)
        while True:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                alone = not self._daemons and time.monotonic() - self._seen > _ALONE
                if alone and self._mover.discard_if_empty():
                    return
                continue
            self._daemons += 1
            try:
                threading.Thread(target=self._serve_daemon, args=(connection,), daemon=True).start()
            except RuntimeError as error:  # no more threads: the daemon tries again
                log.warning("mover_thread_failed", extra={"data": {"why": str(error)}})
                self._daemons -= 1
                connection.close()

    def _warm_up(self) -> None:
        try:
            self._grow()
        finally:
            self._mover.has_grown()

    def _grow(self) -> None:
        """As far as is needed, chunk by chunk: first the memory, then the driver's registration, which needs a card. At
        full speed only while a move waits. A simulated card has hardly any contents, so its pool needs no memory."""
        if os.environ.get(_SIMULATED):
            self._mover.add_memory(0, self._store.size)
            return
        chunks = deque(self._store.chunks())
        with ThreadPoolExecutor(_TOUCHING) as threads:
            while chunks:
                hurry = self._mover.await_need()
                began = time.monotonic()
                step = [chunks.popleft() for _ in range(min(len(chunks), _TOUCHING if hurry else 1))]
                touched = [(chunk, threads.submit(self._store.populate, *chunk)) for chunk in step]
                for (offset, size), done in touched:
                    try:
                        done.result()
                    except OSError as error:
                        self._fell_short(offset, error)
                        return
                    self._register(offset, size)
                    self._mover.add_memory(offset, size)
                if not hurry:
                    time.sleep(_REST * (time.monotonic() - began))

    def _fell_short(self, offset: int, error: OSError) -> None:
        has, should = unlike(offset >> 20, self._store.size >> 20)
        self._trouble = f"the pool has {has} instead of {should}: {error.strerror} in {self._store.folder}"
        log.warning("pool_short", extra={"data": {"why": self._trouble}})

    def _register(self, offset: int, size: int) -> None:
        """Without it copies are slower, and as right."""
        while not self._cards:
            time.sleep(0.05)
        with self._lock:
            card = next(iter(self._cards.values()))
        with contextlib.suppress(CudaError):
            card.enter()
            card.register(self._store.address + offset, size)

    def _card(self, uuid: str) -> Card:
        with self._lock:
            card = self._cards.get(uuid)
            if card is None:
                card = self._cards[uuid] = Card(bytes.fromhex(uuid.removeprefix("GPU-").replace("-", "")))
            return card

    # --- daemons ------------------------------------------------------------------------------------------------

    def _serve_daemon(self, connection: socket.socket) -> None:
        try:
            with connection, contextlib.suppress(OSError, msgspec.MsgspecError):
                while True:
                    data, files, _, _ = socket.recv_fds(connection, control.LONGEST, 1)
                    if not data:
                        return
                    try:
                        self._handle(control.decode_request(data), files)
                    finally:
                        for file in files:
                            os.close(file)
                    connection.send(control.encode(self._state()))
        finally:
            self._daemons -= 1
            self._seen = time.monotonic()

    def _handle(self, request: control.Request, files: list[int]) -> None:
        match request:
            case control.Serve():
                if files:
                    self._begin_session(Connection(fileno=os.dup(files[0])), request)
            case control.Living(processes, tenants, complete, cards, wanted):
                self._mover.only(processes, None if complete else tenants)
                self._mover.want(wanted)
                for card in cards:
                    self._make_ready(card)
            case control.Tenants(tenants):
                self._mover.only_of(tenants)
            case control.Leave(tenant, card, permitted):
                self._mover.permit(tenant, card, permitted=permitted)
            case control.Look():
                pass
            case control.Quit():
                log.info("mover_stopping")
                self._mover.discard_if_empty()
                os._exit(0)

    def _begin_session(self, shim: Connection, request: control.Serve) -> None:
        """One for each slot and card, and of one process: the one before is ended, and waited for in the new one's
        thread. The daemon does not wait: what one tenant does must not hold up the others."""
        shim.owner = request.tenant
        which = request.tenant, request.slot, request.card
        owner = request.tenant if request.owner is None else request.owner
        with self._sessions_lock:
            former = self._sessions.get(which)
            former = former if former is not None and former.thread.is_alive() else None
            session = Session(shim, request, former, owner, credentials(shim)[0])
            session.thread = threading.Thread(target=self._run_session, args=(session,), daemon=True)
            for left in [found for found in self._sessions.values() if found.is_left_by(session)]:
                left.hang_up()
            if self._shares.take(owner):
                try:
                    self._start_session(session)
                    self._sessions[which] = session
                except RuntimeError as error:
                    self._shares.give_back(owner)
                    _refuse(session, str(error))
            else:
                _refuse(session, f"its user or Pod has {self._shares.held(owner)} connections already")
            for other in [key for key, found in self._sessions.items() if not found.thread.is_alive()]:
                del self._sessions[other]

    def _start_session(self, session: Session) -> None:
        """Raises RuntimeError."""
        if session.former is not None:
            if session.former.former is not None:
                raise RuntimeError("another connection waits for the end of the one before")
            session.former.hang_up()
        session.thread.start()

    def _run_session(self, session: Session) -> None:
        try:
            self._serve_shim(session)
        finally:
            with self._sessions_lock:
                self._shares.give_back(session.owner)

    def _waits_for_former(self, session: Session) -> bool:
        """Whether the connection before has ended. While that still copies, the shim is refused, and comes again."""
        if session.former is None:
            return True
        session.former.thread.join(_FORMER_END)
        request = session.request
        with self._sessions_lock:
            former, session.former = session.former, None
            if not former.thread.is_alive():
                return True
            self._sessions[request.tenant, request.slot, request.card] = former
        _refuse(session, "the connection before is still busy")
        return False

    def _make_ready(self, card: str) -> None:
        try:
            self._card(card)
        except (CudaError, ValueError, OSError) as error:
            self._trouble = f"card {card}: {error}"

    def _serve_shim(self, session: Session) -> None:
        shim, request = session.shim, session.request
        if not self._waits_for_former(session):
            return
        key = Key(request.tenant, request.slot, request.serial, request.card)
        with shim:
            shim.setblocking(True)
            shim.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _UNREAD)
            self._mover.limits[request.tenant, request.card] = request.limit
            try:
                key.file  # noqa: B018 - a name that is none
                card = self._card(request.card)
            except (CudaError, ValueError, OSError) as error:
                log.warning("mover_card_failed", extra={"data": {"card": request.card, "why": str(error)}})
                with contextlib.suppress(OSError):
                    shim.send(wire.answer(Why.MOVER))
                return
            self._mover.serve(shim, key, card)

    def _state(self) -> control.PoolState:
        return control.PoolState(
            version=__version__,
            pid=os.getpid(),
            size=self._store.size,
            warm=self._mover.warm,
            free=self._mover.free(),
            parked=self._mover.parked(),
            trouble=self._trouble,
        )


def _refuse(session: Session, why: str) -> None:
    log.warning("move_session_refused", extra={"data": {"tenant": session.request.tenant, "why": why}})
    with session.shim, contextlib.suppress(OSError):
        session.shim.send(wire.answer(Why.MOVER), socket.MSG_DONTWAIT)


def main(folder: Path, size: int) -> None:
    """Serve until not needed. Exit code 0 at once where another mover has the folder."""
    try:
        take(folder)
    except OSError as error:
        sys.exit(f"{folder} is another user's, and cannot be taken from them ({error.strerror}): remove it as root")
    if not is_private(folder):
        sys.exit(f"{folder} is open to others, or no folder: remove it")
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # nothing is lost: see the head of store.py
    read_lent()
    process = Process(folder, size)
    path = folder / "sock"
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(str(path))
        listener.listen(8)
        process.run(listener)
    os._exit(0)  # threads may hang in the driver


if __name__ == "__main__":
    os.umask(0o077)
    start_text_logging(with_time=True, path=os.readlink("/proc/self/fd/2"), limit=_LOG_LIMIT)
    main(Path(sys.argv[1]), int(sys.argv[2]))
