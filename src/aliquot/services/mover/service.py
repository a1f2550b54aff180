"""Connections of shims: what they send out is kept until they ask for it back, or end.

One thread per connection, since copies block. A connection is one process on one card. When it ends, what was kept for
it stays: a shim that lost its connection comes again. The daemon says which processes live (`only`), and whose memory
it ordered off a card (`permit`): a program that sends memory unasked would take the pool from others.

Each packet is all or nothing. While one is copied, the next is mapped: an answer is sent when its copies are done.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
from collections import Counter, deque
from collections.abc import Iterable
from ctypes import c_void_p
from dataclasses import dataclass, field

from aliquot.adapters.gpu.page import Why
from aliquot.adapters.host.handedfiles import close_here, receive
from aliquot.services.mover import wire
from aliquot.services.mover.cuda import Card, CudaError, Window
from aliquot.services.mover.pool import Part, Pool, PoolFullError, without
from aliquot.services.mover.store import Kept, Key, Store

_AHEAD = 2  # packets that are mapped while another is copied
_GROWTH = 10.0  # seconds to wait for memory that the pool still gets

log = logging.getLogger(__name__)


@dataclass
class Mover:
    """The pool, and what is in it. Methods may be called from any thread."""

    store: Store
    pool: Pool = field(default_factory=Pool)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._grown = threading.Condition(self._lock)
        self._needed = threading.Condition(self._lock)
        self._wanted = self._short = 0  # bytes to be ready for; moves that wait for memory
        self._growing = True
        self.kept = self.store.kept()
        self.limits: dict[tuple[str, str], int | None] = {}  # by tenant and card
        self._leaving: set[tuple[str, str]] = set()  # tenant and card: ordered to leave
        self._promised: Counter[tuple[str, str]] = Counter()  # bytes that leave now, by tenant and card
        self.warm = 0  # bytes of the pool that may be used
        self._reading: Counter[Kept] = Counter()  # copies from there to a card are under way
        self._late: set[Kept] = set()  # given back while they were read: free when that is over

    def add_memory(self, offset: int, size: int) -> None:
        """That part of the file may be used from now on; pieces that a mover before kept there stay."""
        with self._lock:
            there = [kept for pieces in self.kept.values() for kept in pieces.values()]
            taken = [part for kept in (*there, *self._late) for part in kept.parts]
            self.pool.give_back(without(Part(offset, size), taken))
            self.warm += size
            self._grown.notify_all()

    def want(self, size: int) -> None:
        """So much may have to be kept at once: get the memory for it, but take the time."""
        with self._lock:
            self._wanted = size
            self._needed.notify_all()

    def await_need(self) -> bool:
        """Wait until the pool needs more memory. True: a move waits for it."""
        with self._lock:
            self._needed.wait_for(lambda: self._short or self.warm < self._wanted)
            return bool(self._short)

    def discard_if_empty(self) -> bool:
        """Give the pool's memory back where nothing is kept. From then on nothing can be kept."""
        self._lock.acquire()  # for good
        if self.kept:
            self._lock.release()
            return False
        self.store.discard()
        return True

    def has_grown(self) -> None:
        """It gets no more memory: it has all of it, or there is not more."""
        with self._lock:
            self._growing = False
            self._grown.notify_all()

    def parked(self) -> int:
        """Bytes kept."""
        with self._lock:
            return sum(kept.size for pieces in self.kept.values() for kept in pieces.values())

    def free(self) -> int:
        """Bytes of the pool that can be taken, now or once the pool has the memory that it still gets."""
        with self._lock:
            return self.pool.free + self._coming()

    def _coming(self) -> int:
        """With the lock held. Pieces that a mover before kept may lie there."""
        if not self._growing:
            return 0
        taken = [part for pieces in self.kept.values() for kept in pieces.values() for part in kept.parts]
        return sum(part.size for part in without(Part(self.warm, self.store.size - self.warm), taken))

    def only(self, living: Iterable[tuple[str, int, int]], tenants: Iterable[str] | None) -> None:
        """Forget what was kept for processes of these tenants (None: of any) that are not among the living (tenant,
        slot, serial)."""
        there, of = set(living), None if tenants is None else set(tenants)
        with self._lock:
            ended = [key for key in self.kept if (key.tenant, key.slot, key.serial) not in there]
            self._forget(key for key in ended if of is None or key.tenant in of)
            if of is None:
                self._leaving = {key for key in self._leaving if key[0] in {tenant for tenant, _, _ in there}}

    def only_of(self, tenants: Iterable[str]) -> None:
        """Forget what was kept for other tenants."""
        there = set(tenants)
        with self._lock:
            self._forget([key for key in self.kept if key.tenant not in there])
            self._leaving = {key for key in self._leaving if key[0] in there}

    def permit(self, tenant: str, card: str, *, permitted: bool) -> None:
        """Whether memory of that tenant may leave that card from now on."""
        with self._lock:
            (self._leaving.add if permitted else self._leaving.discard)((tenant, card))

    def may_leave(self, key: Key) -> bool:
        """Whether the daemon ordered it to leave."""
        with self._lock:
            return (key.tenant, key.card) in self._leaving

    def _forget(self, ended: Iterable[Key]) -> None:
        """Free what these processes had. Call it with the lock held."""
        for key in ended:
            log.info("kept_memory_dropped", extra={"data": {"tenant": key.tenant, "slot": key.slot, "card": key.card}})
            for kept in self.kept.pop(key).values():
                self._free(kept)
            self.store.forget(key)

    def _free(self, kept: Kept) -> None:
        """With the lock held. While copies read from there, another tenant's bytes must not come there."""
        if self._reading[kept]:
            self._late.add(kept)
        else:
            self.pool.give_back(self._usable(kept))

    def _usable(self, kept: Kept) -> list[Part]:
        """Its parts as far as they lie in memory that may be used yet."""
        return [
            Part(part.offset, min(part.size, self.warm - part.offset)) for part in kept.parts if part.offset < self.warm
        ]

    def serve(self, connection: socket.socket, key: Key, card: Card) -> None:
        """Serve the connection until the shim hangs up."""
        with connection, contextlib.suppress(OSError, wire.WireError, CudaError):
            card.enter()
            connection.send(wire.answer(Why.NOTHING))
            _Session(self, connection, key, card).run()

    # --- packets ------------------------------------------------------------------------------------------------

    def reserve(self, key: Key, pieces: Iterable[tuple[int, int]]) -> dict[int, Kept]:
        """Parts of the pool for pieces that leave; waits while the pool still gets memory. Raises PoolFullError; then
        nothing is taken. Raises WireError where nothing of this tenant may leave."""
        made: dict[int, Kept] = {}
        with self._lock:
            limit = self.limits.get((key.tenant, key.card))
            if limit == 0:
                raise wire.WireError("its memory may not leave; a new connection may have another limit")
            size = sum(size for _, size in pieces)
            self._wait_for_memory(size)
            of = key.tenant, key.card
            if limit is not None and size + self._kept_for(*of) + self._promised[of] > limit:
                raise PoolFullError(f"tenant {key.tenant} would park more than its limit of {limit} bytes")
            try:
                for piece, bytes_ in pieces:
                    made[piece] = Kept(bytes_, self.pool.take(bytes_))
            except PoolFullError:
                for kept in made.values():
                    self.pool.give_back(kept.parts)
                raise
            self._promised[of] += size
        return made

    def _wait_for_memory(self, size: int) -> None:
        """With the lock held."""
        if size <= self.pool.free:
            return
        self._short += 1
        self._needed.notify_all()
        self._grown.wait_for(lambda: size <= self.pool.free or size > self.pool.free + self._coming(), _GROWTH)
        self._short -= 1

    def _kept_for(self, tenant: str, card: str) -> int:
        return sum(
            kept.size
            for key, pieces in self.kept.items()
            if key.tenant == tenant and key.card == card
            for kept in pieces.values()
        )

    def give_up(self, key: Key, made: dict[int, Kept]) -> None:
        """What was reserved is not needed."""
        with self._lock:
            for kept in made.values():
                self.pool.give_back(kept.parts)
            self._fulfil(key, made)

    def _fulfil(self, key: Key, made: dict[int, Kept]) -> None:
        """With the lock held: it is on its way no more."""
        of = key.tenant, key.card
        self._promised[of] -= sum(kept.size for kept in made.values())
        if not self._promised[of]:
            del self._promised[of]

    def find(self, key: Key, pieces: Iterable[tuple[int, int]]) -> dict[int, Kept] | None:
        """Where the pieces are: they stay as they are until `read`. None: not all of them are here."""
        wanted = dict(pieces)
        with self._lock:
            here = self.kept.get(key, {})
            found = {piece: here[piece] for piece, size in wanted.items() if piece in here and here[piece].size == size}
            if len(found) < len(wanted):
                return None
            self._reading.update(found.values())
        return found

    def read(self, found: dict[int, Kept]) -> None:
        """No copy reads any more what `find` found."""
        with self._lock:
            for kept in found.values():
                self._reading[kept] -= 1
                if not self._reading[kept]:
                    del self._reading[kept]
                    if kept in self._late:
                        self._late.remove(kept)
                        self._free(kept)

    def keep(self, key: Key, made: dict[int, Kept]) -> None:
        """The copies are done: write it down. Raises OSError."""
        with self._lock:
            self.store.write_kept(key, made)
            here = self.kept.setdefault(key, {})
            for piece, kept in made.items():
                former = here.get(piece)  # of a move before, whose answer was never heard
                if former is not None:
                    self._free(former)
                here[piece] = kept
            self._fulfil(key, made)
            self.store.shorten(key, here)

    def returned(self, key: Key, found: dict[int, Kept]) -> None:
        """The shim has heard that they are back. Raises OSError: then their parts stay taken, as is written down."""
        with self._lock:
            here = self.kept.get(key, {})
            back = {piece: kept for piece, kept in found.items() if here.get(piece) is kept}
            if not back:
                return
            self.store.write_returned(key, back, left=len(here) - len(back))
            for piece, kept in back.items():
                del here[piece]
                self._free(kept)
            if not here:
                self.kept.pop(key)


