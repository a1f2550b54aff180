"""What is fuzzed, and how it is gone about: whatever comes is data or a refusal, soon, and in bounded memory."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

PATIENCE = (
    20.0  # seconds of CPU for one input; usual are milliseconds, PyYAML takes one where brackets are nested deeply
)
_WAITING = 120.0  # seconds by the clock: on a machine that does other things too
MOST_MEMORY = 512 << 20  # bytes that a target may add to the process

_PHASES = set(Phase) - {Phase.explain}  # it follows every line that is run, and makes each of them slow

Check = Callable[[Any], None]


class TooLongError(BaseException):
    """One input took longer than any may: not an Exception, which what is tried here might take for its own."""


@dataclass(frozen=True, slots=True)
class Target:
    """One parser. `place` makes what it needs, and gives what tries one input: it raises where something is wrong."""

    name: str
    inputs: st.SearchStrategy[Any]
    place: Callable[[], AbstractContextManager[Check]]
    examples: int = 60  # in `make test`: some tenths of a second


def plain(name: str, inputs: st.SearchStrategy[Any], check: Check, examples: int = 60) -> Target:
    """One that needs nothing around it."""
    return Target(name, inputs, lambda: contextlib.nullcontext(check), examples)


def hunt(target: Target, check: Check, *, examples: int, chance: int | None = None) -> None:
    """Try so many inputs; the same for the same chance. Raises what the first bad one raises, and the input is told."""

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), phases=_PHASES)
    @given(target.inputs)
    def every(value: Any) -> None:
        with _in_time(target.name):
            check(value)

    (every if chance is None else seed(chance)(every))()


@contextlib.contextmanager
def _in_time(name: str) -> Iterator[None]:
    def late(*_: object) -> None:
        raise TooLongError(f"{name}: one input takes longer than {PATIENCE:.0f} s")

    timers = ((signal.SIGVTALRM, signal.ITIMER_VIRTUAL, PATIENCE), (signal.SIGALRM, signal.ITIMER_REAL, _WAITING))
    before = [signal.signal(number, late) for number, _, _ in timers]
    for _, timer, seconds in timers:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def refused(sentence: str, *names: str) -> None:
    """A refusal is a sentence of bounded length that names what it is about."""
    assert sentence
    assert len(sentence) < 20_000
    for name in names:
        assert name in sentence


def resident() -> int:
    """Bytes of memory that this process has."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
