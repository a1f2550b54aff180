"""No test waits for ever: one that does fails, and shows what every thread was doing.

A limit holds for a test's set-up, for the test itself and for what it tidies up, each on its own. It is far above
what any of them takes on a busy machine: it ends hangs, and measures nothing. When it has passed, a signal makes the
main thread fail where it stands, so fixtures still end what they began. A thread that is inside C and hears no signal
ends the process a minute later: pytest-xdist counts the test as failed and goes on in another process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import signal as signals
import tempfile
from collections.abc import Iterator
from signal import setitimer, signal  # now: a test may replace them in the module, until it is tidied up
from types import FrameType
from typing import NoReturn

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

SECONDS = 300.0
ON_A_CLUSTER = 900.0  # the first test of a run starts the cluster too
DEAF = 60.0  # to hear the signal
HUNG = pytest.StashKey[bool]()  # of a test whose last attempt did


def seconds_for(item: pytest.Item) -> float:
    return ON_A_CLUSTER if "e2e" in item.path.parts else SECONDS


@contextlib.contextmanager
def limited(item: pytest.Item, what: str) -> Iterator[None]:
    """`what`, a part of the test, fails when its time is over."""
    seconds = seconds_for(item)

    def fail(_number: int, _frame: FrameType | None) -> NoReturn:
        item.stash[HUNG] = True
        pytest.fail(f"{what} took longer than {seconds:g} s; what every thread was doing:\n{_stacks()}")

    item.stash[HUNG] = item.stash.get(HUNG, False) and what != "set-up"
    before = signal(signals.SIGALRM, fail)
    setitimer(signals.ITIMER_REAL, seconds)
    stderr = item.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(seconds + DEAF, exit=True, file=stderr)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        setitimer(signals.ITIMER_REAL, 0)
        signal(signals.SIGALRM, before)


def _stacks() -> str:
    with tempfile.TemporaryFile("w+") as written:
        faulthandler.dump_traceback(written, all_threads=True)
        written.seek(0)
        return written.read()
