"""How much memory this machine, or this container, has."""

from __future__ import annotations

import contextlib
import os

_LIMIT = "/sys/fs/cgroup/memory.max"  # of a container's own cgroup; the machine's root cgroup has no such file


def host_memory_mib(limit_file: str = _LIMIT) -> int:
    """MiB that a process here may use at most."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError), open(limit_file, encoding="ascii") as file:  # "max": no limit
        total = min(total, int(file.read()))
    return total >> 20
