"""Processes by pid and start time: a pid alone is reused, with the start time that the kernel keeps it is unique.

Imported by `aliquot run`: keep it light.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping

# We, or the machine, have no more files or memory: the error says nothing about the process.
_SHORTAGE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_AGAIN = 0.5  # seconds until the next attempt after such an error
_MOST_ANCESTORS = 32


def is_shortage(error: OSError) -> bool:
    """Whether it says that we lack files or memory, and nothing about the process that we looked at."""
    return error.errno in _SHORTAGE


def start_time(pid: int) -> int | None:
    """When it started, in clock ticks since boot; None when it is gone or a zombie, or we lack files to read that."""
    try:
        return _start_time(pid)
    except OSError:
        return None


def _start_time(pid: int) -> int | None:
    """The same; raises OSError where we lack files."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError as error:
        if is_shortage(error):
            raise
        return None
    return None if has_no_thread(fields) else int(fields[19])


def has_no_thread(fields: list[bytes]) -> bool:
    """Whether it is a zombie, by the fields of its `stat` from the state on. One with that state may be alive, and only
    its first thread has ended (pthread_exit)."""
    return fields[0] == b"X" or (fields[0] == b"Z" and int(fields[17]) <= 1)


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
    """Whether that very process is alive. Without its start time it is not known: the pid may be another's by now.
    While we lack files to look, it is taken to be: what belongs to it must not be freed."""
    if pid is None or pid <= 0 or started is None:
        return False
    try:
        return _start_time(pid) == started
    except OSError:
        return True


def is_proven(pid: int | None, started: int | None) -> bool:
    """Whether that very process is alive for sure: what is done to it must not be done to another."""
    return pid is not None and started is not None and start_time(pid) == started


def is_stopped(pid: int) -> bool:
    """Whether it was stopped, by a signal or a debugger."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False


def uid_of(pid: int) -> int | None:
    """Its effective user; None if it is gone. Raises OSError where we lack files to read that."""
    users = _users_of(pid)
    return users[1] if users else None


def may_signal(user: int, pid: int) -> bool:
    """Whether the kernel lets that user signal it: by its real or saved user, which a server that acts for another user
    (seteuid) keeps. False if it is gone, or we lack files to read that."""
    try:
        return _may_signal(user, _users_of(pid))
    except OSError:
        return False


def _may_signal(user: int, users: list[int]) -> bool:
    return bool(users) and (user == 0 or user in (users[0], users[2]))


def _users_of(pid: int) -> list[int]:
    """Its real, effective, saved and file system user; empty if it is gone. Raises OSError where we lack files."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return next(([int(word) for word in line.split()[1:]] for line in file if line.startswith(b"Uid:")), [])
    except OSError as error:
        if is_shortage(error):
            raise
        return []


def boot_id() -> str:
    """Changes with every boot: no process of before is alive."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def program_of(pid: int) -> str:
    """The name of the program that it was started as; empty if it is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return os.path.basename(os.fsdecode(file.read(4096).partition(b"\0")[0]))
    except OSError:
        return ""


def output_of(pid: int) -> str | None:
    """What its standard output is, as the kernel names it."""
    try:
        return os.readlink(f"/proc/{pid}/fd/1")
    except OSError:
        return None


def send_signal(pid: int, number: int, started: int | None, *, user: int = 0) -> bool:
    """Send it to that very process. False when it is gone. Raises PermissionError, also where we may and `user` may
    not: the process has become another user's (sudo). Raises OSError where we lack files to look."""
    handle = _opened(pid)
    if handle is None:
        return False
    try:
        permitted = _may_signal(user, _users_of(pid))
        if started is None or _start_time(pid) != started:  # the handle is not that process, or it is gone
            return False
        if not permitted:
            raise PermissionError(errno.EPERM, f"user {user} may not signal it")
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def _opened(pid: int) -> int | None:
    """A pidfd; None if the process is gone. Raises OSError where we lack files."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if is_shortage(error):
            raise
        return None


def kill_proven(pid: int, started: int, proof: Callable[[], bool]) -> bool:
    """SIGKILL to that very process, if `proof` holds while we have a handle of it. False when it is gone, or the proof
    fails. Raises PermissionError; OSError where we lack files to look."""
    handle = _opened(pid)
    if handle is None:
        return False
    try:
        # In this order: from here on the handle is of the process whose start time and proof we read, or that is dead.
        if _start_time(pid) != started or not proof():
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def end(pid: int, started: int | None, *, patience: float) -> bool:
    """SIGTERM, then SIGKILL if it does not end in time; whether it is gone now."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(OSError):
            send_signal(pid, number, started)
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if not lives(pid, started):
                return True
            time.sleep(0.02)
    return not lives(pid, started)


def wait_ended(pid: int, started: int, *, look: float) -> None:
    """Return when that very process is gone. Polls every `look` seconds only where /proc shows other pids than ours
    (hostmounts.py)."""
    import select  # not for `aliquot run`

    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if number_of(handle) == pid and lives(pid, started):
                watch = select.poll()  # not select.select: the number may be above 1,023
                watch.register(handle, select.POLLIN)
                watch.poll()
        finally:
            os.close(handle)
    while lives(pid, started):
        time.sleep(look)


def kill_all(started: Mapping[int, int], *, user: int = 0) -> None:
    """SIGKILL to these processes (pid: start time) that the user may signal, as far as there are files to look."""
    for pid in started:
        with contextlib.suppress(OSError):
            send_signal(pid, signal.SIGKILL, started[pid], user=user)


def identities(pids: Iterable[int]) -> dict[int, int]:
    """The processes that are alive, with their start times. Raises OSError where we lack files to look."""
    found = {pid: _start_time(pid) for pid in pids}
    return {pid: started for pid, started in found.items() if started is not None}


def ancestors(pid: int, most: int = _MOST_ANCESTORS) -> list[int]:
    """The process, its parent, the parent's parent and so on, as far as they are alive, and at most so many: anybody
    can make a chain as long as they may have processes. Raises OSError where we lack files to read that."""
    chain: list[int] = []
    while pid > 1 and pid not in chain and len(chain) < most:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
        except OSError as error:
            if is_shortage(error):
                raise
            break
        except (ValueError, IndexError):
            break
        chain.append(pid)
        pid = parent
    return chain


def when_ended(pid: int | None, started: int | None, then: Callable[[int | None], None]) -> None:
    """Let the running event loop call `then` with the exit code (exitcodes.py) once that very process is gone; soon,
    when it is gone already."""
    import asyncio  # not for `aliquot run`

    from aliquot.adapters.host.process.exitcodes import exit_code

    loop = asyncio.get_running_loop()
    try:
        handle = os.pidfd_open(pid or 0)
    except OSError as error:
        if is_shortage(error):
            loop.call_later(_AGAIN, when_ended, pid, started, then)
        else:
            loop.call_soon(then, None)
        return

    def ended() -> None:
        loop.remove_reader(handle)
        try:
            code = exit_code(pid or 0, started, handle if alive else None)  # else it may be another process by now
        except OSError:
            loop.call_later(_AGAIN, ended)
            return
        os.close(handle)
        then(code)

    if alive := lives(pid, started):
        loop.add_reader(handle, ended)
    else:
        loop.call_soon(ended)
