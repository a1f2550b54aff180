"""Becomes a group's MPS control on a node of a cluster: a program of its own, which imports nothing of aliquot.

    python -I mpslauncher.py USER SHM ENTER PROGRAM [ARGUMENT ...]

The control must outlive the agent's container, and its server shares /dev/shm with the members' containers. So it
leaves the agent's cgroup, which the container runtime ends with the container; with ENTER=host it sees the host's
files, where the driver is; and it has a mount namespace of its own, with the folder SHM at /dev/shm. Then it becomes
USER, which is not root, in no group of the node, and is no better protected from the kernel when memory is short than
its members. An error is an exit status of FAILED plus the error's number: its output is not read.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sys

FAILED = 100
HOST = "host"  # ENTER
NO_GROUP = 65534
CGROUP = "/sys/fs/cgroup/aliquot-together"
_NEWNS, _NEWCGROUP = 0x00020000, 0x02000000
_BIND, _REC, _SLAVE = 0x1000, 0x4000, 0x80000
_INIT = "/proc/1/ns"

_libc = ctypes.CDLL(None, use_errno=True)


def is_elsewhere() -> bool:
    """Whether the host's files are others than ours: we are in a container, with the host's processes."""
    try:
        return not os.path.samestat(os.stat(f"{_INIT}/mnt"), os.stat("/proc/self/ns/mnt"))
    except PermissionError:  # without the privilege to look, and to enter it
        return True


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _enter_host() -> None:
    for kind, flag in (("cgroup", _NEWCGROUP), ("mnt", _NEWNS)):
        namespace = os.open(f"{_INIT}/{kind}", os.O_RDONLY | os.O_CLOEXEC)
        _check(_libc.setns(namespace, flag))
        os.close(namespace)


def _leave_cgroup() -> None:
    """Only where the host has cgroups of version 2: elsewhere it ends with the agent's container, and is replaced."""
    if not os.path.exists("/sys/fs/cgroup/cgroup.procs"):
        return
    try:
        os.makedirs(CGROUP, exist_ok=True)
        with open(f"{CGROUP}/cgroup.procs", "w") as file:
            file.write("0")
    except OSError:  # read-only, as in a container of which the host's cgroups are not ours to change
        return


def _mount_shm(folder: str) -> None:
    _check(_libc.unshare(_NEWNS))
    _check(_libc.mount(b"none", b"/", None, _REC | _SLAVE, None))
    _check(_libc.mount(os.fsencode(folder), b"/dev/shm", None, _BIND, None))


def launch(user: int, shm: str, enter: str, command: list[str]) -> None:
    """Does not return. Raises OSError."""
    if user <= 0:
        raise OSError(errno.EINVAL, f"user {user} is not allowed")
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("0")  # the agent's is that of a part of the node; to have less is always allowed
    if enter == HOST:
        _enter_host()
    _leave_cgroup()
    if shm:
        _mount_shm(shm)
    os.setgroups([])
    os.setgid(NO_GROUP)
    os.setuid(user)
    os.chdir("/")
    os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    try:
        launch(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
    except OSError as error:
        sys.exit(FAILED + min(error.errno or 0, 154))
