"""Start and end of a burn: by time, when a file appears, or together with its worker processes.

A benchmark starts several burns, waits until each has printed READY and starts them all with one file. The file may
contain the start of the measured window in seconds of CLOCK_MONOTONIC, so that all measure the same window.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from aliquot.adapters.gpu.cuda import NoDriverError
from aliquot.adapters.host.encoding import encode_json
from aliquot.adapters.host.process.children import end_with
from aliquot.model.status.burn import ProcessShare
from aliquot.services.burn.workload import Outcome

_POLL_SECONDS = 0.002
_LOOK_SECONDS = 0.02  # between checks for the file that ends it


class BurnFailedError(Exception):
    """A worker process failed; the message is its own. `no_driver`: there was no card."""

    def __init__(self, message: str, *, no_driver: bool = False) -> None:
        super().__init__(message)
        self.no_driver = no_driver


@dataclass(slots=True, kw_only=True)
class FileGate:
    """Starts with `start_file` (None: at once), ends after `seconds` or with `until_file`, whichever is first."""

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
        """Print READY and wait for the start file. Returns the start of the window."""
        if self.start_file is None:
            return time.monotonic() + self.warmup
        print("READY", file=sys.stderr, flush=True)
        while not _exists(self.start_file):
            if self.until_file and _exists(self.until_file):
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
        return _exists(self.until_file)


@dataclass(slots=True)
class _WorkerGate:
    """The gate of a forked worker: reports to its parent that it is ready, and receives the start of the window."""

    gate: FileGate
    writer: int  # pipe to the parent
    reader: int  # pipe from the parent

    def begin(self) -> float:
        os.write(self.writer, b"R")
        moment = os.read(self.reader, 64)
        if not moment:
            os._exit(1)  # the parent is gone
        return self.gate.open(float(moment))

    def over(self, now: float) -> bool:
        return self.gate.over(now)


class _Report(msgspec.Struct):
    """What a worker process sends when it ends."""

    outcome: Outcome | None = None
    error: str = "a worker process of this burn died"
    no_driver: bool = False


@dataclass(slots=True)
class _Worker:
    pid: int
    writer: int
    reader: int
    output: bytearray = field(default_factory=bytearray)


def spread(gate: FileGate, processes: int, run: Callable[[Any, int], Outcome]) -> list[Outcome]:
    """Run in that many processes, forked before any of them uses the card. Raises BurnFailedError."""
    workers: list[_Worker] = []
    try:
        for index in range(processes):
            workers.append(_fork(gate, index, run, workers))
        for worker in workers:
            if os.read(worker.reader, 1) != b"R":
                worker.output += b"{"  # the byte that was not the R
                raise _failure(_rest(worker))
        begin = f"{gate.wait():.6f}".encode()
        for worker in workers:
            os.write(worker.writer, begin)
        return [_outcome(worker) for worker in workers]
    finally:
        for worker in workers:
            _end(worker)


def _fork(gate: FileGate, index: int, run: Callable[[Any, int], Outcome], before: list[_Worker]) -> _Worker:
    from_parent, to_child = os.pipe()
    from_child, to_parent = os.pipe()
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(from_parent)
        os.close(to_parent)
        return _Worker(pid, to_child, from_child)
    code = 1
    try:
        for descriptor in (to_child, from_child, *(end for worker in before for end in (worker.writer, worker.reader))):
            os.close(descriptor)
        if end_with(parent):
            _write(to_parent, _report(gate, index, run, to_parent, from_parent))
            code = 0
    finally:
        os._exit(code)


def _report(
    gate: FileGate, index: int, run: Callable[[Any, int], Outcome], to_parent: int, from_parent: int
) -> _Report:
    try:
        outcome = run(_WorkerGate(gate, to_parent, from_parent), index)
    except Exception as error:  # the parent reports it
        return _Report(error=str(error) or repr(error), no_driver=isinstance(error, NoDriverError))
    return _Report(outcome)


def _write(pipe: int, report: _Report) -> None:
    with os.fdopen(pipe, "wb") as stream:
        stream.write(encode_json(report))


def _rest(worker: _Worker) -> _Report:
    """The rest of the worker's report."""
    while piece := os.read(worker.reader, 65536):
        worker.output += piece
    try:
        return msgspec.json.decode(worker.output, type=_Report)
    except msgspec.DecodeError:
        return _Report()


def _failure(report: _Report) -> BurnFailedError:
    return BurnFailedError(report.error, no_driver=report.no_driver)


def _outcome(worker: _Worker) -> Outcome:
    report = _rest(worker)
    if report.outcome is None:
        raise _failure(report)
    return report.outcome


def _end(worker: _Worker) -> None:
    """Close the pipes, kill the worker if it still runs, and reap it."""
    os.close(worker.writer)
    os.close(worker.reader)
    done, _ = os.waitpid(worker.pid, os.WNOHANG)
    if not done:
        os.kill(worker.pid, signal.SIGKILL)
        os.waitpid(worker.pid, 0)


def merged(outcomes: list[Outcome]) -> Outcome:
    """The results of several processes as one tenant: total work, longest gap, merged timelines."""
    if len(outcomes) == 1:
        return outcomes[0]
    results = [outcome.result for outcome in outcomes]
    all_of = replace(
        results[0],
        seconds=round(sum(result.seconds for result in results) / len(results), 6),
        kernels=round(sum(result.kernels for result in results), 3),
        share=round(sum(result.share for result in results), 5),
        series=[round(sum(second), 4) for second in zip(*(result.series for result in results), strict=False)],
        longest_gap_ms=max(result.longest_gap_ms for result in results),
        processes=[ProcessShare(result.kernels, result.share, result.longest_gap_ms) for result in results],
    )
    if all_of.right is not msgspec.UNSET:
        all_of.right = all(result.right is True for result in results)
    timelines = [outcome.timeline for outcome in outcomes if outcome.timeline]
    if not timelines:
        return Outcome(all_of)
    spans = sorted(span for timeline in timelines for span in timeline.spans)
    stops = sorted(span for timeline in timelines for span in timeline.stops)
    return Outcome(all_of, replace(timelines[0], spans=spans, stops=stops))


def _exists(path: Path) -> bool:
    return os.access(path, os.F_OK)


def _moment(path: Path) -> float | None:
    """The time in the file; None if it has none."""
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None
