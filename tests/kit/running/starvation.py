"""How a test is judged on a machine that does not get its processors, and how the tests end in time.

CI may run on a virtual machine whose host gives its processors to others for minutes: /proc/stat counts this as steal.
A test that waits for other processes, or measures shares of a card, then fails although the code is right. So a test
that failed while the machine was starved runs again when the machine is calm, up to twice. If it was starved every
time, it counts as skipped: it says nothing about the code. Tests of the packages without IO get no second chance;
tests on a real cluster always do, since a dozen programs of others take part; but not one that hung. With
ALIQUOT_TESTS_REPEAT set, as .ci/run does, every test with other processes gets one: a submission of ten thousand tests
must not be lost to one that depends on chance. pytest names the tests that passed only then, so that they get mended.

ALIQUOT_TESTS_UNTIL, in seconds since 1970, is when no further test begins: the rest are skipped, and counted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from _pytest.runner import runtestprotocol

from kit.running import timelimit

UNTIL = "ALIQUOT_TESTS_UNTIL"
REPEAT = "ALIQUOT_TESTS_REPEAT"
FAILED_FIRST = "failed first"  # a property of a test's report: how often it failed before it passed
ATTEMPTS = 3
STARVED = 0.10  # of the processor time that was wanted; a busy machine of one's own loses less than 1%
CALM_WAIT = 30.0  # seconds before an attempt, for the machine to become calm
CALM_WINDOW = 1.0
WITHOUT_IO = ("model", "wording", "dialects", "placement", "arbiter", "sim")


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """Ticks of all processors since boot: spent here, and wanted here but spent by other guests of the host."""

    used: int
    stolen: int

    @classmethod
    def now(cls, stat: Path = Path("/proc/stat")) -> ProcessorTime:
        """Zeros where the kernel does not count: nothing is ever starved there."""
        try:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, stat.read_text().split()[1:9])
        except (OSError, ValueError):
            return cls(0, 0)
        return cls(user + nice + system + irq + softirq, steal)

    def stolen_until(self, later: ProcessorTime) -> float:
        """The stolen part of what was wanted between the two."""
        stolen = later.stolen - self.stolen
        wanted = stolen + later.used - self.used
        return stolen / wanted if wanted > 0 else 0.0


def no_time_left(environment: str | None, now: float) -> bool:
    return bool(environment) and now >= float(environment or 0)


def judge(
    attempt: Callable[[], bool],
    stolen: Callable[[], float],
    wait: Callable[[], None],
    tolerated: Callable[[], float] = lambda: STARVED,
) -> list[float]:
    """Repeat a failed attempt while the machine is starved; answer what was stolen during each attempt that failed.

    The last attempt counts: it passed if the answer has fewer entries than attempts were made.
    `stolen` answers for the time since its last call.
    """
    lost: list[float] = []
    for _ in range(ATTEMPTS):
        stolen()
        if attempt():
            break
        lost.append(stolen())
        if lost[-1] < tolerated():
            break
        if len(lost) < ATTEMPTS:
            wait()
    return lost


@dataclass(slots=True)
class _Meter:
    since: ProcessorTime = field(default_factory=ProcessorTime.now)

    def __call__(self) -> float:
        before, self.since = self.since, ProcessorTime.now()
        return before.stolen_until(self.since)


def _wait_for_calm() -> None:
    end = time.monotonic() + CALM_WAIT
    meter = _Meter()
    while time.monotonic() < end:
        time.sleep(CALM_WINDOW)
        if meter() < STARVED:
            return


def _without_io(item: pytest.Item) -> bool:
    parts = item.path.parts
    return "tests" in parts and parts[parts.index("tests") + 1] in WITHOUT_IO


def _again(item: pytest.Item) -> None:
    """Forget what the failed attempt left in pytest's objects: arguments, and fixtures that could not be made."""
    if isinstance(item, pytest.Function):
        item._initrequest()
        for fixtures in item._fixtureinfo.name2fixturedefs.values():
            for fixture in fixtures:
                if fixture.cached_result is not None and fixture.cached_result[2] is not None:
                    fixture.finish(cast(Any, item._request))


def _excused(reports: Sequence[pytest.TestReport], lost: Sequence[float]) -> None:
    """Turn the failures among the reports into skips that say why."""
    reason = f"failed {len(lost)} times while the machine was starved: " + ", ".join(f"{part:.0%}" for part in lost)
    reason += " of the processor time it wanted went to others"
    for report in reports:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            path, line, _ = report.location
            report.outcome = "skipped"
            report.longrepr = (path, line or 0, f"Skipped: {reason}; {crash.message if crash else ''}")


def run_judged(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """The body of pytest_runtest_protocol; it does nothing where the test must pass at once."""
    if _without_io(item) or ProcessorTime.now() == ProcessorTime(0, 0):
        return False
    reports: list[pytest.TestReport] = []

    def attempt() -> bool:
        if reports:
            _again(item)
        reports[:] = runtestprotocol(item, nextitem=nextitem, log=False)
        return not any(report.failed for report in reports)

    def tolerated() -> float:
        repeated = "e2e" in item.path.parts or os.environ.get(REPEAT)
        return 0.0 if repeated and not item.stash.get(timelimit.HUNG, False) else STARVED

    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    lost = judge(attempt, _Meter(), _wait_for_calm, tolerated)
    if len(lost) == ATTEMPTS and min(lost) >= STARVED:
        _excused(reports, lost)
    for report in reports:
        if lost and report.when == "call" and report.passed:
            report.user_properties.append((FAILED_FIRST, len(lost)))
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def name_those_that_failed_first(terminal: pytest.TerminalReporter) -> None:
    """The body of pytest_terminal_summary."""
    names = [
        f"{report.nodeid} ({times})"
        for report in terminal.stats.get("passed", ())
        for name, times in report.user_properties
        if name == FAILED_FIRST
    ]
    if names:
        terminal.section("passed, but failed first (so many times): please mend")
        terminal.write_line("\n".join(names))


def skip_if_no_time_left() -> None:
    if no_time_left(os.environ.get(UNTIL), time.time()):
        pytest.skip(f"no time left: {UNTIL} has passed")
