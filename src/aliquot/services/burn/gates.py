"""When a burn begins and when it ends: on its own, when a file appears, or together with its sister processes.

A bench starts several burns, waits until each has said READY, and then lets them all in with one file. The file may
hold the moment at which the measured window begins, in seconds of CLOCK_MONOTONIC, so that all measure the same one.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aliquot.adapters.gpu.cuda import NoDriverError
from aliquot.services.burn.workload import Outcome

_POLL_SECONDS = 0.002
_LOOK_SECONDS = 0.02  # between two looks for the file that ends it
_PR_SET_PDEATHSIG = 1


class BurnFailedError(Exception):
    """A sister process did not do its part; the message is its own. `no_driver`: there was no card to begin with."""

    def __init__(self, message: str, *, no_driver: bool = False) -> None:
        super().__init__(message)
        self.no_driver = no_driver


@dataclass(slots=True, kw_only=True)
class FileGate:
    """Opened by `start_file` (None: at once), closed after `seconds` or by `until_file`, whichever comes first."""

    warmup: float
    seconds: float | None = None
    start_file: Path | None = None
    until_file: Path | None = None
    _end: float | None = None
    _next_look: float = 0.0

    def begin(self) -> float:
        begin = self.wait()
        return self.open(begin)

    def wait(self) -> float:
        """Say READY, wait to be let in, answer when the window begins."""
        if self.start_file is None:
            return time.monotonic() + self.warmup
        print("READY", file=sys.stderr, flush=True)
        while not _there(self.start_file):
            if self.until_file and _there(self.until_file):
                break
            time.sleep(_POLL_SECONDS)
        return _moment(self.start_file) or time.monotonic() + self.warmup

    def open(self, begin: float) -> float:
        self._end = None if self.seconds is None else begin + self.seconds
        return begin

    def over(self, now: float) -> bool:
        if self._end is not None and now >= self._end:
            return True
        if self.until_file is None or now < self._next_look:
            return False
        self._next_look = now + _LOOK_SECONDS
        return _there(self.until_file)


@dataclass(slots=True)
class _SisterGate:
    """In a forked process: ready when its parent hears so, let in when the parent says the moment."""

    gate: FileGate
    tell: int  # pipe to the parent
    hear: int  # pipe from it

    def begin(self) -> float:
        os.write(self.tell, b"R")
        moment = os.read(self.hear, 64)
        if not moment:
            os._exit(1)  # the parent is gone
        return self.gate.open(float(moment))

    def over(self, now: float) -> bool:
        return self.gate.over(now)


@dataclass(slots=True)
class _Sister:
    pid: int
    tell: int
    hear: int
    said: bytearray = field(default_factory=bytearray)


def spread(gate: FileGate, processes: int, run: Callable[[Any, int], Outcome]) -> list[Outcome]:
    """Run in as many processes, forked before any of them touches the card. Raises BurnFailedError."""
    sisters: list[_Sister] = []
    try:
        for index in range(processes):
            sisters.append(_fork(gate, index, run, sisters))
        for sister in sisters:
            if os.read(sister.hear, 1) != b"R":
                sister.said += b"{"  # the byte that was not the R
                raise _failure(_rest(sister))
        begin = f"{gate.wait():.6f}".encode()
        for sister in sisters:
            os.write(sister.tell, begin)
        return [_outcome(sister) for sister in sisters]
    finally:
        for sister in sisters:
            _end(sister)


def _fork(gate: FileGate, index: int, run: Callable[[Any, int], Outcome], before: list[_Sister]) -> _Sister:
    from_parent, to_child = os.pipe()
    from_child, to_parent = os.pipe()
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(from_parent)
        os.close(to_parent)
        return _Sister(pid, to_child, from_child)
    code = 1
    try:
        for each in (to_child, from_child, *(end for sister in before for end in (sister.tell, sister.hear))):
            os.close(each)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # killed with its parent, however that dies
        if os.getppid() == parent:
            _write(to_parent, _report(gate, index, run, to_parent, from_parent))
            code = 0
    finally:
        os._exit(code)


def _report(
    gate: FileGate, index: int, run: Callable[[Any, int], Outcome], to_parent: int, from_parent: int
) -> dict[str, Any]:
    try:
        outcome = run(_SisterGate(gate, to_parent, from_parent), index)
    except Exception as error:  # the parent tells it, with its own way out
        return {"error": str(error) or repr(error), "no_driver": isinstance(error, NoDriverError)}
    return {"result": outcome.result, "timeline": outcome.timeline}


def _write(pipe: int, report: dict[str, Any]) -> None:
    with os.fdopen(pipe, "wb") as stream:
        stream.write(json.dumps(report).encode())


def _rest(sister: _Sister) -> dict[str, Any]:
    """What the sister had to say, to its end."""
    while piece := os.read(sister.hear, 65536):
        sister.said += piece
    try:
        report: dict[str, Any] = json.loads(sister.said)
    except ValueError:
        return {"error": "a process of this burn died"}
    return report


def _failure(report: dict[str, Any]) -> BurnFailedError:
    return BurnFailedError(str(report["error"]), no_driver=bool(report.get("no_driver")))


def _outcome(sister: _Sister) -> Outcome:
    report = _rest(sister)
    if "error" in report:
        raise _failure(report)
    return Outcome(report["result"], report["timeline"])


def _end(sister: _Sister) -> None:
    """Close, kill what still runs, and bury it."""
    os.close(sister.tell)
    os.close(sister.hear)
    done, _ = os.waitpid(sister.pid, os.WNOHANG)
    if not done:
        os.kill(sister.pid, signal.SIGKILL)
        os.waitpid(sister.pid, 0)


def merged(outcomes: list[Outcome]) -> Outcome:
    """Several processes as one tenant: work added up, the worst gap, times put together."""
    if len(outcomes) == 1:
        return outcomes[0]
    results = [outcome.result for outcome in outcomes]
    sum_of: Callable[[str], float] = lambda key: sum(result[key] for result in results)  # noqa: E731
    all_of = dict(results[0])
    all_of |= {
        "seconds": round(sum_of("seconds") / len(results), 6),
        "kernels": round(sum_of("kernels"), 3),
        "share": round(sum_of("share"), 5),
        "series": [round(sum(second), 4) for second in zip(*(result["series"] for result in results), strict=False)],
        "longest_gap_ms": max(result["longest_gap_ms"] for result in results),
        "processes": [{key: result[key] for key in ("kernels", "share", "longest_gap_ms")} for result in results],
    }
    if "right" in all_of:
        all_of["right"] = all(result["right"] for result in results)
    timelines = [outcome.timeline for outcome in outcomes if outcome.timeline]
    timeline = dict(timelines[0]) if timelines else None
    if timeline is not None:
        timeline |= {key: sorted(each for one in timelines for each in one[key]) for key in ("spans", "stops")}
    return Outcome(all_of, timeline)


def _there(path: Path) -> bool:
    return os.access(path, os.F_OK)


def _moment(path: Path) -> float | None:
    """The moment in the file; None where it holds none."""
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None
