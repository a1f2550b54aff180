"""`make mutants`: whether the tests notice small wrong changes to the code that decides.

python tests/mutants/run.py [--count 90] [--seed 1] [-o json] [PATH[:LINE] ...]

Each change is tried in a process of its own with the tests of its package that reach it (few examples each, the same
every time), until the first fails: see reaching.py. A change of code that also runs while modules are imported is tried
again, if it survived, with all tests of the package and the changed module imported afresh. The files stay as they
are: code is compiled in memory. (mutmut and cosmic-ray write the changes into files.)
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.machinery
import importlib.util
import json
import os
import random
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import hypothesis
import numpy  # noqa: F401  # imported once here: every process below has it
import pytest

from mutants.mutations import Mutation, mutations
from mutants.reaching import Answer, Bench

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src" / "aliquot"
PACKAGES = ("arbiter", "placement", "dialects")
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
MOST_SURVIVORS = 0.05
_LEAST_SECONDS = 60.0  # for one change; more where the unchanged code takes long


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of one change."""

    mutation: Mutation
    survived: bool
    seconds: float

    def shown(self) -> dict[str, object]:
        return {
            "file": str(self.mutation.file.relative_to(ROOT)),
            "line": self.mutation.line,
            "source": self.mutation.source,
            "change": self.mutation.change,
        }


def main() -> int:
    """0: at most one change in twenty survived."""
    parser = argparse.ArgumentParser(description="Change the code a little, and see whether a test fails")
    parser.add_argument("--count", type=int, default=90, help="changes to try, as many of each package")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument("paths", nargs="*", metavar="PATH[:LINE]", help="only changes of these files, folders or lines")
    asked = parser.parse_args()
    os.nice(19)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the child ends with us
    chosen = sample(asked.paths or [str(SOURCES)], asked.count, asked.seed)
    tried: list[Tried] = []
    with contextlib.suppress(KeyboardInterrupt):
        for one in _try_all(chosen):
            tried.append(one)
            _show(one, len(tried), len(chosen), sum(one.survived for one in tried), asked.output)
    return _report(tried, len(chosen), asked.seed, asked.output)


def files(package: str) -> list[Path]:
    return sorted((SOURCES / package).rglob("*.py"))


def sample(within: Sequence[str], count: int, seed: int) -> list[Mutation]:
    """As many changes of each package, without those known to change nothing."""
    places = [(Path(path).resolve(), line) for path, _, line in (place.partition(":") for place in within)]
    chosen: list[Mutation] = []
    for package in PACKAGES:
        found = [
            mutation
            for file in files(package)
            if any(file.is_relative_to(path) for path, _ in places)
            for mutation in not_equivalent(file)
            if any(file.is_relative_to(path) and line in ("", str(mutation.line)) for path, line in places)
        ]
        random.Random(f"{seed} {package}").shuffle(found)
        chosen += found[: -(-count // len(PACKAGES))]
    random.Random(seed).shuffle(chosen)  # one that is interrupted has tried something of each
    return chosen


def equivalents() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = tomllib.loads(EQUIVALENT.read_text()).get("equivalent", [])
    return entries


def named_by(entry: dict[str, Any], found: Sequence[Mutation]) -> list[Mutation]:
    """The changes of a file that an entry names. A line may have several with the same text: `nth` tells which."""
    named = [mutation for mutation in found if (mutation.source, mutation.change) == (entry["source"], entry["change"])]
    return [named[entry["nth"] - 1]] if "nth" in entry else named


def not_equivalent(file: Path) -> list[Mutation]:
    """Every change of the module that should be noticed."""
    found = mutations(file)
    of_file = [entry for entry in equivalents() if entry["file"] == str(file.relative_to(ROOT))]
    known = {mutation.where for entry in of_file for mutation in named_by(entry, found)}
    return [mutation for mutation in found if mutation.where not in known]


def _try_all(chosen: Sequence[Mutation]) -> Iterator[Tried]:
    """What a process answers that has collected the tests. This one has not: its copies can import changed modules."""
    if not chosen:
        return
    reading, writing = os.pipe()
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        if not child:
            os.close(reading)
            _child(lambda: _answer(chosen, writing, Path(folder)), Path(folder))
        os.close(writing)
        began = time.monotonic()
        try:
            with open(reading) as answers:
                for mutation, answer in zip(chosen, answers, strict=False):
                    survived = answer.strip() == Answer.SURVIVED.name or (
                        answer.strip() == Answer.UNKNOWN.name
                        and all(_passes(tests, mutation, _seconds(tests)) for tests in stages(mutation.file))
                    )
                    yield Tried(mutation, survived, time.monotonic() - began)
                    began = time.monotonic()
        except BaseException:
            os.kill(child, signal.SIGTERM)
            raise
        finally:
            _, status = os.waitpid(child, 0)
        if status:
            sys.exit((Path(folder) / "output").read_text())


def _answer(chosen: Sequence[Mutation], writing: int, folder: Path) -> int:
    """Collect the tests once, and try each change with those that reach it."""

    def work(bench: Bench) -> None:
        for mutation in chosen:
            stem, among = mutation.file.stem, ROOT / "tests" / package_of(mutation.file)
            tests = bench.reaching(mutation, lambda test, stem=stem: stem in test.stem, among)  # type: ignore[misc]
            os.write(writing, f"{bench.try_(mutation, tests).name}\n".encode())

    packages = sorted({package_of(mutation.file) for mutation in chosen})
    words = [*_words(folder), "-s", *(f"tests/{package}" for package in packages)]
    return int(pytest.main(words, plugins=[_FewExamples(), Bench(SOURCES, work)]) is not pytest.ExitCode.OK)


@functools.cache
def _seconds(tests: tuple[str, ...]) -> float:
    """The limit for these tests: far more than they take with the code as it is."""
    began = time.monotonic()
    if not _passes(tests, None, 3600.0):
        sys.exit(f"these fail without any change: HYPOTHESIS_PROFILE=quick pytest {' '.join(tests)}")
    return max(_LEAST_SECONDS, 5 * (time.monotonic() - began))


def package_of(file: Path) -> str:
    return file.relative_to(SOURCES).parts[0]


def stages(file: Path) -> list[tuple[str, ...]]:
    """The test files of the package, to be tried one group after the other: first those named like the module."""
    every = sorted((ROOT / "tests" / package_of(file)).rglob("test_*.py"))
    own = [test for test in every if file.stem in test.stem]
    groups = (own, [test for test in every if test not in own])
    return [tuple(str(test.relative_to(ROOT)) for test in group) for group in groups if group]


def _passes(tests: tuple[str, ...], mutation: Mutation | None, seconds: float) -> bool:
    """Whether the tests pass. A change with which they do not end counts as noticed."""
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        if not child:
            _child(lambda: _run(tests, mutation, Path(folder)), Path(folder))
        deadline = time.monotonic() + seconds
        try:
            while True:
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    break
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.05)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED):
            sys.exit((Path(folder) / "output").read_text())
        return code == pytest.ExitCode.OK


