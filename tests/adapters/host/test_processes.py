"""Who lives."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from aliquot.adapters.host import processes
from kit.machine import PATIENCE, eventually


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "ALIQUOT_MARK": "of this test"}
    with subprocess.Popen(["sleep", "600"], env=environment) as process:
        yield process
        process.kill()


def test_is_stopped_until_sigcont(child: subprocess.Popen[bytes]) -> None:
    assert not processes.is_stopped(child.pid)
    child.send_signal(signal.SIGSTOP)
    eventually(lambda: processes.is_stopped(child.pid))
    child.send_signal(signal.SIGCONT)
    eventually(lambda: not processes.is_stopped(child.pid))
    assert not processes.is_stopped(0)


def test_a_process_is_known_by_its_pid_and_the_moment_it_started(child: subprocess.Popen[bytes]) -> None:
    started = processes.start_time(child.pid)
    assert started is not None
    assert processes.lives(child.pid, started)
    assert not processes.lives(child.pid, started + 1)  # another, with the same pid


def test_a_zombie_is_not_alive(child: subprocess.Popen[bytes]) -> None:
    started = processes.start_time(child.pid)
    child.kill()
    eventually(lambda: not processes.lives(child.pid, started))  # nobody has waited for it yet
    assert os.path.exists(f"/proc/{child.pid}")


@pytest.mark.parametrize("pid", [None, 0, -1, 1 << 30])
def test_lives_is_false_for_no_pid(pid: int | None) -> None:
    assert not processes.lives(pid, None)


def test_start_time_of_a_program_with_brackets_in_its_name(tmp_path: object) -> None:
    code = "import ctypes; ctypes.CDLL(None).prctl(15, b') Z 1 ('); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert processes.lives(process.pid, processes.start_time(process.pid))
        process.kill()


def test_with_environment_finds_processes(child: subprocess.Popen[bytes]) -> None:
    eventually(lambda: processes.with_environment("ALIQUOT_MARK", "of this test") == {child.pid})
    assert processes.with_environment("ALIQUOT_MARK", "of this") == set()
    assert processes.with_environment("ALIQUOT_MARK", "of this test", uid=os.geteuid()) == {child.pid}
    assert processes.with_environment("ALIQUOT_MARK", "of this test", uid=12345) == set()


def test_a_signal_goes_to_that_very_process_or_to_none(child: subprocess.Popen[bytes]) -> None:
    started = processes.start_time(child.pid)
    assert started is not None
    assert not processes.send_signal(child.pid, signal.SIGKILL, started + 1)
    assert child.poll() is None
    assert processes.send_signal(child.pid, signal.SIGKILL, started)
    assert child.wait(PATIENCE) == -signal.SIGKILL
    assert not processes.send_signal(child.pid, signal.SIGKILL, started)


def test_end_kills_a_process_that_ignores_sigterm() -> None:
    with subprocess.Popen(["sh", "-c", "trap '' TERM; echo; while :; do sleep 0.05; done"], stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert processes.end(process.pid, processes.start_time(process.pid), patience=0.2)
        assert process.wait(PATIENCE) == -signal.SIGKILL


def test_ancestors_start_with_the_process_itself(child: subprocess.Popen[bytes]) -> None:
    assert os.getpid() in processes.ancestors(child.pid)


def test_a_process_is_found_in_the_middle_of_an_exec_too() -> None:
    again = "import os, sys; os.execv(sys.executable, [sys.executable, '-S', '-c', sys.orig_argv[3]])"
    environment = {**os.environ, "ALIQUOT_MARK": "becoming"}
    with subprocess.Popen([sys.executable, "-S", "-c", again], env=environment) as process:
        eventually(lambda: processes.with_environment("ALIQUOT_MARK", "becoming"))
        end = time.monotonic() + 20  # a busy machine has many processes to look at
        looks = itertools.takewhile(lambda _: time.monotonic() < end, range(2000))
        missed = sum(processes.with_environment("ALIQUOT_MARK", "becoming") != {process.pid} for _ in looks)
        process.kill()
    assert missed == 0


def test_by_environment_groups_processes_by_value() -> None:
    name = f"ALQ_TEST_{os.getpid()}"
    with contextlib.ExitStack() as stack:
        found: dict[str, set[int]] = {}
        for value in ("a", "b", "a"):
            child = stack.enter_context(subprocess.Popen(["sleep", "600"], env={name: value, "PATH": os.defpath}))
            stack.callback(child.kill)
            found.setdefault(value, set()).add(child.pid)
        assert processes.by_environment(name) == found


def test_with_environment_finds_a_process_that_forks_and_exits_all_the_time() -> None:
    again = "import os, time\nfor _ in range(10000):\n    time.sleep(0.002)\n    if os.fork(): os._exit(0)"
    environment = {**os.environ, "ALIQUOT_MARK": "handing over"}
    with subprocess.Popen([sys.executable, "-S", "-c", again], env=environment) as first:
        first.wait()
        missed = sum(not processes.with_environment("ALIQUOT_MARK", "handing over") for _ in range(300))
        while left := processes.with_environment("ALIQUOT_MARK", "handing over"):
            for pid in left:
                processes.send_signal(pid, signal.SIGKILL)
    assert missed == 0
