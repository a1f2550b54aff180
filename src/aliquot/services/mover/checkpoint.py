"""The driver's checkpoint of whole processes: `python -m aliquot.services.mover.checkpoint WHAT LOCKS PID:STARTED...`.

A process of its own for each step: the driver's calls take seconds, may hang, and cannot be called off. It prints one
line of JSON. What it did not finish the next one finds by the driver's own state of each process. It is the tenant that
does the work, on the driver's order: it goes on when this process dies. In the file LOCKS one byte is locked for each
process that is being moved: so the next daemon's waits for the former daemon's. STARTED is when the process started, by
/proc; -1: it has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum, StrEnum
from typing import Protocol

import msgspec

from aliquot.adapters.host.process.processes import lives

_LOCK_MS = 10_000  # its work is done already: this is for calls that are under way
_CODES = {
    1: "invalid value", 2: "out of memory", 3: "not initialized", 304: "the operating system refuses it",
    401: "illegal state", 600: "not ready", 800: "not permitted", 801: "not supported", 999: "unknown",
}  # fmt: skip
OUT_OF_MEMORY = 2


class What(StrEnum):
    """What is to be done with the processes."""

    LOOK = "look"  # nothing
    TAKE = "take"  # off the card, all of them or none
    BRING = "bring"  # back to it, and let them run


class ProcessState(IntEnum):
    """The driver's."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3


class Answer(msgspec.Struct, frozen=True):
    """What became of it."""

    states: dict[int, int]  # by pid, of those that are there and whose state the driver says
    refusal: str | None = None  # why it was not done, or not for all of them
    code: int = 0  # the driver's, of the refusal
    lasting: bool = False  # it will be refused for ever: this driver cannot do it
    unknown: list[int] = []  # pids that are there; the driver does not say in which state
    untouched: bool = False  # nothing was asked of the driver but the states

    def are_all(self, *states: ProcessState) -> bool:
        """Whether there are processes, all of them known to be in one of these states."""
        return bool(self.states) and not self.unknown and set(self.states.values()) <= set(states)


class RefusedError(Exception):
    """The driver did not do it."""

    untouched = False  # see Answer

    def __init__(self, text: str, code: int = 0, *, lasting: bool = False) -> None:
        super().__init__(text)
        self.code, self.lasting = code, lasting


class Driver(Protocol):
    """What is asked of it."""

    def state(self, pid: int) -> int | None: ...
    def step(self, name: str, pid: int) -> None: ...


class Cuda:
    """The real one."""

    def __init__(self) -> None:
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise RefusedError(str(error)) from error
        if not hasattr(self._cuda, "cuCheckpointProcessCheckpoint"):
            raise RefusedError("this driver has no checkpoints (CUDA 12.8 has, driver 570)", lasting=True)
        self._check("cuInit", self._cuda.cuInit(0))

    def state(self, pid: int) -> int | None:
        """None: the process has ended."""
        found = ctypes.c_int(-1)
        code = self._cuda.cuCheckpointProcessGetState(pid, ctypes.byref(found))
        if code and not os.path.exists(f"/proc/{pid}"):
            return None
        self._check("cuCheckpointProcessGetState", code)
        return found.value

    def step(self, name: str, pid: int) -> None:
        """Raises RefusedError."""
        arguments = (ctypes.c_uint64 * 8)(_LOCK_MS if name == "Lock" else 0)
        function = f"cuCheckpointProcess{name}"
        self._check(function, getattr(self._cuda, function)(pid, ctypes.byref(arguments)))

    @staticmethod
    def _check(name: str, code: int) -> None:
        if code:
            raise RefusedError(f"{name}: error {code} ({_CODES.get(code, 'see cuda.h')})", code)