def _child(run: Callable[[], int], folder: Path) -> None:
    """Run in a folder with the output in a file, and end."""
    code = 70
    try:
        os.setpgid(0, 0)
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ["HYPOTHESIS_PROFILE"] = "quick"
        os.chdir(ROOT)
        code = run()
    except BaseException as error:  # a module that fails when it is imported is noticed
        print(repr(error), flush=True)
    finally:
        os._exit(code)


def _run(tests: Sequence[str], mutation: Mutation | None, folder: Path) -> int:
    """Run the tests with the changed module."""
    if mutation is not None:
        sys.meta_path.insert(0, _Changed(mutation))
    return int(pytest.main(["-x", "--tb=no", *_words(folder), *tests], plugins=[_FewExamples()]))


def _words(folder: Path) -> list[str]:
    words = ["--hypothesis-seed=0", f"--basetemp={folder / 'tmp'}", "-p", "no:cacheprovider"]
    return [*words, "-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis is imported already


class _FewExamples:
    """Keeps no examples, and does not look for the smallest that fails."""

    def pytest_configure(self) -> None:
        few = hypothesis.settings(database=None, phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate))
        hypothesis.settings.register_profile("mutants", few)
        hypothesis.settings.load_profile("mutants")


class _Changed(importlib.machinery.SourceFileLoader):
    """Finds and loads one module, changed."""

    def __init__(self, mutation: Mutation) -> None:
        names = mutation.file.relative_to(SOURCES.parent).with_suffix("").parts
        self._code = mutation.code()
        super().__init__(".".join(names[:-1] if names[-1] == "__init__" else names), str(mutation.file))

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)

    def get_code(self, fullname: str) -> CodeType:
        return self._code


def _show(one: Tried, at: int, of: int, survived: int, output: str) -> None:
    """A line for a survivor, and a bar on a terminal."""
    clear = "\r\033[K" if sys.stderr.isatty() else ""
    print(clear, end="", file=sys.stderr, flush=True)
    if one.survived and output == "text":
        print("{file}:{line}: {change}\n    {source}".format(**one.shown()), flush=True)
    if not clear:
        print(f"{at}/{of} changes tried, {survived} survived", file=sys.stderr, flush=True)
    else:
        bar = "#" * (30 * at // of)
        print(f"[{bar:<30}] {at}/{of} changes tried, {survived} survived", end="", file=sys.stderr, flush=True)


def _report(tried: Sequence[Tried], of: int, seed: int, output: str) -> int:
    survivors = [one for one in tried if one.survived]
    rate = len(survivors) / max(1, len(tried))
    by_package = {
        package: [
            sum(one.survived for one in tried if package_of(one.mutation.file) == package),
            sum(package_of(one.mutation.file) == package for one in tried),
        ]
        for package in PACKAGES
    }
    if sys.stderr.isatty():
        print(file=sys.stderr)
    if output == "json":
        made: dict[str, Any] = {"seed": seed, "tried": len(tried), "chosen": of, "survived": len(survivors)}
        made |= {"rate": round(rate, 4), "by_package": by_package, "survivors": [one.shown() for one in survivors]}
        print(json.dumps(made | {"seconds": round(sum(one.seconds for one in tried), 1)}, indent=2))
    else:
        parts = ", ".join(f"{package} {lived} of {every}" for package, (lived, every) in by_package.items() if every)
        print(f"seed {seed}: {len(survivors)} of {len(tried)} changes survived, {rate:.1%} ({parts})")
    return int(rate > MOST_SURVIVORS or len(tried) < of)


if __name__ == "__main__":
    sys.exit(main())
