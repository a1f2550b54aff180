"""Hypothesis profiles. No deadlines, because the machine may be busy; the same examples every time in CI.

HYPOTHESIS_PROFILE=quick (`make quick`) runs a tenth of the examples, also of tests that set their own number.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from aliquot.adapters.host.home import Home
from kit.clusters.kubectl import FakeCluster
from kit.running import starvation, timelimit

# A shell starts background jobs with Ctrl-C ignored, and children inherit it: tests of Ctrl-C would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Daemons and agents that tests start try no card: that is two more processes each. tests/runtime/test_inert.py does.
os.environ.setdefault("ALIQUOT_CONTROL", "trust")

_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("default", _PATIENT)
settings.register_profile("ci", _PATIENT, derandomize=True)
_QUICK = settings(_PATIENT, max_examples=10, derandomize=True)
settings.register_profile("quick", _QUICK)
_PROFILE = os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "default")
settings.load_profile(_PROFILE)


def pytest_xdist_auto_num_workers() -> int | None:
    """More than processors for `-n auto`: tests with other processes wait for them, some for half of their time."""
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None  # xdist reads it
    processors = len(os.sched_getaffinity(0))
    return processors + min(processors, 4)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Apply the quick profile to tests that ask for a number of examples themselves."""
    if _PROFILE != "quick":
        return
    seen: set[object] = set()
    for item in items:
        for test in (getattr(item, "obj", None), getattr(item, "cls", None)):
            own = getattr(test, "_hypothesis_internal_use_settings", None) or getattr(test, "settings", None)
            # hypothesis gives the profile's settings to the others: those are few already.
            if isinstance(own, settings) and own.max_examples != _QUICK.max_examples and test not in seen:
                seen.add(test)
                fewer = settings(own, max_examples=max(1, own.max_examples // 10))
                name = "settings" if isinstance(test, type) else "_hypothesis_internal_use_settings"
                setattr(getattr(test, "__func__", test), name, fewer)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Judge tests with other processes fairly on a starved machine."""
    return starvation.run_judged(item, nextitem) or None


def pytest_sessionfinish(session: pytest.Session) -> None:
    starvation.fail_where_many_were_repeated(session)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    starvation.name_those_that_failed_first(terminalreporter)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    starvation.fail_if_no_time_left()
    with timelimit.limited(item, "set-up"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    with timelimit.limited(item, "the test"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    with timelimit.limited(item, "tidying up"):
        return (yield)


@pytest.fixture
def home() -> Iterator[Home]:
    """A home with a short path: the path of a socket has room for 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="alq") as folder:
        yield Home(folder, folder)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """An empty cluster of paper, and its kubectl first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    made = FakeCluster(folder)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("KUBECTL", raising=False)
    return made
