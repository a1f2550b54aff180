"""How much memory this machine or this container has."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from aliquot.adapters.host.home import POOLS

# Of a container's own cgroup, v2 and v1; the machine's root cgroup has no such file, or a figure beyond all memory.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def host_memory_mib(limit_files: Sequence[str] = _LIMITS) -> int:
    """MiB that a process here may use at most."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit_file in limit_files:
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
