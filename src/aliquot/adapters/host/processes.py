"""Processes by pid and start time: a pid alone is reused, with the start time that the kernel keeps it is unique.

Imported by `aliquot run`: keep it light.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator

_ENVIRON = 1 << 18  # bytes of a process's environment that are searched
_MOST_LISTS = 20  # lists of /proc in one search: bounds it on a machine that starts processes all the time
SO_PEERPIDFD = 77  # socket option: a pidfd of the peer; Linux 6.5 and later, not in Python yet
_EXEC_TRIES, _BARE_TRIES, _EXEC_STEP = (
    50,
    5,
    0.001,
)  # an exec takes some hundred microseconds, under load more


def start_time(pid: int) -> int | None:
    """When it started, in clock ticks since boot; None when it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def own_number() -> int:
    """Our own pid in the /proc that we see: not os.getpid() where that is the host's (hostmounts.py)."""
    return int(os.readlink("/proc/self"))


def number_of(pidfd: int) -> int:
    """The pid that a process has there. 0: it is not visible; -1: it is gone."""
    with open(f"/proc/self/fdinfo/{pidfd}", "rb") as file:
        return next((int(line.split()[1]) for line in file if line.startswith(b"Pid:")), -1)


def known_as(child: int) -> int:
    """The pid that a child of ours has there."""
    handle = os.pidfd_open(child)
    try:
        return number_of(handle)
    finally:
        os.close(handle)


def lives(pid: int | None, started: int | None) -> bool:
    """Whether that very process is alive."""
    if pid is None or pid <= 0:
        return False
    now = start_time(pid)
    return now is not None and (started is None or now == started)


def is_stopped(pid: int) -> bool:
    """Whether it was stopped, by a signal or a debugger."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False


def uid_of(pid: int) -> int | None:
    """Its effective user; None if it is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"Uid:"):
                    return int(line.split()[2])
    except OSError:
        pass
    return None


def boot_id() -> str:
    """Changes with every boot: no process of before is alive."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def output_of(pid: int) -> str | None:
    """What its standard output is, as the kernel names it."""
    try:
        return os.readlink(f"/proc/{pid}/fd/1")
    except OSError:
        return None


def with_environment(name: str, value: str, *, uid: int | None = None) -> set[int]:
    """The processes that were started with this in their environment; only of that user, if one is given."""
    wanted = b"\0" + os.fsencode(f"{name}={value}") + b"\0"
    found = set()
    for entry in _all_processes():
        if wanted in b"\0" + _environment(entry) and (uid is None or uid_of(int(entry)) == uid):
            found.add(int(entry))
    return found


def by_environment(name: str) -> dict[str, set[int]]:
    """All processes that were started with that variable in their environment, by its value."""
    start = b"\0" + os.fsencode(f"{name}=")
    found: dict[str, set[int]] = {}
    for entry in _all_processes():
        _, there, rest = (b"\0" + _environment(entry)).partition(start)
        if there:
            found.setdefault(os.fsdecode(rest.partition(b"\0")[0]), set()).add(int(entry))
    return found


def _all_processes() -> Iterator[str]:
    """All processes, with those that start meanwhile: a process may fork and end before we read it, and its child was
    not in the first list."""
    seen: set[str] = set()
    for _ in range(_MOST_LISTS):
        new = {entry for entry in os.listdir("/proc") if entry.isdigit()} - seen
        if not new:
            return
        seen |= new
        yield from new


def _environment(entry: str) -> bytes:
    """The environment that the process was started with; empty if it cannot be read.

    In the middle of an exec the kernel returns nothing: the old memory is gone, the new one has no environment yet. So
    we read again, or a run whose only process is in an exec would count as ended.
    """
    for tried in range(_EXEC_TRIES):
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                found = file.read(_ENVIRON)
            if found or not _may_be_in_exec(entry, tried):
                return found
        except OSError:
            return b""
        time.sleep(_EXEC_STEP)
    return b""


def _may_be_in_exec(entry: str, tried: int) -> bool:
    """Whether a process without an environment may be in the middle of an exec, after so many reads.

    Kernel threads and zombies have no memory. A process that was started with an empty environment has one of length 0;
    so does an exec, for an instant.
    """
    with open(f"/proc/{entry}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    memory, start, end = int(fields[20]), int(fields[47]), int(fields[48])
    bare = start == end != 0
    return memory > 0 and (not bare or tried < _BARE_TRIES)


def send_signal(pid: int, number: int, started: int | None = None) -> bool:
    """Send it to that very process. False when it is gone. Raises PermissionError."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not lives(pid, started):
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def end(pid: int, started: int | None, *, patience: float) -> bool:
    """SIGTERM, then SIGKILL if it does not end in time; whether it is gone now."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(PermissionError):
            send_signal(pid, number, started)
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if not lives(pid, started):
                return True
            time.sleep(0.02)
    return not lives(pid, started)


def identities(pids: Iterable[int]) -> dict[int, int]:
    """Those that are alive, with their start times."""
    found = {pid: start_time(pid) for pid in pids}
    return {pid: started for pid, started in found.items() if started is not None}


def ancestors(pid: int) -> list[int]:
    """The process, its parent, the parent's parent and so on, as far as they are alive."""
    chain: list[int] = []
    while pid > 1 and pid not in chain:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
        chain.append(pid)
        pid = parent
    return chain


def when_ended(pid: int | None, started: int | None, then: Callable[[int | None], None]) -> None:
    """Let the running event loop call `then` with the exit code (exitcodes.py) once that very process is gone; soon,
    when it is gone already."""
    import asyncio  # not for `aliquot run`

    from aliquot.adapters.host.exitcodes import exit_code

    loop = asyncio.get_running_loop()
    try:
        handle = os.pidfd_open(pid or 0)
    except OSError:
        loop.call_soon(then, None)
        return

    def ended() -> None:
        loop.remove_reader(handle)
        code = exit_code(pid or 0, started, handle if alive else None)  # else it may be another process by now
        os.close(handle)
        then(code)

    if alive := lives(pid, started):
        loop.add_reader(handle, ended)
    else:
        loop.call_soon(ended)
