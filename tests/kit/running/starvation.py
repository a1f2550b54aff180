"""How a test is judged on a machine that does not get its processors, and how the tests end in time.

CI may run on a virtual machine whose host gives its processors to others for minutes: /proc/stat counts this as steal.
A test that waits for other processes, or measures shares of a card, then fails although the code is right. So a test
that failed while the machine was starved runs again when the machine is calm, up to twice. Tests of the packages
without IO get no second chance; tests on a real cluster always do, since a dozen programs of others take part; but not
one that hung. With ALIQUOT_TESTS_REPEAT set, as .ci/run does, every test with other processes gets one.

A green run means that every test ran and passed. One that was starved at each attempt has failed, and so has one that
could not begin in time: ALIQUOT_TESTS_UNTIL, in seconds since 1970, is when no further test begins. pytest names the
tests that passed only when repeated, so that they get mended, and fails the run where they are more than a few.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from _pytest.runner import runtestprotocol

from kit.running import timelimit

UNTIL = "ALIQUOT_TESTS_UNTIL"
REPEAT = "ALIQUOT_TESTS_REPEAT"
FAILED_FIRST = "failed first"  # a property of a test's report: how often it failed
MOST_REPEATED = 3  # tests of a run that may pass only when they are repeated
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
        if no_time_left(os.environ.get(UNTIL), time.time()):
            return math.inf
        repeated = "e2e" in item.path.parts or os.environ.get(REPEAT)
        return 0.0 if repeated and not item.stash.get(timelimit.HUNG, False) else STARVED

    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    lost = judge(attempt, _Meter(), _wait_for_calm, tolerated)
    for report in reports:
        if lost and report.when == "call":
            report.user_properties.append((FAILED_FIRST, len(lost)))
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _repeated(config: pytest.Config) -> list[str]:
    """The tests that passed only when repeated, and how often each failed before."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    return [
        f"{report.nodeid} ({times})"
        for report in (terminal.stats.get("passed", ()) if terminal else ())
        for name, times in report.user_properties
        if name == FAILED_FIRST
    ]


def fail_where_many_were_repeated(session: pytest.Session) -> None:
    """The body of pytest_sessionfinish."""
    if len(_repeated(session.config)) > MOST_REPEATED and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def name_those_that_failed_first(terminal: pytest.TerminalReporter) -> None:
    """The body of pytest_terminal_summary."""
    names = _repeated(terminal.config)
    if names:
        too_many = f", and more than {MOST_REPEATED} fail the run" if len(names) > MOST_REPEATED else ""
        terminal.section(f"{len(names)} passed, but failed first (so many times): please mend{too_many}")
        terminal.write_line("\n".join(names))


def fail_if_no_time_left() -> None:
    """The beginning of pytest_runtest_setup."""
    if no_time_left(os.environ.get(UNTIL), time.time()):
        pytest.fail(f"did not run: no time left: {UNTIL} has passed", pytrace=False)
