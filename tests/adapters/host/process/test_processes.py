"""Who lives."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
import threading

import pytest

from aliquot.adapters.host.process import exitcodes, processes
from kit.machines.machine import PATIENCE, eventually
from kit.running.scarcefiles import scarce_files
from kit.running.threads import headless


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


def test_process_is_not_taken_for_gone_while_files_lack(child: subprocess.Popen[bytes]) -> None:
    started = processes.start_time(child.pid)
    assert started is not None
    with scarce_files(0):
        assert processes.lives(child.pid, started)
        with pytest.raises(OSError, match="Too many open files"):
            processes.identities([child.pid])
    assert not processes.send_signal(child.pid, signal.SIGKILL, started + 1)
    assert not processes.kill_proven(child.pid, started + 1, lambda: True)
    assert processes.lives(child.pid, started)


def test_end_is_awaited_also_where_files_lack_at_first(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert exitcodes  # imported before files lack
    monkeypatch.setattr(processes, "_AGAIN", 0.01)
    started = processes.start_time(child.pid)

    async def ends() -> list[int | None]:
        codes: list[int | None] = []
        with scarce_files(0):
            processes.when_ended(child.pid, started, codes.append)
            await asyncio.sleep(0.05)
            assert not codes
        await asyncio.sleep(0.05)
        child.kill()
        async with asyncio.timeout(PATIENCE):
            while not codes:
                await asyncio.sleep(0.01)
        return codes

    assert len(asyncio.run(ends())) == 1


def test_exit_code_is_read_when_there_are_files_again(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_AGAIN", 0.01)
    monkeypatch.setattr(exitcodes, "_of_pidfd", lambda _: None)  # as on a kernel before 6.15
    started = processes.start_time(child.pid)

    async def ends() -> list[int | None]:
        codes: list[int | None] = []
        processes.when_ended(child.pid, started, codes.append)
        child.kill()
        with scarce_files(0):
            await asyncio.sleep(0.2)
            assert not codes
        async with asyncio.timeout(PATIENCE):
            while not codes:
                await asyncio.sleep(0.01)
        return codes

    assert asyncio.run(ends()) == [-signal.SIGKILL]


def test_a_process_whose_first_thread_has_ended_is_alive_and_can_be_killed() -> None:
    with headless() as process:
        started = processes.start_time(process.pid)
        assert processes.lives(process.pid, started)
        assert processes.send_signal(process.pid, signal.SIGKILL, started)
        process.wait()
        assert not processes.lives(process.pid, started)


def test_a_zombie_is_not_alive(child: subprocess.Popen[bytes]) -> None:
    started = processes.start_time(child.pid)
    child.kill()
    eventually(lambda: not processes.lives(child.pid, started))  # nobody has waited for it yet
    assert os.path.exists(f"/proc/{child.pid}")


@pytest.mark.parametrize("pids", ["our own", "of another namespace"])
def test_wait_ended_returns_once_the_process_is_gone(
    child: subprocess.Popen[bytes], pids: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if pids != "our own":
        monkeypatch.setattr(processes, "number_of", lambda handle: child.pid + 1)
    started = processes.start_time(child.pid)
    assert started is not None
    processes.wait_ended(child.pid, started + 1, look=600.0)  # another process had the pid, and is gone
    threading.Timer(0.05, child.kill).start()
    processes.wait_ended(child.pid, started, look=0.01)
    assert not processes.lives(child.pid, started)
    child.wait()
    processes.wait_ended(child.pid, started, look=600.0)


def test_wait_ended_looks_at_proc_only_around_the_wait(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = processes.start_time(child.pid)
    assert started is not None
    looks: list[int] = []

    def lives(pid: int | None, at: int | None) -> bool:
        looks.append(1)
        return processes.start_time(pid or 0) == at

    monkeypatch.setattr(processes, "lives", lives)
    threading.Timer(0.1, child.kill).start()
    processes.wait_ended(child.pid, started, look=0.0)
    assert len(looks) == 2


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


def test_a_signal_goes_to_that_very_process_or_to_none(child: subprocess.Popen[bytes]) -> None:
    started = processes.start_time(child.pid)
    assert started is not None
    assert not processes.send_signal(child.pid, signal.SIGKILL, started + 1)
    assert child.poll() is None
    assert processes.send_signal(child.pid, signal.SIGKILL, started)
    assert child.wait(PATIENCE) == -signal.SIGKILL
    assert not processes.send_signal(child.pid, signal.SIGKILL, started)


def test_signal_that_could_not_be_sent_for_lack_of_files_is_no_process_that_is_gone(
    child: subprocess.Popen[bytes],
) -> None:
    started = processes.start_time(child.pid) or 0
    for free in range(2):
        with scarce_files(free):
            with pytest.raises(OSError, match="Too many open files"):
                processes.send_signal(child.pid, signal.SIGKILL, started)
            with pytest.raises(OSError, match="Too many open files"):
                processes.kill_proven(child.pid, started, lambda: True)
            processes.kill_all({child.pid: started})
    assert processes.lives(child.pid, started)
    assert not processes.send_signal(child.pid, signal.SIGKILL, None)
    assert processes.kill_proven(child.pid, started, lambda: True)


def test_end_kills_a_process_that_ignores_sigterm() -> None:
    with subprocess.Popen(["sh", "-c", "trap '' TERM; echo; while :; do sleep 0.05; done"], stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert processes.end(process.pid, processes.start_time(process.pid), patience=0.2)
        assert process.wait(PATIENCE) == -signal.SIGKILL


def test_ancestors_start_with_the_process_itself(child: subprocess.Popen[bytes]) -> None:
    assert os.getpid() in processes.ancestors(child.pid)


def test_ancestors_of_a_long_chain_are_not_all_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may make thousands, each the parent of the next."""
    looked: list[str] = []

    def opened(path: str, mode: str) -> io.BytesIO:
        looked.append(path)
        assert len(looked) < 100
        return io.BytesIO(b"%d (x) S %d" % (len(looked), 1000 + len(looked)))

    monkeypatch.setattr(processes, "open", opened, raising=False)
    assert len(processes.ancestors(1000)) == len(looked) == 32
