"""Starts the daemon in the background and waits until it answers. Imports heavy modules only if none runs."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from collections.abc import Callable, Sequence

from aliquot.adapters.host.control import Connection, ControlError, NoDaemonError, connect
from aliquot.adapters.host.home import (
    OF_A_TENANT,
    Home,
    HomeError,
    homes,
    open_log,
    own_home,
)
from aliquot.adapters.host.process import ourselves
from aliquot.wording.amounts import memory

_PATIENCE = 60.0  # seconds; a cold start reads numpy from a slow disk, NVML wakes sleeping cards
_STEP = 0.02
_MOST_TRIES = 5
_RUNS_ALREADY = 1  # exit code of a daemon that found another one running
_KILLED = (*range(129, 193), *range(-64, 0))  # the daemon, or its launcher
_LAUNCHER = os.path.join(os.path.dirname(__file__), "launcher.py")
_LONGEST_LOG = 4 << 20
_LEAST_FREE = 4 << 20
_LEAST_FILES = 64
_ADVICE = "set ALIQUOT_HOME to a folder that you own"

# Variables that the daemon must not inherit from the command that starts it.
_FOREIGN = ("LD_PRELOAD", *OF_A_TENANT, "CUDA_VISIBLE_DEVICES")


class StartError(Exception):
    """The daemon did not start; the message says why. `code` is its exit code."""

    def __init__(self, text: str, code: int = 2) -> None:
        super().__init__(text)
        self.code = code


def connect_or_start(arguments: Sequence[str], notify: Callable[[str], None]) -> tuple[Connection, Home]:
    """Connect to the running daemon, or to a new one (`aliquot up` ARGUMENTS, each option with a value). Raises
    StartError, ControlError."""
    try:
        return connect(homes())
    except NoDaemonError:
        simulated = dict(zip(arguments[::2], arguments[1::2], strict=True)).get("--simulate")
        notify(f"starting the daemon{f' with simulated cards, {simulated}' if simulated else ''}")
        return start(arguments)


def start(arguments: Sequence[str]) -> tuple[Connection, Home]:
    """Start a daemon in the background and connect to it, or to one that started first. Raises StartError."""
    home = own_home()
    try:
        home.check()
        _make_folders(home)
        _rotate(home.daemon_log)
        _check_room(home)
    except HomeError as error:
        raise StartError(str(error)) from error
    except OSError as error:
        raise StartError(f"{home.state}: {error.strerror}: {_ADVICE}") from error
    deadline = time.monotonic() + _PATIENCE
    for _ in range(_MOST_TRIES):
        answer = _try_start(home, arguments, deadline)
        if isinstance(answer, Connection):
            return answer, home
        if answer.code not in (_RUNS_ALREADY, *_KILLED):
            raise answer  # another attempt would fail in the same way
    raise StartError(f"the daemon ended {_MOST_TRIES} times before it answered; the last time: {answer}", 1)


def _make_folders(home: Home) -> None:
    """Or of those that are there make sure that they are ours, before anything in them is used. Raises StartError."""
    from aliquot.services.daemon import home as daemon_home

    try:
        for folder in dict.fromkeys((home.state, home.run)):
            daemon_home.make_folder(folder, 0o711)
    except daemon_home.StartError as error:
        raise StartError(str(error)) from error


def _try_start(home: Home, arguments: Sequence[str], deadline: float) -> Connection | StartError:
    """Start one process. A connection to it, or to another that was faster; or how it ended."""
    import subprocess

    environment = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    # The launcher leaves this folder: paths that are relative to it become absolute.
    environment |= {"ALIQUOT_HOME": home.state} if environment.get("ALIQUOT_HOME") else {}
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        environment |= {name: os.path.abspath(environment[name])} if environment.get(name) else {}
    if environment.get("PYTHONPATH"):
        environment["PYTHONPATH"] = ":".join(map(os.path.abspath, environment["PYTHONPATH"].split(":")))
    try:
        opened, aside = open_log(home.daemon_log)
    except OSError as error:
        raise StartError(f"{home.daemon_log}: {error.strerror}: {_ADVICE}") from error
    if aside is not None:
        why = "it is not a file of yours alone"
        print(f"aliquot: {home.daemon_log}: {why}: it is called {aside} now", file=sys.stderr, flush=True)
    with opened as log:
        log_start = log.tell()
        process = subprocess.Popen(  # noqa: S603 - ourselves
            ourselves.script(_LAUNCHER, *ourselves.aliquot("up", *arguments)),
            stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True, env=environment,
        )  # fmt: skip
    with process:  # closes its input at the end: then it leaves the daemon alone
        while time.monotonic() < deadline:
            try:
                return connect([home])[0]
            except NoDaemonError:
                # Another daemon that started at the same moment may hold the lock: ours ends then, that one answers.
                if process.poll() is not None and not _starting(home):
                    return StartError(_last_line(home, log_start), process.returncode)
                time.sleep(_STEP)
    return StartError(f"the daemon did not answer within {_PATIENCE:.0f} s; see {home.daemon_log}")


def wait_for_daemon(patience: float) -> tuple[Connection, Home]:
    """Wait for a daemon that restarts. Raises NoDaemonError."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return connect(homes())
        except (NoDaemonError, ControlError):
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def _check_room(home: Home) -> None:
    """The first start needs room: raises StartError. A later one works without: it adopts what runs, and says so."""
    for folder in dict.fromkeys((home.state, home.run)):
        if os.path.isdir(folder):
            disk = os.statvfs(folder)
            free = disk.f_bavail * disk.f_frsize
            if free < _LEAST_FREE or (disk.f_files and disk.f_favail < _LEAST_FILES):
                what = f"{free >> 10} KiB" if free < _LEAST_FREE else f"room for {disk.f_favail} files"
                short = f"{folder}: only {what} left on its disk"
                if os.path.exists(home.database):
                    print(f"aliquot: {short}: make room, until then new runs are refused", file=sys.stderr, flush=True)
                    continue
                raise StartError(
                    f"{short}, the daemon needs {memory(_LEAST_FREE >> 20)}: "
                    "make room, or set ALIQUOT_HOME to another folder"
                )


def _rotate(log: str) -> None:
    """Keep one old log."""
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(log)
        if not stat.S_ISREG(found.st_mode) or found.st_size <= _LONGEST_LOG:
            return
        os.replace(log, f"{log}.1")


def _starting(home: Home) -> bool:
    """Whether a daemon holds the lock."""
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


def _last_line(home: Home, since: int) -> str:
    """The last line that the daemon logged: the reason why it ended."""
    try:
        with open(home.daemon_log, "rb") as log:
            log.seek(since)
            lines = log.read().decode(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1].removeprefix("aliquot: ") if lines else f"the daemon ended at once; see {home.daemon_log}"
