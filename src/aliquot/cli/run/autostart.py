"""Starting the daemon in the background, and waiting until it answers. Heavy imports only when there is none yet."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence

from aliquot.adapters.host.control import Connection, ControlError, NoDaemonError, connect
from aliquot.adapters.host.home import OF_A_TENANT, Home, HomeError, homes, own_home

_PATIENCE = 60.0  # seconds; a cold start reads numpy from a slow disk, NVML wakes sleeping cards
_STEP = 0.02
_MOST_TRIES = 5
_RUNS_ALREADY = 1  # the exit code of a daemon that found another
_KILLED = range(-64, 0)
_LONGEST_LOG = 4 << 20

# What a daemon must not inherit from the one who happens to start it.
_FOREIGN = ("LD_PRELOAD", *OF_A_TENANT, "CUDA_VISIBLE_DEVICES")


class StartError(Exception):
    """It did not come up; the message says why. `code` is what its process ended with."""

    def __init__(self, text: str, code: int = 2) -> None:
        super().__init__(text)
        self.code = code


def connect_or_start(arguments: Sequence[str], say: Callable[[str], None]) -> tuple[Connection, Home]:
    """The daemon that runs, or a new one with those arguments of `aliquot up`. Raises StartError, ControlError."""
    try:
        return connect(homes())
    except NoDaemonError:
        say(f"no daemon runs: starting one{f' with simulated cards, {arguments[-1]}' if arguments else ''}")
        return start(arguments)


def start(arguments: Sequence[str]) -> tuple[Connection, Home]:
    """A daemon in the background that answers: ours, or one that somebody else started first. Raises StartError."""
    home = own_home()
    try:
        home.check()
        os.makedirs(home.state, mode=0o755, exist_ok=True)
        _keep_short(home.daemon_log)
    except HomeError as error:
        raise StartError(str(error)) from error
    except OSError as error:
        raise StartError(f"{home.state}: {error.strerror}: set ALIQUOT_HOME to a folder of your own") from error
    deadline = time.monotonic() + _PATIENCE
    for _ in range(_MOST_TRIES):
        answer = _one(home, arguments, deadline)
        if isinstance(answer, Connection):
            return answer, home
        if answer.code not in (_RUNS_ALREADY, *_KILLED):
            raise answer  # it said why, and would say so again
    raise StartError(f"the daemon was ended {_MOST_TRIES} times before it answered", 1)


def _one(home: Home, arguments: Sequence[str], deadline: float) -> Connection | StartError:
    """Start one: a connection to it, or to another that was first; or how it ended."""
    import subprocess

    environment = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    with open(home.daemon_log, "ab") as log:
        said_before = log.tell()
        process = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-m", "aliquot", "up", *arguments],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment,
        )  # fmt: skip
    while time.monotonic() < deadline:
        try:
            connection, _ = connect([home])
        except NoDaemonError:
            # One that somebody else started at the same moment may be first: ours ends then, and theirs will answer.
            if process.poll() is not None and not _starting(home):
                return StartError(_last_words(home, said_before), process.returncode)
            time.sleep(_STEP)
            continue
        process.returncode = process.returncode or 0  # it is to outlive us: not ours to wait for
        return connection
    return StartError(f"the daemon did not answer within {_PATIENCE:.0f} s; {home.daemon_log} may tell why")


def wait_for_daemon(patience: float) -> tuple[Connection, Home]:
    """One that comes back by itself, after a restart. Raises NoDaemonError."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return connect(homes())
        except (NoDaemonError, ControlError):
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def _keep_short(log: str) -> None:
    """The log of the daemons before is kept once."""
    if os.path.exists(log) and os.path.getsize(log) > _LONGEST_LOG:
        os.replace(log, f"{log}.1")


def _starting(home: Home) -> bool:
    """Whether some daemon holds the lock."""
    import fcntl

    try:
        handle = os.open(home.lock, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def _last_words(home: Home, since: int) -> str:
    """What the daemon said before it ended: it ends with the reason."""
    try:
        with open(home.daemon_log, "rb") as log:
            log.seek(since)
            lines = log.read().decode(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1].removeprefix("aliquot: ") if lines else f"the daemon ended at once; see {home.daemon_log}"
