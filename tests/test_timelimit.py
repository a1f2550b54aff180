"""A test that hangs fails and shows where: kit.running.timelimit."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = """
import pytest
from kit.running import timelimit

timelimit.SECONDS = timelimit.DEAF = 0.3

@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    with timelimit.limited(item, "the test"):
        return (yield)

@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    with timelimit.limited(item, "tidying up"):
        return (yield)
"""

HANGS = """
import signal, threading, time
import pytest

@pytest.fixture
def server(request):
    yield
    print("the server ended")

def waits_for_an_answer():
    threading.Event().wait()

def test_it(server):
    waits_for_an_answer()

def test_next(server, monkeypatch):
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    monkeypatch.setattr(signal, "signal", lambda *_: None)
"""

HEARS_NO_SIGNAL = """
import signal, time

def waits_in_c():
    time.sleep(1000)

def test_it():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    waits_in_c()
"""


@pytest.fixture
def limited(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder whose tests may take a third of a second."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    pytester.makeconftest(CONFTEST)
    return pytester


def test_hanging_test_fails_with_its_stack_and_the_next_one_runs(limited: pytest.Pytester) -> None:
    limited.makepyfile(HANGS)
    result = limited.runpytest_subprocess("-p", "no:cacheprovider")
    assert result.parseoutcomes() == {"failed": 1, "passed": 1}
    wanted = ["*the test took longer than 0.3 s; what every thread was doing:*", "*in waits_for_an_answer*"]
    result.stdout.fnmatch_lines([*wanted, "the server ended"])


def test_test_that_ignores_signals_ends_its_process_with_its_stack(limited: pytest.Pytester) -> None:
    limited.makepyfile(HEARS_NO_SIGNAL)
    result = limited.runpytest_subprocess("-p", "no:cacheprovider")
    assert result.ret == 1
    result.stderr.fnmatch_lines(["Timeout *", "*in waits_in_c*"])
