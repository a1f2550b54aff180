"""Who else used the machine meanwhile: a figure taken on a busy one says little, and must say so."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_CALM, _CALM_SECONDS = 0.25, 3  # CPU seconds a second of a control plane at rest; how long it must be so


class Neighbours:
    """The share of all cores that programs other than ours took, from here to `share`."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._busy, self._own, self._stolen = _busy_seconds(), _own_seconds(), _stolen_seconds()

    def stolen(self) -> float:
        """The share of all cores that this machine wanted and its host gave to other machines: a call under way then
        stands still, for milliseconds at a time."""
        return (_stolen_seconds() - self._stolen) / self._took()

    def _took(self) -> float:
        return max(1e-9, (time.monotonic() - self._began) * (os.cpu_count() or 1))

    def share(self) -> float:
        took = self._took()
        others = (_busy_seconds() - self._busy) - (_own_seconds() - self._own)
        return min(1.0, max(0.0, others / took))


def settle(say: Callable[[str], None], *, seconds: float = 90.0) -> None:
    """Until the programs that we started have done what is left of earlier work: garbage of the API server, controllers
    that look at thousands of new objects. On two cores they are what a caller waits for otherwise."""
    began, calm = time.monotonic(), 0
    while calm < _CALM_SECONDS:
        if time.monotonic() > began + seconds:
            say(f"the control plane is still busy after {seconds:.0f} s; measured nevertheless")
            return
        before = sum(_child_seconds().values())
        time.sleep(1.0)
        calm = calm + 1 if sum(_child_seconds().values()) - before < _CALM else 0


def _busy_seconds() -> float:
    """In programs; interrupts and the host under us belong to no program, and much of it is our own traffic."""
    user, nice, system = (int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:4])
    return (user + nice + system) / _TICKS


def _stolen_seconds() -> float:
    return int(Path("/proc/stat").read_text().split("\n", 1)[0].split()[8]) / _TICKS


def _own_seconds() -> float:
    """This process, its children that ended, and those that run, with theirs."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used) + sum(_child_seconds().values())


def _child_seconds() -> dict[int, float]:
    found: dict[int, float] = {}
    me = str(os.getpid())
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[1] == me:
            found[int(folder.name)] = sum(int(word) for word in fields[11:15]) / _TICKS
    return found
