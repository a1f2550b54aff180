"""The exit codes of processes that are not our children, and the file in a tenant's folder."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aliquot.adapters.host.process import exitcodes, processes

PATIENCE = 60.0
PIDFD_HAS_IT = tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) >= (6, 15)

# Starts a process, prints its pid, and waits for it only when it is allowed to.
PARENT = "import os, subprocess, sys; p = subprocess.Popen(sys.argv[1:]); print(p.pid, flush=True); input(); p.wait()"


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -9)])
def test_exit_code_of_a_process_before_and_after_its_parent_waits(tmp_path: Path, script: str, code: int) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    command = [sys.executable, "-c", PARENT, "sh", "-c", f"read line < {go}; {script}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        started = processes.start_time(pid)
        assert exitcodes.exit_code(pid, started) is None, "it lives"
        pidfd = os.pidfd_open(pid)
        go.write_text("go\n")
        deadline = time.monotonic() + PATIENCE
        while (found := exitcodes.exit_code(pid, started)) is None and time.monotonic() < deadline:
            time.sleep(0.005)
        assert found == code
        assert exitcodes.exit_code(pid, (started or 0) + 1) is None, "another process of that number"
        parent.communicate("wait\n")
        if PIDFD_HAS_IT:
            assert exitcodes.exit_code(pid, started, pidfd) == code
        os.close(pidfd)


@pytest.mark.parametrize(("text", "code"), [("0\n", 0), ("-9\n", -9), ("255", 255)])
def test_code_in_a_file(tmp_path: Path, text: str, code: int) -> None:
    (tmp_path / exitcodes.FILE).write_text(text)
    found = exitcodes.read_file(str(tmp_path))
    assert found is not None
    assert found[0] == code


def test_a_tenant_may_put_anything_there(tmp_path: Path) -> None:
    path = tmp_path / exitcodes.FILE
    assert exitcodes.read_file(str(tmp_path)) is None
    for content in (b"", b"x", b"1e3", b"256", b"-65", b"--1", b"9" * 100, "\N{SUPERSCRIPT TWO}".encode(), b"\xff"):
        path.write_bytes(content)
        assert exitcodes.read_file(str(tmp_path)) is None, content
    path.unlink()
    os.mkfifo(path)
    assert exitcodes.read_file(str(tmp_path)) is None
    path.unlink()
    (tmp_path / "elsewhere").write_text("0")
    path.symlink_to("elsewhere")
    assert exitcodes.read_file(str(tmp_path)) is None
    path.unlink()
    path.mkdir()
    assert exitcodes.read_file(str(tmp_path)) is None
