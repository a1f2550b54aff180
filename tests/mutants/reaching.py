"""Try changes with the tests that reach them, in copies of one process that has collected the tests already.

First every test runs once, and which lines of the packages it reaches is written down. Then each change gets a copy:
the functions get the changed code, and only tests that reach the changed statement run, the quickest of the module's
own first, until one fails. A change that no test reaches survives at once.

What runs while modules are imported is past by then: of a change there only a failure counts (see `Answer.UNKNOWN`).
"""

from __future__ import annotations

import ast
import contextlib
import enum
import functools
import gc
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

from mutants.mutations import Mutation

_LEAST_SECONDS = 10  # of processor time for one change; more where the tests take long without it
_WAIT = 20.0  # seconds of the clock for each second of the processor: others may use it too


class Answer(enum.Enum):
    NOTICED = enum.auto()
    SURVIVED = enum.auto()
    UNKNOWN = enum.auto()  # survived so far; the code also runs at import, or can only be changed before


@dataclass(slots=True)
class Reach:
    """Which tests reach which lines, by their place in the list of tests."""

    tests: dict[tuple[str, int], set[int]] = field(default_factory=dict)
    at_import: set[tuple[str, int]] = field(default_factory=set)
    seconds: dict[int, float] = field(default_factory=dict)


class Lines:
    """Writes down the lines of some files that are executed."""

    def __init__(self, within: Path) -> None:
        self._within = f"{within}{os.sep}"
        self.seen: set[tuple[str, int]] = set()

    def __enter__(self) -> Lines:
        threading.settrace(self._called)
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)

    def _called(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        return self._line if frame.f_code.co_filename.startswith(self._within) else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        self.seen.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line


class Bench:
    """A pytest plugin: once the tests are collected, `work` runs instead of them."""

    def __init__(self, within: Path, work: Callable[[Bench], None]) -> None:
        self._lines = Lines(within)
        self._within = f"{within}{os.sep}"
        self._work = work
        self.items: list[pytest.Item] = []
        self.reach = Reach()
        self._functions: list[FunctionType] = []
        self._caches: list[Any] = []
        self._failed = False

    def pytest_sessionstart(self) -> None:
        self._lines.__enter__()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._lines.__exit__()
        if session.testsfailed:
            sys.exit("these tests cannot be collected")
        self.items = list(session.items)
        for found in gc.get_objects():
            if isinstance(found, FunctionType) and found.__code__.co_filename.startswith(self._within):
                self._functions.append(found)
            elif isinstance(found, functools._lru_cache_wrapper):
                self._caches.append(found)
        self.reach.at_import = self._lines.seen
        self._run_once()
        gc.collect()
        gc.freeze()
        self._work(self)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed = self._failed or report.failed

    def try_(self, mutation: Mutation, tests: Sequence[int]) -> Answer:
        """What becomes of a change with these tests, which reach it."""
        codes = changed(mutation)
        functions = [function for function in self._functions if place(function.__code__) in codes]
        pairs = [(function, codes[place(function.__code__)]) for function in functions]
        lines = {(str(mutation.file), line) for line in statement_lines(mutation.file, mutation.line)}
        if any(code is None or code.co_freevars != function.__code__.co_freevars for function, code in pairs):
            return Answer.UNKNOWN
        if tests:
            seconds = max(_LEAST_SECONDS, int(10 * sum(self.reach.seconds[test] for test in tests)))
            if not _in_a_copy(lambda: self._all_pass(pairs, tests), seconds):
                return Answer.NOTICED
        return Answer.UNKNOWN if lines & self.reach.at_import else Answer.SURVIVED

    def reaching(self, mutation: Mutation, own: Callable[[Path], bool], among: Path) -> list[int]:
        """Tests of a folder that reach the changed statement, the module's own first, then the quickest."""
        found: set[int] = set()
        for line in statement_lines(mutation.file, mutation.line):
            found |= self.reach.tests.get((str(mutation.file), line), set())
        inside = [test for test in found if self.items[test].path.is_relative_to(among)]
        return sorted(inside, key=lambda test: (not own(self.items[test].path), self.reach.seconds[test], test))

    def _all_pass(self, pairs: Sequence[tuple[FunctionType, CodeType | None]], tests: Sequence[int]) -> bool:
        for function, code in pairs:
            function.__code__ = code or function.__code__
        return all(self._passes(test) for test in tests)

    def _passes(self, test: int) -> bool:
        for cache in self._caches:
            cache.cache_clear()
        self._failed = False
        item = self.items[test]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return not self._failed

    def _run_once(self) -> None:
        """Run every test, here: all that it keeps for the next time (strategies of Hypothesis) the copies have too."""
        for test, item in enumerate(self.items):
            began = time.process_time()
            with Lines(Path(self._within)) as lines:
                passed = self._passes(test)
            if not passed:
                sys.exit(f"this fails without any change: HYPOTHESIS_PROFILE=quick pytest {item.nodeid}")
            self.reach.seconds[test] = time.process_time() - began
            for line in lines.seen:
                self.reach.tests.setdefault(line, set()).add(test)


def _in_a_copy(run: Callable[[], bool], seconds: int) -> bool:
    """Whether it answers True in a process of its own, within so much processor time."""
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        if not child:
            code = 1
            try:
                os.setpgid(0, 0)
                resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
                output = os.open(os.devnull, os.O_WRONLY)
                os.dup2(output, 1)
                os.dup2(output, 2)
                os.environ["TMPDIR"] = tempfile.tempdir = folder
                code = 0 if run() else 1
            finally:
                os._exit(code)
        deadline = time.monotonic() + _WAIT * seconds
        try:
            while True:
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    return os.waitstatus_to_exitcode(status) == 0
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.005)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)


Place = tuple[str, str, int]  # of a function: its file, its name with those around it, and its first line


def place(code: CodeType) -> Place:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def changed(mutation: Mutation) -> dict[Place, CodeType | None]:
    """The code of every function of the changed module; None where two have the same place."""
    made: dict[Place, CodeType | None] = {}
    for code in _inner(mutation.code()):
        made[place(code)] = None if place(code) in made else code
    return made


def _inner(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inner(constant)


@functools.cache
def _statements(file: Path) -> list[range]:
    """The lines of each statement, without those of statements in it."""
    found = []
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.stmt | ast.match_case):
            inner = [part for name in ("body", "cases") for part in getattr(node, name, ())]
            inner_lines = [part.pattern.lineno if isinstance(part, ast.match_case) else part.lineno for part in inner]
            first = node.pattern.lineno if isinstance(node, ast.match_case) else node.lineno
            last = min(inner_lines) - 1 if inner_lines else (node.end_lineno or first)  # type: ignore[union-attr]
            found.append(range(first, max(first, last) + 1))
    return found


def statement_lines(file: Path, line: int) -> range:
    """All lines of the statement with this line: a change of one part may be reached by another."""
    return min((lines for lines in _statements(file) if line in lines), key=len, default=range(line, line + 1))
