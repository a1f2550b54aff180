"""How much memory this machine, this container, or a process of another has."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from aliquot.adapters.host.home import POOLS
from aliquot.adapters.host.process.cgroups import parse_cgroups, pod_folders, read_cgroups

# Of a container's own cgroup, v2 and v1; the machine's root cgroup has no such file, or a figure beyond all memory.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_WALK = 5.0  # seconds between two walks through all cgroups for Pods that are not known yet
_walks: dict[Path, tuple[float, dict[str, Path]]] = {}  # by root: when the last one was, and what it found


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


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that a process can still take, and what limits it."""

    free: int
    in_cgroup: bool  # its cgroup, or one above it; else the machine


def room_of(
    pid: int,
    *,
    proc: Path = Path("/proc"),
    root: Path = Path("/sys/fs/cgroup"),
    clock: Callable[[], float] = time.monotonic,
) -> Room | None:
    """What is left for that process. Page cache that the kernel would give up counts as free. None: its cgroup cannot
    be seen from here."""
    try:
        lines = read_cgroups(proc / str(pid) / "cgroup").split("\n")
        available = _figures(proc / "meminfo")["MemAvailable:"] << 10
    except (OSError, KeyError):
        return None
    found = Room(available, False)
    for folder, limit_name, usage_name in _memory_cgroups(lines, root, clock):
        if ".." in folder.parts or not folder.is_dir():
            return None
        with contextlib.suppress(OSError, ValueError):  # the root has no limit; "max" is none
            limit, used = (int((folder / name).read_text()) for name in (limit_name, usage_name))
            stat = _figures(folder / "memory.stat")
            used -= stat.get("total_inactive_file", stat.get("inactive_file", 0))
            if limit - used < found.free:
                found = Room(max(0, limit - used), True)
    return found


def _memory_cgroups(lines: Sequence[str], root: Path, clock: Callable[[], float]) -> Iterator[tuple[Path, str, str]]:
    """The cgroups that limit the memory of a process, from its own to the topmost: their folders, and the names of the
    files with the limit and the use."""
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        steps = [step for step in path.split("/") if step]
        if not controllers and ".." in steps:
            steps = _from_the_top(steps, root, clock())
        if not controllers:  # version 2; beside version 1 it has no memory controller, and no such files
            base, names = root, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base, names = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        if not controllers and not (root / "cgroup.controllers").exists():
            continue
        for count in range(len(steps), -1, -1):
            yield base.joinpath(*steps[:count]), *names


def _from_the_top(steps: list[str], root: Path, now: float) -> list[str]:
    """A cgroup outside of our cgroup namespace is named from our own, and not all names above it are said. Where the
    host's cgroups are mounted at `root`, that of its Pod is found by the UID. As they were: it is not seen."""
    for at, step in enumerate(steps):
        uid = parse_cgroups(f"0::/{step}")
        if uid is not None:
            folder = _pod_folder(uid, root, now)
            return steps if folder is None else [*folder.relative_to(root).parts, *steps[at + 1 :]]
    return steps


def _pod_folder(uid: str, root: Path, now: float) -> Path | None:
    """Its cgroup. A walk through all of them takes long on a machine with many Pods: what it found, and what it did
    not, is remembered."""
    walked, found = _walks.get(root, (float("-inf"), {}))
    folder = found.get(uid)
    if (folder is None or not folder.is_dir()) and now - walked >= _WALK:
        _walks[root] = now, pod_folders(root=root)
        folder = _walks[root][1].get(uid)
    return folder


def _figures(file: Path) -> dict[str, int]:
    """Name and number on each line."""
    words = (line.split() for line in file.read_text().splitlines())
    return {word[0]: int(word[1]) for word in words if len(word) > 1 and word[1].isdigit()}