class Known:
    """Asks it about processes that are known by pid and start time. A pid that is another process's by now is gone: the
    driver would stop that one, whosever it is."""

    def __init__(self, driver: Driver, started: Mapping[int, int]) -> None:
        self._driver, self._started = driver, started

    def state(self, pid: int) -> int | None:
        """None: the process has ended."""
        if not lives(pid, self._started[pid]):
            return None
        found = self._driver.state(pid)
        return found if lives(pid, self._started[pid]) else None

    def step(self, name: str, pid: int) -> None:
        """Raises RefusedError."""
        if not lives(pid, self._started[pid]):
            raise RefusedError(f"process {pid} has ended")
        self._driver.step(name, pid)


class Seen(msgspec.Struct):
    """What the driver says of processes that are there."""

    states: dict[int, int]
    unknown: list[int]
    error: RefusedError | None = None  # why the first of the unknown is unknown


def look(driver: Driver, pids: Sequence[int]) -> Seen:
    """Ask the driver about each process. A process that it does not know does not hide the others."""
    seen = Seen({}, [])
    for pid in pids:
        try:
            state = driver.state(pid)
        except RefusedError as error:
            seen.unknown.append(pid)
            seen.error = seen.error or error
        else:
            if state is not None:
                seen.states[pid] = state
    return seen


def take(driver: Driver, pids: Sequence[int]) -> None:
    """Raises RefusedError; then all of them run again, as far as the driver lets them."""
    seen = look(driver, pids)
    if seen.error is not None and set(seen.states.values()) <= {ProcessState.RUNNING}:
        seen.error.untouched = True
        raise seen.error
    try:
        if ProcessState.FAILED in _all(driver, pids).values():
            raise RefusedError("an earlier checkpoint of it failed in the driver")
        for name, before in (("Lock", ProcessState.RUNNING), ("Checkpoint", ProcessState.LOCKED)):
            for pid, state in _all(driver, pids).items():
                if state == before:
                    _step(driver, name, pid)
    except RefusedError:
        with contextlib.suppress(RefusedError):
            bring(driver, pids)
        raise


def _all(driver: Driver, pids: Sequence[int]) -> dict[int, int]:
    """The states of those that are there. Raises RefusedError where one of them is not known."""
    seen = look(driver, pids)
    if seen.error is not None:
        raise seen.error
    return seen.states


def bring(driver: Driver, pids: Sequence[int]) -> None:
    """Raises RefusedError; what is restored by then stays locked where others are not, for the next attempt. One whose
    state is not known keeps no other process locked."""
    for name, before in (("Restore", ProcessState.CHECKPOINTED), ("Unlock", ProcessState.LOCKED)):
        for pid, state in look(driver, pids).states.items():
            if state == before:
                _step(driver, name, pid)


def _step(driver: Driver, name: str, pid: int) -> None:
    try:
        driver.step(name, pid)
    except RefusedError:
        seen = look(driver, [pid])
        if seen.states or seen.unknown:
            raise


def perform(driver: Driver, what: What, pids: Sequence[int]) -> Answer:
    """One answer, whatever happens."""
    steps: dict[What, Callable[[Driver, Sequence[int]], object]] = {
        What.LOOK: look, What.TAKE: take, What.BRING: bring
    }  # fmt: skip
    refused: RefusedError | None = None
    try:
        steps[what](driver, pids)
    except RefusedError as error:
        refused = error
    seen = look(driver, pids)
    refused = refused or seen.error
    if refused is None:
        return Answer(seen.states)
    return Answer(seen.states, str(refused), refused.code, refused.lasting, seen.unknown, refused.untouched)


def main(what: What, locks: str, started: Mapping[int, int]) -> Answer:
    """With the processes, by their start times, locked for us."""
    pids = list(started)
    file = os.open(locks, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    for pid in sorted(pids):
        fcntl.lockf(file, fcntl.LOCK_EX, 1, pid)
    try:
        return perform(Known(Cuda(), started), what, pids)
    except RefusedError as error:
        return Answer({}, str(error), error.code, error.lasting)


if __name__ == "__main__":
    words = (word.split(":") for word in sys.argv[3:])
    known = {int(pid): int(started) for pid, started in words}
    print(msgspec.json.encode(main(What(sys.argv[1]), sys.argv[2], known)).decode())
