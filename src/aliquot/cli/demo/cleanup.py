"""The end of everything that a story started.

A process of its own waits until the story is over, however that comes: it holds the other end of a pipe, which the
kernel closes even for one that was killed. Whatever carries the story's home in its environment is ended then.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from aliquot.adapters.host import processes
from aliquot.adapters.host.control import AnswerError, ControlError, NoDaemonError, ask
from aliquot.adapters.host.home import Home

HOME_VARIABLE = "ALIQUOT_HOME"
_PATIENCE = 2.0  # seconds from asking to killing
_MOST = 10.0  # seconds in all
_STEP = 0.05


@contextlib.contextmanager
def swept(home: Path) -> Iterator[None]:
    """After the block, nothing of that home is left. Before it, there must be no threads: this forks."""
    theirs, ours = os.pipe()
    janitor = os.fork()
    if janitor == 0:
        os.close(ours)
        _apart(lambda: _wait_and_sweep(theirs, home))
    os.close(theirs)
    try:
        yield
    finally:
        os.close(ours)
        with _undisturbed():
            os.waitpid(janitor, 0)


def sweep(home: Path) -> None:
    """End whoever lives there, politely at first, and remove the folder."""
    with contextlib.suppress(NoDaemonError, ControlError, AnswerError):
        # First the daemon, by asking: it leaves nobody paused, and starts nobody again.
        ask([Home(str(home), str(home))], {"op": "down"}, _PATIENCE)
    began = time.monotonic()
    while left := processes.with_environment(HOME_VARIABLE, str(home)) - {os.getpid()}:
        now = time.monotonic()
        if now > began + _MOST:
            break
        for pid in left:
            with contextlib.suppress(PermissionError):
                processes.send_signal(pid, signal.SIGTERM if now < began + _PATIENCE else signal.SIGKILL)
                processes.send_signal(pid, signal.SIGCONT)  # one that rests hears nothing else
        time.sleep(_STEP)
    shutil.rmtree(home, ignore_errors=True)


def _wait_and_sweep(pipe: int, home: Path) -> None:
    with os.fdopen(pipe, "rb") as until:
        until.read()
    sweep(home)


def _apart(work: Callable[[], None]) -> None:
    """In the fork: nothing of the terminal reaches it, and it never returns into the parent's code."""
    code = 1
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):  # whoever reads our output must not wait for this one
            os.dup2(nothing, stream)
        work()
        code = 0
    finally:
        os._exit(code)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C does not leave a mess: it waits for the few seconds that tidying up takes."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
