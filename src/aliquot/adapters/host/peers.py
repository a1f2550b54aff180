"""Who is at the other end of a unix socket: a process, not a number.

SO_PEERCRED has the pid of the process that connected. That process may have ended before we accept, and its pid may
belong to another process, of another user. SO_PEERPIDFD (Linux 6.5) is the process itself. On an older Linux we open a
pidfd by number and believe it only if the process has the user that SO_PEERCRED has: at worst it is another process
that the same user could signal.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from typing import NamedTuple

from aliquot.adapters.host.process import processes

SO_PEERPIDFD = 77  # not in Python yet


class Peer(NamedTuple):
    """`started` None: it has ended, or is not visible here; then the pid means nothing."""

    pid: int
    uid: int
    gid: int
    started: int | None


def credentials(connection: socket.socket) -> tuple[int, int, int]:
    """(pid, uid, gid) at the time of the connect. The pid may be another process's by now; 0: not visible here."""
    pid, uid, gid = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid, gid


def peer_of(connection: socket.socket) -> Peer:
    """The process that connected, with its start time: from here on pid and start time together name it."""
    pid, uid, gid = credentials(connection)
    try:
        handle = pidfd_of(connection)
    except OSError:
        return Peer(pid, uid, gid, None)
    try:
        started = processes.start_time(processes.number_of(handle))
        return Peer(pid, uid, gid, None if has_ended(handle) else started)  # else the number may be another's
    except OSError:  # no file is left to read its number
        return Peer(pid, uid, gid, None)
    finally:
        os.close(handle)


def pidfd_of(connection: socket.socket) -> int:
    """A pidfd of the process that connected, to be closed. Raises OSError if it is gone."""
    try:
        return connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
    pid, uid, _ = credentials(connection)
    if pid <= 0:
        raise ProcessLookupError(errno.ESRCH, "its process ID is not visible here, and this kernel has no SO_PEERPIDFD")
    handle = os.pidfd_open(pid)
    try:
        proven = processes.uid_of(pid) == uid and processes.may_signal(uid, pid) and not has_ended(handle)
    except OSError:  # no file is left to read that
        os.close(handle)
        raise
    if proven:
        return handle
    os.close(handle)
    raise ProcessLookupError(errno.ESRCH, "it has ended, and another process has its ID")


def has_ended(pidfd: int) -> bool:
    """Whether the process has ended. As long as it has not, its number is its own."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
