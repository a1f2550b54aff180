"""Who lives. A process id alone names nobody for long: with the start time the kernel keeps, it names one process.

Imported by `aliquot run`: keep it light.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator

_ENVIRON = 1 << 18  # bytes of a process's environment that are looked at
_MOST_LISTS = 20  # of all processes in one look: on a machine that makes new ones all the time, it ends with that
SO_PEERPIDFD = 77  # of a socket: whom it leads to; Linux 6.5 and later, in Python not yet
_EXEC_TRIES, _BARE_TRIES, _EXEC_STEP = 50, 5, 0.001  # an exec takes some hundred microseconds; on a full machine, more


def start_time(pid: int) -> int | None:
    """When it started, in clock ticks since boot; None when it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def own_number() -> int:
    """Our own id in the /proc that we see: another than os.getpid() where that is the host's (movein.py)."""
    return int(os.readlink("/proc/self"))


def number_of(pidfd: int) -> int:
    """The id that a process has there. 0: it cannot be seen; -1: it is gone."""
    with open(f"/proc/self/fdinfo/{pidfd}", "rb") as file:
        return next((int(line.split()[1]) for line in file if line.startswith(b"Pid:")), -1)


def known_as(child: int) -> int:
    """The id that a child of ours has there."""
    handle = os.pidfd_open(child)
    try:
        return number_of(handle)
    finally:
        os.close(handle)


def lives(pid: int | None, started: int | None) -> bool:
    """Whether that very process still runs."""
    if pid is None or pid <= 0:
        return False
    now = start_time(pid)
    return now is not None and (started is None or now == started)


def is_stopped(pid: int) -> bool:
    """Whether it was stopped, by a signal or a debugger, and does nothing until it is let go on."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False


def uid_of(pid: int) -> int | None:
    """Whose it is (the effective user), None when it is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"Uid:"):
                    return int(line.split()[2])
    except OSError:
        pass
    return None


def boot_id() -> str:
    """Changes with every boot: what lived before it does not now."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def output_of(pid: int) -> str | None:
    """Where its standard output goes, as the kernel names it."""
    try:
        return os.readlink(f"/proc/{pid}/fd/1")
    except OSError:
        return None


def with_environment(name: str, value: str, *, uid: int | None = None) -> set[int]:
    """The processes that were started with this in their environment; of that user, where one is given."""
    wanted = b"\0" + os.fsencode(f"{name}={value}") + b"\0"
    found = set()
    for entry in _everybody():
        if wanted in b"\0" + _environment(entry) and (uid is None or uid_of(int(entry)) == uid):
            found.add(int(entry))
    return found


def by_environment(name: str) -> dict[str, set[int]]:
    """All processes that were started with that variable in their environment, by its value."""
    start = b"\0" + os.fsencode(f"{name}=")
    found: dict[str, set[int]] = {}
    for entry in _everybody():
        _, there, rest = (b"\0" + _environment(entry)).partition(start)
        if there:
            found.setdefault(os.fsdecode(rest.partition(b"\0")[0]), set()).add(int(entry))
    return found


def _everybody() -> Iterator[str]:
    """All processes, with those that are born while we look: one may have a child and end before it is looked at, and
    the child was not there yet when the list was made."""
    seen: set[str] = set()
    for _ in range(_MOST_LISTS):
        new = {entry for entry in os.listdir("/proc") if entry.isdigit()} - seen
        if not new:
            return
        seen |= new
        yield from new


def _environment(entry: str) -> bytes:
    """What the process was started with; empty where that cannot be read.

    In the middle of an exec the kernel answers with nothing: the old memory is gone, the new one has no environment
    yet. It is asked again then, or a run whose only process is just becoming another program would count as over.
    """
    for tried in range(_EXEC_TRIES):
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                found = file.read(_ENVIRON)
            if found or not _becoming(entry, tried):
                return found
        except OSError:
            return b""
        time.sleep(_EXEC_STEP)
    return b""


def _becoming(entry: str, tried: int) -> bool:
    """Whether one without an environment may be in the middle of an exec, after so many looks.

    Kernel threads and zombies have no memory. One that was started with nothing has an environment of no length: an
    exec looks like that too, for an instant.
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
    """SIGTERM, and SIGKILL when that is not heeded in time; whether it is gone now."""
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
    """Those that live, with their start times."""
    found = {pid: start_time(pid) for pid in pids}
    return {pid: started for pid, started in found.items() if started is not None}


def ancestors(pid: int) -> list[int]:
    """The process, its parent, the parent's parent and so on, as far as they live."""
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


def when_ended(pid: int | None, started: int | None, then: Callable[[], None]) -> None:
    """Let the running event loop call `then` once that very process is gone; soon, when it is gone already."""
    import asyncio  # not for `aliquot run`

    loop = asyncio.get_running_loop()
    try:
        handle = os.pidfd_open(pid or 0)
    except OSError:
        loop.call_soon(then)
        return

    def ended() -> None:
        loop.remove_reader(handle)
        os.close(handle)
        then()

    if lives(pid, started):
        loop.add_reader(handle, ended)
    else:
        loop.call_soon(ended)
