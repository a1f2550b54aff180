"""Ends everything that the demo started.

A separate process waits until the demo ends, however it ends: it reads a pipe, which the kernel closes even if the demo
is killed. Then it ends all processes with the demo's home in their environment.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from aliquot.adapters.host.control import AnswerError, ControlError, NoDaemonError, ask
from aliquot.adapters.host.home import POOLS, Home, pool_name
from aliquot.adapters.host.process import processes
from aliquot.adapters.host.process.procscan import with_environment

HOME_VARIABLE = "ALIQUOT_HOME"
_PATIENCE = 2.0  # seconds from asking to killing
_MOST = 10.0  # seconds in all
_STEP = 0.05


@contextlib.contextmanager
def cleaned_up(home: Path) -> Iterator[None]:
    """After the block, nothing of that home is left. It forks: there must be no threads yet."""
    reader, writer = os.pipe()
    cleaner = os.fork()
    if cleaner == 0:
        os.close(writer)
        _detached(lambda: _wait_and_clean_up(reader, home))
    os.close(reader)
    try:
        yield
    finally:
        os.close(writer)
        with _signals_ignored():
            os.waitpid(cleaner, 0)


def clean_up(home: Path) -> None:
    """End all processes of that home, with SIGTERM first, and remove the folder."""
    with contextlib.suppress(NoDaemonError, ControlError, AnswerError):
        # First ask the daemon: it leaves no tenant paused and restarts nothing.
        ask([Home(str(home), str(home))], {"op": "down"}, _PATIENCE)
    began = time.monotonic()
    while left := _others_of(home):
        now = time.monotonic()
        if now > began + _MOST:
            break
        for pid, started in left.items():
            with contextlib.suppress(PermissionError):
                processes.send_signal(pid, signal.SIGTERM if now < began + _PATIENCE else signal.SIGKILL, started)
                processes.send_signal(pid, signal.SIGCONT, started)  # a stopped process reacts to nothing else
        time.sleep(_STEP)
    for folder in (pool_of(home), home):
        shutil.rmtree(folder, ignore_errors=True)


def pool_of(home: Path) -> Path:
    """The memory that left the cards."""
    return Path(POOLS, pool_name(str(home), os.geteuid()))


def _others_of(home: Path) -> dict[int, int]:
    found = with_environment(HOME_VARIABLE, str(home))
    found.pop(os.getpid(), None)
    return found


def _wait_and_clean_up(pipe: int, home: Path) -> None:
    with os.fdopen(pipe, "rb") as until:
        until.read()
    clean_up(home)


def _detached(work: Callable[[], None]) -> None:
    """In the child: detached from the terminal, and never returns into the parent's code."""
    code = 1
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):  # a reader of our output must not wait for this process
            os.dup2(nothing, stream)
        work()
        code = 0
    finally:
        os._exit(code)


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    """A second Ctrl-C waits for the few seconds that the cleanup takes."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
