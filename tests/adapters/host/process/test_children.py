"""Children in sessions of their own, and everyone who came of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aliquot.adapters.host.process.children import SpawnError, ended, spawn
from kit.machines.machine import eventually

PATH = {"PATH": "/usr/bin:/bin"}


def run(tmp_path: Path, *command: str, folders: tuple[str, ...] = (), **environment: str) -> tuple[int, str]:
    """Its exit code and output."""
    log = tmp_path / "log"
    child = spawn(command, {**PATH, **environment}, folders or (str(tmp_path),), str(log))
    codes: dict[int, int] = {}  # with children that other tests left behind

    def is_over() -> bool:
        codes.update(ended())
        return child in codes

    eventually(is_over)
    return codes[child], log.read_text()


def test_spawn_sets_environment_folder_and_log(tmp_path: Path) -> None:
    assert run(tmp_path, "sh", "-c", "echo $A; pwd", A="1") == (0, f"1\n{tmp_path}\n")


def test_spawn_uses_the_first_folder_that_exists(tmp_path: Path) -> None:
    assert run(tmp_path, "pwd", folders=("/no/such", str(tmp_path), "/")) == (0, f"{tmp_path}\n")


def test_spawn_appends_to_the_log(tmp_path: Path) -> None:
    run(tmp_path, "echo", "1")
    assert run(tmp_path, "echo", "2") == (0, "1\n2\n")


def test_ended_has_shell_exit_codes(tmp_path: Path) -> None:
    assert run(tmp_path, "sh", "-c", "exit 3")[0] == 3
    assert run(tmp_path, "sh", "-c", "kill -9 $$")[0] == 137


@pytest.mark.parametrize(("name", "code"), [("no-such-program", 127), ("/etc/passwd", 126), ("./here", 127)])
def test_spawn_reports_what_cannot_be_started(tmp_path: Path, name: str, code: int) -> None:
    with pytest.raises(SpawnError) as error:
        spawn([name], PATH, [str(tmp_path)], str(tmp_path / "log"))
    assert error.value.code == code


def test_ended_kills_the_rest_of_the_process_group(tmp_path: Path) -> None:
    _, pid = run(tmp_path, "sh", "-c", "sleep 600 & echo $!")
    eventually(lambda: not os.path.exists(f"/proc/{pid.strip()}"))


def test_a_child_does_not_outlive_us(tmp_path: Path) -> None:
    script = (
        "import os, sys; from aliquot.adapters.host.process.children import spawn;"
        f"print(spawn(['sleep', '600'], {PATH}, ['/'], '{tmp_path}/log'), flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    eventually(lambda: not os.path.exists(f"/proc/{done.stdout.strip()}"))


def test_spawn_refuses_words_that_cannot_be_passed(tmp_path: Path) -> None:
    with pytest.raises(SpawnError, match=r"echo: .*surrogates not allowed"):
        spawn(["echo", "\ud800"], PATH, (str(tmp_path),), str(tmp_path / "log"))