@dataclass(slots=True)
class _Packet:
    out: bool
    why: Why
    pieces: dict[int, Kept]
    windows: list[Window]
    stream: c_void_p | None


class _Session:
    """One connection. Packets are begun as they come, and answered in order."""

    def __init__(self, mover: Mover, connection: socket.socket, key: Key, card: Card) -> None:
        self._mover, self._connection, self._key, self._card = mover, connection, key, card
        self._under_way: deque[_Packet] = deque()
        self._unasked = False

    def run(self) -> None:
        """Raises OSError and WireError when the connection is of no more use."""
        try:
            while True:
                while self._under_way and (len(self._under_way) > _AHEAD or not self._readable()):
                    self._finish(self._under_way.popleft())
                data, files, flags = receive(self._connection, wire.LONGEST + 1)
                try:
                    if not data:
                        return
                    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                        raise wire.WireError("a message longer than any of the shim's")
                    self._begin(wire.read_pieces(data), files)
                finally:
                    for file in files:
                        close_here(file)
        finally:
            for packet in self._under_way:
                with contextlib.suppress(Exception):  # the others are waited for as well
                    self._copied(packet)
                    if packet.out:
                        self._mover.give_up(self._key, packet.pieces)

    def _readable(self) -> bool:
        watch = select.poll()  # not select.select: with a thousand sessions the number is above 1,023
        watch.register(self._connection, select.POLLIN)
        return bool(watch.poll(0))

    def _begin(self, message: wire.Pieces, files: list[int]) -> None:
        packet = _Packet(message.out, Why.NOTHING, {}, [], None)
        self._under_way.append(packet)  # before it has anything: whatever fails, `_copied` is called
        if len(files) != len(message.pieces):
            packet.why = Why.ERROR
            return
        if message.out and not self._mover.may_leave(self._key):
            packet.why = Why.BUSY
            if not self._unasked:  # once: it can send as many as it likes
                log.warning("memory_left_unasked", extra={"data": {"tenant": self._key.tenant, "card": self._key.card}})
            self._unasked = True
            return
        if message.out:
            try:
                packet.pieces = self._mover.reserve(self._key, message.pieces)
            except PoolFullError:
                packet.why = Why.POOL
                return
        else:
            found = self._mover.find(self._key, message.pieces)
            if found is None:
                packet.why = Why.UNKNOWN
                return
            packet.pieces = found
        try:
            packet.stream = self._card.stream()
            for file, (piece, size) in zip(files, message.pieces, strict=True):
                packet.windows.append(self._card.open(file, size))
                parts = packet.pieces[piece].parts
                self._card.copy(packet.windows[-1], self._mover.store.address, parts, packet.stream, out=message.out)
        except CudaError as error:
            log.warning("memory_copy_failed", extra={"data": {"tenant": self._key.tenant, "why": str(error)}})
            packet.why = Why.ERROR

    def _copied(self, packet: _Packet) -> None:
        """Wait for its copies, also where one failed: nothing may still be written to parts that are given back, or be
        read from them."""
        try:
            if packet.stream is not None:
                self._card.wait(packet.stream)
                self._card.end(packet.stream)
        except CudaError as error:
            log.warning("memory_copy_failed", extra={"data": {"tenant": self._key.tenant, "why": str(error)}})
            packet.why = packet.why or Why.ERROR
        finally:
            if not packet.out:
                self._mover.read(packet.pieces)
        for window in packet.windows:
            with contextlib.suppress(CudaError):
                window.close()

    def _finish(self, packet: _Packet) -> None:
        self._copied(packet)
        if packet.out and packet.pieces:
            try:
                if packet.why is Why.NOTHING:
                    self._mover.keep(self._key, packet.pieces)
            except OSError:  # it cannot be written down: it stays on the card
                packet.why = Why.ERROR
            if packet.why is not Why.NOTHING:
                self._mover.give_up(self._key, packet.pieces)
        self._connection.send(wire.answer(packet.why))
        if not packet.out and packet.why is Why.NOTHING:
            try:
                self._mover.returned(self._key, packet.pieces)
            except OSError as error:  # until it leaves again, or its process ends
                log.warning("pool_not_given_back", extra={"data": {"tenant": self._key.tenant, "why": str(error)}})
