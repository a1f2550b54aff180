"""Files that strangers hand over by unix sockets, as anybody may who can connect: kept from holding us up.

To close the last reference to a file can take as long as its maker likes: a TCP socket with SO_LINGER waits for a peer
that does not read, a file of FUSE for its file system. The kernel closes handed files where they are received without
room for them, and files that were never received where the connection is closed: in our thread, inside of that call. So
every file is received, also at the end of a connection, and closed in a thread of its own. Each owner has its own
threads. While too many files of an owner hang, nothing more is received of that owner.

Where no file number is left, a file is closed in that call too. So a daemon keeps some numbers for what it receives:
its soft limit is below its hard one (`limit_files`), and raised for that call alone.

Nor may any other call be made on such a file before that thread has it: a TCP socket is locked while its maker sends
from memory that is never there, and Python keeps all our threads waiting in some of its calls (getsockname, say).
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import os
import queue
import resource
import socket
import struct
import threading
from typing import Any

from aliquot.adapters.host.users import account_of

_MOST_FILES = 253  # with one message: SCM_MAX_FD of the kernel
_ROOM = socket.CMSG_SPACE(4 * _MOST_FILES)
_SO_PASSRIGHTS = 83  # Linux 6.16: the kernel refuses handed files for us
_CREDENTIALS = socket.CMSG_SPACE(12)
_PIECE = 1 << 16
_MOST_QUEUED = 1 << 14  # messages in one connection; the kernel's limit on bytes allows some hundreds
_MOST_THREADS = 8  # of one owner
_MOST_WAITING = 512  # files of one owner that wait for a thread, before nothing more is received of that owner
_RESERVED = 2 * _MOST_FILES + 6  # numbers: two messages at one moment
_LEAST_LIMIT = 8 * _RESERVED  # where fewer are allowed, none are kept
_IDLE = 10.0  # seconds until a thread without work ends
_NO_LINGER = struct.pack("ii", 0, 0)
_libc = ctypes.CDLL(None)

Owner = int | str  # a user, or a tenant where tenants have no user


class _Closing:
    """Closes the files that one owner handed over, in threads: as many as hang and one more, up to a limit."""

    def __init__(self) -> None:
        self._files: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._under_way = self._threads = 0  # files that wait or are being closed

    def close(self, file: int) -> None:
        """Soon: never in the caller's thread."""
        with self._lock:
            self._files.put(file)
            self._under_way += 1
            if self._threads < min(self._under_way, _MOST_THREADS):
                self._start()

    def is_behind(self) -> bool:
        """Whether its threads hang, and too many files wait for them."""
        return self._files.qsize() > _MOST_WAITING

    def is_over(self) -> bool:
        """Whether it has neither files nor threads."""
        return not self._threads and self._files.empty()

    def _start(self) -> None:
        """With the lock held. Where there can be no more threads, files wait for the next attempt."""
        try:
            threading.Thread(target=self._run, name="closing", daemon=True).start()
        except RuntimeError:
            return
        self._threads += 1

    def _run(self) -> None:
        while True:
            try:
                file = self._files.get(timeout=_IDLE)
            except queue.Empty:
                with self._lock:
                    if not self._files.empty():
                        continue
                    self._threads -= 1
                    return
            _end_linger(file)
            _close(file)
            with self._lock:
                self._under_way -= 1


def _close(file: int) -> None:
    with contextlib.suppress(OSError):
        os.close(file)


class _Owners:
    """Who handed files over, by user or tenant: files of one that hang do not hold up those of another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closing: dict[Owner, _Closing] = {}

    def close(self, file: int, owner: Owner) -> None:
        with self._lock:
            if owner not in self._closing:
                for other in [other for other, closing in self._closing.items() if closing.is_over()]:
                    del self._closing[other]
            self._closing.setdefault(owner, _Closing()).close(file)

    def is_behind(self, owner: Owner) -> bool:
        closing = self._closing.get(owner)
        return closing is not None and closing.is_behind()


_owners = _Owners()


class _Reserve:
    """Numbers above the soft limit, for the files that come with a message. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._usual = (0, 0)

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._usual = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
                self._set(soft + _RESERVED if hard == resource.RLIM_INFINITY else min(soft + _RESERVED, hard))
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._set(self._usual[0])

    def _set(self, soft: int) -> None:
        if self._usual[0] not in (resource.RLIM_INFINITY, self._usual[1]):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, self._usual[1]))


_reserve = _Reserve()


def limit_files() -> None:
    """Open as many files from now on as this process may, but for those that are kept for what strangers hand over."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = hard if hard == resource.RLIM_INFINITY or hard < _LEAST_LIMIT else hard - _RESERVED
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def discard(file: int, owner: Owner) -> None:
    """Close a file that a stranger handed over, without waiting for that. `owner`: the stranger's user, or tenant."""
    _owners.close(file, owner)


