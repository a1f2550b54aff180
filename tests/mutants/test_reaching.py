"""Which tests a change is tried with, and what is answered."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from mutants.reaching import statement_lines

MODULE = """\
import functools

def at_import(a): return a > 1
SEEN = at_import(1)

def noticed(a):
    if a: return a
    return a + 1

def survives(a):
    return a > 7

def unreached(a):
    return a > 1

@functools.cache
def kept(a):
    return [a + b for b in (1, 2)]

def around(a):
    def inner(b): return a - b
    return inner

INNER = around(3)

def endless(a):
    while a > 0: a -= 1
"""
TESTS = """\
from thing import INNER, SEEN, endless, kept, noticed, survives

def test_seen(): assert not SEEN
def test_noticed(): assert (noticed(0), noticed(4)) == (1, 4)
def test_survives(): assert survives(9)
def test_kept(): assert len(kept(1)) == 2
def test_kept_again(): assert kept(1) == [2, 3]
def test_inner(): assert INNER(2) == 1
def test_endless(): endless(3)
"""
RUN = """\
import os, sys
from pathlib import Path
import pytest
from mutants import reaching
from mutants.mutations import mutations

file = Path(sys.argv[1]) / "thing.py"
reaching._LEAST_SECONDS = 1

def work(bench):
    for mutation in mutations(file):
        tests = bench.reaching(mutation, lambda test: True, file.parent)
        answer = bench.try_(mutation, tests).name
        print("ANSWER", mutation.line, len(tests), mutation.change, answer, sep="|", flush=True)

pytest.main(["-s", "-p", "no:cacheprovider", str(file.parent)], plugins=[reaching.Bench(file.parent, work)])
"""


def test_each_change_is_tried_with_the_tests_that_reach_it(tmp_path: Path) -> None:
    (tmp_path / "thing.py").write_text(MODULE)
    (tmp_path / "test_thing.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    paths = os.pathsep.join([str(Path(__file__).parents[1]), str(tmp_path)])
    ran = subprocess.run(
        [sys.executable, "-c", RUN, tmp_path],
        env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    answers = [line.split("|")[1:] for line in ran.stdout.splitlines() if "ANSWER|" in line]
    assert answers == [
        ["3", "0", "return a > 1  ->  return None", "UNKNOWN"],
        ["3", "0", "a > 1  ->  a >= 1", "UNKNOWN"],
        ["3", "0", "a > 1  ->  a <= 1", "UNKNOWN"],
        ["3", "0", "1  ->  2", "UNKNOWN"],
        ["3", "0", "1  ->  0", "UNKNOWN"],
        ["7", "1", "return a  ->  return None", "NOTICED"],
        ["8", "1", "return a + 1  ->  return None", "NOTICED"],
        ["8", "1", "a + 1  ->  a - 1", "NOTICED"],
        ["8", "1", "1  ->  2", "NOTICED"],
        ["8", "1", "1  ->  0", "NOTICED"],
        ["11", "1", "return a > 7  ->  return None", "NOTICED"],
        ["11", "1", "a > 7  ->  a >= 7", "SURVIVED"],
        ["11", "1", "a > 7  ->  a <= 7", "NOTICED"],
        ["11", "1", "7  ->  8", "SURVIVED"],
        ["11", "1", "7  ->  6", "SURVIVED"],
        ["14", "0", "return a > 1  ->  return None", "SURVIVED"],
        ["14", "0", "a > 1  ->  a >= 1", "SURVIVED"],
        ["14", "0", "a > 1  ->  a <= 1", "SURVIVED"],
        ["14", "0", "1  ->  2", "SURVIVED"],
        ["14", "0", "1  ->  0", "SURVIVED"],
        ["18", "2", "return [a + b for b in (1, 2)]  ->  return None", "NOTICED"],
        ["18", "2", "a + b  ->  a - b", "NOTICED"],
        ["18", "2", "1  ->  2", "NOTICED"],
        ["18", "2", "1  ->  0", "NOTICED"],
        ["18", "2", "2  ->  3", "NOTICED"],
        ["18", "2", "2  ->  1", "NOTICED"],
        ["22", "0", "return inner  ->  return None", "UNKNOWN"],
        ["27", "1", "a > 0  ->  a >= 0", "SURVIVED"],
        ["27", "1", "a > 0  ->  a <= 0", "SURVIVED"],
        ["27", "1", "0  ->  1", "SURVIVED"],
        ["27", "1", "a -= 1  ->  a += 1", "NOTICED"],  # it does not end
        ["27", "1", "1  ->  2", "SURVIVED"],
        ["27", "1", "1  ->  0", "NOTICED"],
        ["21", "1", "return a - b  ->  return None", "UNKNOWN"],  # it uses no name of around any more
        ["21", "1", "a - b  ->  a + b", "NOTICED"],
    ], ran.stdout + ran.stderr


def test_lines_of_a_statement(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        "def f(a, b):\n    if (\n        a\n    ):\n        return (\n            b\n        )\n    match a:\n"
        "        case 1 if b:\n            return 2\n        case _:\n            return 3\n"
    )
    lines = {line: list(statement_lines(file, line)) for line in (3, 6, 8, 9, 10)}
    assert lines == {3: [2, 3, 4], 6: [5, 6, 7], 8: [8], 9: [9], 10: [10]}
