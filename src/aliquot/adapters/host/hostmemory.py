"""How much memory this machine, or this container, has."""

from __future__ import annotations

import contextlib
import os

from aliquot.adapters.host.home import POOLS

_LIMIT = "/sys/fs/cgroup/memory.max"  # of a container's own cgroup; the machine's root cgroup has no such file


def host_memory_mib(limit_file: str = _LIMIT) -> int:
    """MiB that a process here may use at most."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError), open(limit_file, encoding="ascii") as file:  # "max": no limit
        total = min(total, int(file.read()))
    return total >> 20


def pool_room_mib(folder: str = POOLS) -> int:
    """MiB of the tmpfs on which pools of parked memory are, whether used or not; 0 where there is none."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return found.f_blocks * found.f_frsize >> 20