def is_behind(owner: Owner) -> bool:
    """Whether so many files of that owner hang that no more may be received: unread, they are the sender's."""
    return _owners.is_behind(owner)


def close_here(file: int) -> None:
    """The same in this thread, which serves this stranger alone: files of others do not wait for it."""
    _end_linger(file)
    _close(file)


def _end_linger(file: int) -> None:
    """Not with the `socket` module, which would ask for the socket's name while all threads wait."""
    _libc.setsockopt(file, socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER, len(_NO_LINGER))


def receive(connection: socket.socket, size: int) -> tuple[bytes, list[int], int]:
    """A message, the files that came with it, which are the caller's to close, and the kernel's flags."""
    with _reserve:
        data, ancillary, flags, _ = connection.recvmsg(size, _ROOM, socket.MSG_CMSG_CLOEXEC)
    return data, _handed(ancillary), flags


def owner_of(connection: socket.socket) -> Owner:
    """Whose files come with the messages of a connection."""
    owner = connection.owner if isinstance(connection, Connection) else None
    if owner is None:
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        owner = account_of(int(struct.unpack("iII", peer)[1]))
        if isinstance(connection, Connection):
            connection.owner = owner
    return owner


def release(connection: socket.socket) -> None:
    """Close our own copy of a connection that another process has got: `close` would end it for both."""
    with contextlib.suppress(OSError):
        os.close(connection.detach())


def _handed(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """The files that came with a message."""
    files: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
            files += numbers
    return files


class Connection(socket.socket):
    """A stranger's connection. `recv` discards the files that come with a message; `receive` does not."""

    owner: Owner | None = None  # whose files come with its messages; None: those of the user that connected

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """As a socket's. Raises ConnectionAbortedError for who hands over files faster than they can be closed."""
        with _reserve:
            data, ancillary, _, _ = self.recvmsg(size, _ROOM, flags | socket.MSG_CMSG_CLOEXEC)
        if ancillary:
            for file in _handed(ancillary):
                discard(file, owner_of(self))
            if is_behind(owner_of(self)):
                raise ConnectionAbortedError(errno.ECONNABORTED, "too many of its files hang")
        return data

    def close(self) -> None:
        """For all who have it: nothing can be sent to it any more, and what was not received is discarded."""
        if self.fileno() >= 0:
            owner = owner_of(self)
            if not self._is_emptied(owner):  # the kernel closes what is in it, in a thread of that owner
                with contextlib.suppress(OSError):
                    self.shutdown(socket.SHUT_RDWR)
                _owners.close(self.detach(), owner)
                return
        super().close()

    def _is_emptied(self, owner: Owner) -> bool:
        """Receives all that is in it; not the files of an owner who is behind: False."""
        # Each packet has its sender's credentials then, also an empty one; the end of all has nothing. A stream has no
        # empty messages, and at its end the kernel gives credentials as well, again and again.
        packets = self.type != socket.SOCK_STREAM
        with contextlib.suppress(OSError):  # it is empty
            self.shutdown(socket.SHUT_RD)
            if packets:
                self.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            for _ in range(_MOST_QUEUED):
                if is_behind(owner) and self._has_files():
                    return False
                with _reserve:
                    data, ancillary, _, _ = self.recvmsg(
                        _PIECE, _ROOM + _CREDENTIALS, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
                    )
                for file in _handed(ancillary):
                    discard(file, owner)
                if not data and not (packets and ancillary):
                    return True
            return False
        return True

    def _has_files(self) -> bool:
        """Whether files come with what the next `recvmsg` of this size receives. There is no room for any here: the
        kernel says so, and drops a second reference to each."""
        room = 0 if self.type == socket.SOCK_STREAM else _CREDENTIALS
        _, _, flags, _ = self.recvmsg(_PIECE, room, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        return bool(flags & socket.MSG_CTRUNC)


class Listener(socket.socket):
    """Accepts connections of strangers."""

    owner: Owner | None = None  # whose files come with the messages of all its connections, as of a `Connection`

    def refuse_files(self) -> None:
        """For its connections: who hands over a file gets an error, where the kernel can do that."""
        with contextlib.suppress(OSError):
            self.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)

    def accept(self) -> tuple[Connection, Any]:
        """As a socket's."""
        accepted, address = super().accept()
        connection = Connection(self.family, self.type, self.proto, fileno=accepted.detach())
        connection.owner = self.owner
        return connection, address

    def close(self) -> None:
        """Also the connections that were not accepted yet."""
        if self.fileno() >= 0:
            with contextlib.suppress(OSError):
                self.shutdown(socket.SHUT_RDWR)  # from now on connecting fails
                self.setblocking(False)
                while True:
                    with _reserve:
                        connection, _ = self.accept()
                    connection.close()
        super().close()
