"""Mounts the host's folders and its /proc into a container that has neither.

Every device plugin's container has the kubelet's socket, and the kernel says who listens there: SO_PEERPIDFD, since
Linux 6.5, names even a process that is not visible here. A privileged process may enter the kubelet's mount namespace,
open the trees it needs there (open_tree) and mount them in its own (move_mount). Nothing changes on the host, and the
mounts end with the container.

A process cannot enter the host's PID namespace from below: the kernel refuses. But its /proc is a folder like any
other, and there every process has the pid that it has on the host (process/processes.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aliquot.adapters.host import peers
from aliquot.adapters.host.process.processes import number_of

_NEW_MOUNTS = 0x00020000  # CLONE_NEWNS
_OPEN_TREE, _MOVE_MOUNT = 428, 429  # on every architecture
_HERE = -100  # AT_FDCWD: paths are as they are written
_CLONE, _RECURSIVE = 0x1, 0x8000  # OPEN_TREE_CLONE, AT_RECURSIVE
_FROM_FILE = 0x4  # MOVE_MOUNT_F_EMPTY_PATH
_PRIVATE = 1 << 18 | 0x4000  # MS_PRIVATE, MS_REC
_LONGEST = 1 << 16  # bytes of an answer
_MOST = 16  # files of an answer
_PATIENCE = 2.0  # seconds for the kubelet's socket

_libc = ctypes.CDLL(None, use_errno=True)

Work = Callable[[], tuple[Any, Sequence[int]]]


class HostAccessError(Exception):
    """The host cannot be reached from here; the message says why."""


def listener_of(path: Path) -> int:
    """A pidfd of the process that listens there, to be closed. Raises HostAccessError, and OSError if none does."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PATIENCE)
        probe.connect(str(path))
        try:
            return peers.pidfd_of(probe)
        except OSError as error:
            raise HostAccessError(f"cannot find out which process serves {path} ({error.strerror})") from error


def is_seen(pidfd: int) -> bool:
    """Whether the process is visible in our /proc."""
    return number_of(pidfd) > 0


def identities(pidfd: int, paths: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Device and inode of those paths that exist for the process."""

    def look() -> tuple[Any, Sequence[int]]:
        found = {}
        for path in paths:
            with contextlib.suppress(OSError):
                seen = os.stat(path)
                found[path] = (seen.st_dev, seen.st_ino)
        return found, ()

    answer, _ = _visit(pidfd, look)
    return {path: (device, inode) for path, (device, inode) in answer.items()}


def fetch(pidfd: int, folders: Mapping[str, int]) -> None:
    """Mount the folders here, under the same paths, as the process sees them. Missing ones are made, with that mode.
    Raises HostAccessError."""

    def take() -> tuple[Any, Sequence[int]]:
        for folder, mode in folders.items():
            os.makedirs(folder, mode=mode, exist_ok=True)
        return None, [_open_tree(folder, recursive=True) for folder in folders]

    _, trees = _visit(pidfd, take)
    _mount_here(dict(zip(folders, trees, strict=True)))


def fetch_processes(pidfd: int) -> None:
    """Mount its /proc in the place of ours. Raises HostAccessError."""
    _, trees = _visit(pidfd, lambda: (None, [_open_tree("/proc", recursive=False)]))
    _mount_here({"/proc": trees[0]})


def _visit(pidfd: int, work: Work) -> tuple[Any, list[int]]:
    """Run the function in the process's mount namespace; returns its result and files. In a child: there is no way
    back."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        child = os.fork()
        if not child:
            _go(pidfd, work, theirs)
        theirs.close()
        try:
            data, files, _, _ = socket.recv_fds(ours, _LONGEST, _MOST)
        finally:
            os.waitpid(child, 0)
    answer = json.loads(data) if data else {"error": "the child in the host's mount namespace died"}
    if "error" in answer:
        raise HostAccessError(answer["error"])
    return answer["found"], files


def _go(pidfd: int, work: Work, home: socket.socket) -> None:
    """Do the work in the child, which does not return."""
    try:
        if _libc.setns(pidfd, _NEW_MOUNTS) and not _enter_by_number(pidfd):
            number = ctypes.get_errno()
            advice = ": the container is not privileged" if number in (errno.EPERM, errno.EACCES) else ""
            raise OSError(number, f"the host's files cannot be reached{advice}")
        found, files = work()
        socket.send_fds(home, [json.dumps({"found": found}).encode()], files)
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        with contextlib.suppress(OSError):
            home.send(json.dumps({"error": f"{where}{error.strerror or error}"}).encode())
    finally:
        os._exit(0)


def _enter_by_number(pidfd: int) -> bool:
    """Enter by the pid, for Linux before 5.8, if the process is visible to us."""
    refused = ctypes.get_errno()
    try:
        place = os.open(f"/proc/{number_of(pidfd)}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        ctypes.set_errno(refused)
        return False
    return int(_libc.setns(place, _NEW_MOUNTS)) == 0


def _open_tree(folder: str, *, recursive: bool) -> int:
    flags = _CLONE | os.O_CLOEXEC | (_RECURSIVE if recursive else 0)
    return _checked(_libc.syscall(_OPEN_TREE, _HERE, folder.encode(), flags), folder)


def _mount_here(trees: Mapping[str, int]) -> None:
    """Private: the mounts do not propagate."""
    try:
        for folder, tree in trees.items():
            os.makedirs(folder, exist_ok=True)
            _checked(_libc.syscall(_MOVE_MOUNT, tree, b"", _HERE, folder.encode(), _FROM_FILE), folder)
            _checked(_libc.mount(None, folder.encode(), None, ctypes.c_ulong(_PRIVATE), None), folder)
    except OSError as error:
        raise HostAccessError(f"{error.filename}: {error.strerror}") from error
    finally:
        for tree in trees.values():
            os.close(tree)


def _checked(answer: int, what: str) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return answer
