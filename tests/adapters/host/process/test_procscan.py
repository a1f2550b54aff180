"""What a scan of /proc finds, however its processes behave."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aliquot.adapters.host.process import processes
from aliquot.adapters.host.process.procscan import Scan, Seen, scan, with_environment
from kit.machines.machine import eventually
from kit.running.scarcefiles import scarce_files
from kit.running.threads import headless


def _identity(pid: int) -> dict[int, int]:
    return processes.identities([pid])


def _by_value(name: str) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for pid, seen in scan((name,)).processes.items():
        if name in seen.marks:
            found.setdefault(seen.marks[name], set()).add(pid)
    return found


def test_with_environment_finds_processes(child: subprocess.Popen[bytes], mark: str) -> None:
    eventually(lambda: with_environment("ALIQUOT_MARK", mark) == _identity(child.pid))
    assert with_environment("ALIQUOT_MARK", mark[:-1]) == {}
    assert with_environment("ALIQUOT_MARK", mark, uid=os.geteuid()) == _identity(child.pid)
    assert with_environment("ALIQUOT_MARK", mark, uid=12345) == {}


def test_a_process_is_found_in_the_middle_of_an_exec_too(mark: str) -> None:
    again = "import os, sys; os.execv(sys.executable, [sys.executable, '-S', '-c', sys.orig_argv[3]])"
    environment = {**os.environ, "ALIQUOT_MARK": mark}
    with subprocess.Popen([sys.executable, "-S", "-c", again], env=environment) as process:
        eventually(lambda: with_environment("ALIQUOT_MARK", mark))
        end = time.monotonic() + 20  # a busy machine has many processes to look at
        looks = itertools.takewhile(lambda _: time.monotonic() < end, range(2000))
        missed = sum(with_environment("ALIQUOT_MARK", mark) != _identity(process.pid) for _ in looks)
        process.kill()
    assert missed == 0


@pytest.mark.parametrize(("start", "end", "is_open"), [(0, 0, True), (4096, 0, True), (4096, 4096, False)])
def test_exec_that_takes_longer_than_a_scan_leaves_its_user_unfinished(
    tmp_path: Path, start: int, end: int, is_open: bool
) -> None:
    """A machine under load may stop a process in the middle of its exec. One with no environment at all is no exec."""
    pid = 4_999_999  # more than the kernel gives
    fields = ["S", "1", *["0"] * 17, "100", "65536", *["0"] * 26, str(start), str(end), "0", "0"]
    (tmp_path / str(pid)).mkdir()
    (tmp_path / str(pid) / "environ").write_bytes(b"")
    (tmp_path / str(pid) / "stat").write_text(f"{pid} (sleep) {' '.join(fields)}")
    found = scan(("ALIQUOT_MARK",), {os.geteuid()}, proc=str(tmp_path))
    assert found.processes[pid].started == 100
    assert found.unfinished == ({os.geteuid()} if is_open else set())


def test_user_whose_processes_could_not_be_read_for_lack_of_files_is_unfinished(child: subprocess.Popen[bytes]) -> None:
    """Else they would count as gone, and what is booked for them would be freed."""
    own = os.geteuid()
    for free in range(2):
        with scarce_files(free):
            found = scan(("ALIQUOT_MARK",), {own})
        assert own in found.unfinished, f"with {free} free"
    assert own not in scan(("ALIQUOT_MARK",), {own}).unfinished


def test_with_environment_finds_a_process_whose_first_thread_has_ended(mark: str) -> None:
    with headless({**os.environ, "HEADLESS": mark}) as process:
        assert with_environment("HEADLESS", mark) == _identity(process.pid)


def test_scan_has_the_value_of_a_mark() -> None:
    name = f"ALQ_TEST_{os.getpid()}"
    with contextlib.ExitStack() as stack:
        found: dict[str, set[int]] = {}
        for value in ("a", "b", "a"):
            child = stack.enter_context(subprocess.Popen(["sleep", "600"], env={name: value, "PATH": os.defpath}))
            stack.callback(child.kill)
            found.setdefault(value, set()).add(child.pid)
        assert _by_value(name) == found


def test_with_environment_finds_a_process_that_forks_and_exits_all_the_time(mark: str) -> None:
    end = time.monotonic() + 10  # the processes go on for longer than we look, however long a look takes
    again = (
        f"import os, time\nwhile time.monotonic() < {end + 60}:\n    time.sleep(0.002)\n    if os.fork(): os._exit(0)"
    )
    environment = {**os.environ, "ALIQUOT_MARK": mark}
    with subprocess.Popen([sys.executable, "-S", "-c", again], env=environment) as first:
        first.wait()
        looks = itertools.takewhile(lambda _: time.monotonic() < end, range(300))
        missed = sum(not with_environment("ALIQUOT_MARK", mark) for _ in looks)
        while left := with_environment("ALIQUOT_MARK", mark):
            processes.kill_all(left)
    assert missed == 0


def test_below_leaves_out_a_process_and_what_is_below_it() -> None:
    """The daemon that a run started, and the daemon's own children."""
    parents = {10: 1, 11: 10, 12: 11, 13: 10, 14: 13}
    found = Scan({pid: Seen(parent, started=1, uid=5, marks={}) for pid, parent in parents.items()})
    assert found.below({10: 1}, ("RUN", "a"), 5, without=11) == {13: 1, 14: 1}
