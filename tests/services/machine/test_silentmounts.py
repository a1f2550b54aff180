"""A user mounts file systems that never answer over what is theirs in the daemon's folders: others are served."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.adapters.host.process import exitcodes
from aliquot.services.daemon.control import Caller, RefusedError
from aliquot.services.machine.logs import RunLogs
from aliquot.services.machine.tenants.runfiles import new_log
from kit.machines.machine import FOREVER, Machine, eventually, paper
from kit.machines.silentmount import mounts_below, silent_mount

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
MOST = 5.0  # seconds, also on a busy machine; the mount answers after 30


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    there = paper()
    there.up()
    yield there
    there.close()


def answer_to(machine: Machine, *words: str) -> subprocess.CompletedProcess[str]:
    """Of a command, in time."""
    began = time.monotonic()
    done = machine.aliquot(*words)
    assert time.monotonic() - began < MOST + 5, "with the start of the command"
    return done


@pytest.mark.parametrize("within", [".", exitcodes.FILE, "page"])
def test_mount_over_the_folder_of_a_run_that_ends_holds_up_nobody(machine: Machine, within: str) -> None:
    name = machine.detach("--memory", "1", "--", *FOREVER)
    tenant = next(tenant for tenant in machine.status()["tenants"] if tenant["name"] == name)
    folder = machine.home / "t" / tenant["id"]
    (folder / within).touch()
    with silent_mount(folder / within):
        began = time.monotonic()
        assert machine.aliquot("stop", name).returncode == 0
        eventually(lambda: name not in machine.names())
        eventually(lambda: not folder.exists())
        assert time.monotonic() - began < MOST + 10
        assert mounts_below(machine.home) == []


def test_mount_over_a_log_holds_up_nobody(machine: Machine) -> None:
    name = machine.detach("--memory", "1", "--name", "mine", "--", "true")
    eventually(lambda: name not in machine.names())
    with silent_mount(machine.home / "logs" / "mine.log"):
        assert answer_to(machine, "logs", "mine").returncode != 0
        refused = answer_to(machine, "run", "-d", "--memory", "1", "--name", "mine", "--", "true")
        assert "somebody has mounted a file system there" in refused.stderr
        assert answer_to(machine, "run", "-d", "--memory", "1", "--", "true").returncode == 0


def test_logs_of_others_are_bounded_beside_a_mount(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.log").write_bytes(b"x" * 10_000)
    caller = Caller(os.getpid(), 70001, 70001)
    with silent_mount(tmp_path / "b.log"):
        began = time.monotonic()
        RunLogs(str(tmp_path), 8000, set).look(set())
        with pytest.raises(RefusedError):
            new_log(str(tmp_path / "b.log"), "b", caller)
        assert time.monotonic() - began < MOST
    assert [(tmp_path / f"{name}.log").stat().st_size for name in ("a", "b", "c")] == [0, 10_000, 0]
