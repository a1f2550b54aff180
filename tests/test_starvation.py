"""How tests are judged on a starved machine: kit.running.starvation."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.running import starvation
from kit.running.starvation import ATTEMPTS, ProcessorTime, judge, no_time_left

pytest_plugins = ["pytester"]

STARVED_CONFTEST = """
import pytest
from kit.running import starvation

STOLEN = {stolen}
starvation.CALM_WAIT = 0.0
ticks = [0]

def now():
    ticks[0] += 100
    return starvation.ProcessorTime(used=ticks[0], stolen=int(ticks[0] * STOLEN) + 1)

starvation.ProcessorTime.now = now

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    return starvation.run_judged(item, nextitem) or None

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    starvation.fail_if_no_time_left()

def pytest_sessionfinish(session):
    starvation.fail_where_many_were_repeated(session)

def pytest_terminal_summary(terminalreporter):
    starvation.name_those_that_failed_first(terminalreporter)
"""

FAILS_TWICE = """
import pytest
made = []

@pytest.fixture(scope="module")
def server():
    made.append(1)
    if len(made) == 1:
        raise RuntimeError("did not start in time")

@pytest.fixture
def numbers():
    return []

def test_it(server, numbers):
    numbers.append(1)
    made.append(1)
    assert numbers == [1], "arguments are made anew"
    assert len(made) > 3

def test_next(server):
    pass
"""


@pytest.fixture
def starved(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder whose tests run in a process that loses a third of its processor time."""
    monkeypatch.delenv(starvation.UNTIL, raising=False)
    monkeypatch.delenv(starvation.REPEAT, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    pytester.makeconftest(STARVED_CONFTEST.format(stolen=0.5))
    return pytester


def outcomes(pytester: pytest.Pytester) -> dict[str, int]:
    return pytester.runpytest_subprocess("-p", "no:cacheprovider").parseoutcomes()


def test_stolen_part_counts_wanted_time_only(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 50 9000 10 0 0 20 0 0\ncpu0 1 1 1 1 1 1 1 1\n")
    before = ProcessorTime.now(stat)
    stat.write_text("cpu  130 0 60 19000 10 0 0 30 0 0\n")
    assert before.stolen_until(ProcessorTime.now(stat)) == pytest.approx(10 / 50)
    assert before.stolen_until(before) == 0.0


def test_machine_without_counts_is_never_starved(tmp_path: Path) -> None:
    assert ProcessorTime.now(tmp_path / "none") == ProcessorTime(0, 0)


@pytest.mark.parametrize(
    ("passes", "stolen", "failures"),
    [
        ([True], [0.9], []),
        ([False], [0.0], [0.0]),
        ([False, True], [0.5], [0.5]),
        ([False, False], [0.5, 0.01], [0.5, 0.01]),
        ([False] * ATTEMPTS, [0.5, 0.4, 0.3], [0.5, 0.4, 0.3]),
    ],
)
def test_failed_attempt_is_repeated_only_while_starved(
    passes: list[bool], stolen: list[float], failures: list[float]
) -> None:
    attempts = iter(passes)
    measured = iter([number for part in stolen for number in (0.0, part)] + [0.0])
    assert judge(lambda: next(attempts), lambda: next(measured), lambda: None) == failures
    assert next(attempts, None) is None, "an attempt was not made"


def test_starved_failure_runs_again_with_new_fixtures(starved: pytest.Pytester) -> None:
    starved.makepyfile(FAILS_TWICE)
    assert outcomes(starved) == {"passed": 2}


def test_failure_that_was_starved_each_time_is_a_failure(starved: pytest.Pytester) -> None:
    starved.makepyfile("def test_it():\n    assert 1 == 2")
    assert outcomes(starved) == {"failed": 1}


def test_failure_on_a_calm_machine_is_a_failure(starved: pytest.Pytester) -> None:
    starved.makeconftest(STARVED_CONFTEST.format(stolen=0.01))
    starved.makepyfile("def test_it():\n    assert False")
    assert outcomes(starved) == {"failed": 1}


def test_failure_in_ci_runs_again_and_is_named(starved: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(starvation.REPEAT, "1")
    starved.makeconftest(STARVED_CONFTEST.format(stolen=0.0))
    starved.makepyfile(test_twice=FAILS_TWICE, test_always="def test_it():\n    assert False")
    result = starved.runpytest_subprocess("-p", "no:cacheprovider", "-n", "2")
    assert result.parseoutcomes() == {"passed": 2, "failed": 1}
    result.stdout.fnmatch_lines(["*passed, but failed first*", "test_twice.py::test_it (2)"])


@pytest.mark.parametrize(("tests", "code"), [(3, pytest.ExitCode.OK), (4, pytest.ExitCode.TESTS_FAILED)])
@pytest.mark.parametrize("workers", ["0", "2"])
def test_run_fails_where_many_passed_only_when_repeated(
    starved: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tests: int, code: int, workers: str
) -> None:
    monkeypatch.setenv(starvation.REPEAT, "1")
    once = "import os\ndef test_{0}():\n    assert os.path.exists('{0}') or open('{0}', 'w').close()\n"
    starved.makepyfile("\n".join(once.format(f"t{number}") for number in range(tests)))
    result = starved.runpytest_subprocess("-p", "no:cacheprovider", "-n", workers)
    assert (result.parseoutcomes(), result.ret) == ({"passed": tests}, code)
    result.stdout.fnmatch_lines([f"*{tests} passed, but failed first*"])


def test_failure_without_io_is_a_failure(starved: pytest.Pytester) -> None:
    folder = starved.mkdir("tests") / "model"
    folder.mkdir()
    (folder / "test_it.py").write_text("def test_it():\n    assert False\n")
    assert outcomes(starved) == {"failed": 1}


def test_no_test_begins_after_the_end(starved: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(starvation.UNTIL, "1000")
    starved.makepyfile("def test_it():\n    assert False")
    assert outcomes(starved) == {"errors": 1}
    starved.makepyfile("def test_it():\n    pass")
    monkeypatch.setenv(starvation.REPEAT, "1")
    result = starved.runpytest_subprocess("-p", "no:cacheprovider")
    assert result.parseoutcomes() == {"errors": 1}
    result.stdout.fnmatch_lines(["*did not run: no time left*"])


def test_without_an_end_there_is_time_left() -> None:
    assert not no_time_left(None, 1e12)
    assert not no_time_left("2000", 1999.0)
    assert no_time_left("2000", 2000.0)
