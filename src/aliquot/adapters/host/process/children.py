"""Starts children in their own sessions that do not outlive us, and finds their descendants. A Pod's supervisor imports
it: nothing heavy.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from aliquot.adapters.host.process.processes import has_no_thread
from aliquot.adapters.host.process.scripts import why_not_executed

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_LIBC = ctypes.CDLL(None, use_errno=True)


class SpawnError(Exception):
    """The program cannot be started; `code` is a shell's exit code for that."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def adopt_orphans() -> None:
    """Make us the parent of orphaned descendants (PR_SET_CHILD_SUBREAPER): none gets lost."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with(parent: int) -> bool:
    """Have the kernel kill this process when its parent ends, however it dies. False: it has ended already."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent


def spawn(command: Sequence[str], environment: Mapping[str, str], folders: Sequence[str], log: str) -> int:
    """Start it in the first folder that exists, with its output appended to the log. Raises SpawnError."""
    program = _find(command[0], environment.get("PATH", os.defpath), folders)
    ours = os.getpid()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _become(program, command, environment, folders, log, ours)
        except (OSError, ValueError) as error:
            os.write(writing, _why(error, command[0]).encode(errors="replace"))
        finally:
            os._exit(_NOT_EXECUTABLE)
    os.close(writing)
    with open(reading, "rb") as pipe:
        failed = pipe.read().decode(errors="replace")
    if failed:
        os.waitpid(child, 0)
        raise SpawnError(failed, _NOT_EXECUTABLE)
    return child


def _why(error: OSError | ValueError, program: str) -> str:
    """ValueError: the words cannot be passed to a program (half of a surrogate pair, say)."""
    if not isinstance(error, OSError):
        return f"{program}: {error}"
    name = str(error.filename or program)
    return f"{name}: {why_not_executed(error, name)}"


def _become(
    program: str, command: Sequence[str], environment: Mapping[str, str], folders: Sequence[str], log: str, parent: int
) -> None:
    if not end_with(parent):
        return
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    except OSError:  # the folder was removed: run it all the same
        output = os.open(os.devnull, os.O_WRONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.chdir(next((folder for folder in folders if os.path.isdir(folder)), "/"))
    os.execve(program, list(command), dict(environment))  # noqa: S606 - to become it is the point


def _find(name: str, path: str, folders: Sequence[str]) -> str:
    """The program, as a shell would find it."""
    base = next((folder for folder in folders if os.path.isdir(folder)), "/")
    places = [folder or "." for folder in path.split(":")]
    if name == "aliquot":  # our own program is found on any PATH
        places.append(os.path.dirname(sys.executable))
    tried = [name] if "/" in name else [os.path.join(place, name) for place in places]
    there = [place for place in (os.path.join(base, name) for name in tried) if os.path.isfile(place)]
    for place in there:
        if os.access(place, os.X_OK):
            return place
    if there:
        raise SpawnError(f"{name}: cannot be executed", _NOT_EXECUTABLE)
    raise SpawnError(f"{name}: command not found on this machine", _NOT_FOUND)


def ended() -> list[tuple[int, int]]:
    """Children that ended since the last call, with shell exit codes. The rest of their process groups is killed."""
    found: list[tuple[int, int]] = []
    while True:
        try:
            seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return found
        if seen is None:
            return found
        signal_group(seen.si_pid, signal.SIGKILL)  # before it is reaped: then its pid may be reused
        os.waitpid(seen.si_pid, 0)
        found.append((seen.si_pid, seen.si_status if seen.si_code == os.CLD_EXITED else 128 + seen.si_status))


def signal_group(leader: int, number: int) -> None:
    """Send it to the process group of that child, if there is one."""
    try:
        os.killpg(leader, number)
        if number == signal.SIGTERM:
            os.killpg(leader, signal.SIGCONT)  # a stopped process handles no other signal
    except (ProcessLookupError, PermissionError):
        pass


def descendants() -> dict[int, int]:
    """Our descendants that are alive, with their start times."""
    parents: dict[int, tuple[int, int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if not has_no_thread(fields):
            parents[int(entry)] = int(fields[1]), int(fields[19])
    found: set[int] = set()
    fresh = {os.getpid()}
    while fresh:
        fresh = {pid for pid, (parent, _) in parents.items() if parent in fresh} - found
        found |= fresh
    return {pid: parents[pid][1] for pid in found}
