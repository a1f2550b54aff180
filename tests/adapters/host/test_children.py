"""Children in sessions of their own, and everyone who came of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aliquot.adapters.host.children import SpawnError, ended, spawn
from kit.machine import eventually

PATH = {"PATH": "/usr/bin:/bin"}


def run(tmp_path: Path, *command: str, folders: tuple[str, ...] = (), **environment: str) -> tuple[int, str]:
    """Its exit code and output."""
    log = tmp_path / "log"
    child = spawn(command, {**PATH, **environment}, folders or (str(tmp_path),), str(log))
    ((pid, code),) = eventually(ended)
    assert pid == child
    return code, log.read_text()


def test_it_has_the_environment_the_folder_and_the_log_it_was_given(tmp_path: Path) -> None:
    assert run(tmp_path, "sh", "-c", "echo $A; pwd", A="1") == (0, f"1\n{tmp_path}\n")


def test_the_first_folder_that_is_there_is_its_own(tmp_path: Path) -> None:
    assert run(tmp_path, "pwd", folders=("/no/such", str(tmp_path), "/")) == (0, f"{tmp_path}\n")


def test_the_log_goes_on_where_it_ended(tmp_path: Path) -> None:
    run(tmp_path, "echo", "1")
    assert run(tmp_path, "echo", "2") == (0, "1\n2\n")


def test_exit_codes_are_as_a_shell_counts(tmp_path: Path) -> None:
    assert run(tmp_path, "sh", "-c", "exit 3")[0] == 3
    assert run(tmp_path, "sh", "-c", "kill -9 $$")[0] == 137


@pytest.mark.parametrize(("name", "code"), [("no-such-program", 127), ("/etc/passwd", 126), ("./here", 127)])
def test_what_cannot_be_started_is_said(tmp_path: Path, name: str, code: int) -> None:
    with pytest.raises(SpawnError) as error:
        spawn([name], PATH, [str(tmp_path)], str(tmp_path / "log"))
    assert error.value.code == code


def test_what_is_left_of_its_process_group_ends_with_it(tmp_path: Path) -> None:
    _, pid = run(tmp_path, "sh", "-c", "sleep 600 & echo $!")
    eventually(lambda: not os.path.exists(f"/proc/{pid.strip()}"))


def test_a_child_does_not_outlive_us(tmp_path: Path) -> None:
    script = (
        "import os, sys; from aliquot.adapters.host.children import spawn;"
        f"print(spawn(['sleep', '600'], {PATH}, ['/'], '{tmp_path}/log'), flush=True); os.kill(os.getpid(), 9)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    eventually(lambda: not os.path.exists(f"/proc/{said.stdout.strip()}"))


def test_words_that_no_program_can_be_given_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpawnError, match=r"echo: .*surrogates not allowed"):
        spawn(["echo", "\ud800"], PATH, (str(tmp_path),), str(tmp_path / "log"))
