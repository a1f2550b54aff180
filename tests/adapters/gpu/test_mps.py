"""The control of a group starts where something is left of another one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aliquot.adapters.gpu import mps as module
from aliquot.adapters.gpu.mps import CONTROL, Mps, MpsError, logs, pipes, shm
from aliquot.adapters.host.process import processes
from aliquot.adapters.host.process.procscan import with_environment
from kit.machines.machine import eventually
from kit.running.scarcefiles import scarce_files

PROGRAM = """#!/bin/sh
[ "$1" = -f ] || exit 1
sleep 0.3
echo new > "$CUDA_MPS_PIPE_DIRECTORY/control"
exec sleep 600
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "group"
    made.mkdir()
    yield made
    processes.kill_all(with_environment("ALIQUOT_TENANT", str(made)))


@pytest.fixture
def mps(tmp_path: Path) -> Mps:
    program = tmp_path / "bin" / CONTROL
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    return Mps({}, {}, str(program.parent))


@pytest.mark.parametrize("left", ["socket", "file", "link"])
def test_start_waits_for_its_own_control_and_not_for_what_another_left(mps: Mps, folder: Path, left: str) -> None:
    if left == "socket":
        pipes(folder).mkdir()
        (pipes(folder) / "control").write_text("old")
    elif left == "file":
        pipes(folder).write_text("old")
    else:
        pipes(folder).symlink_to("nowhere")
    pid, started = mps.start(folder, os.geteuid(), ["GPU-0"])
    assert (pipes(folder) / "control").read_text() == "new\n"
    assert mps.running(folder) == (pid, started)


def test_control_that_cannot_be_noted_is_ended(mps: Mps, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done, noted = os.replace, []

    def full(old: str, new: str) -> None:
        noted.append(new)
        if len(noted) > 1:  # the first has no process yet
            raise OSError(28, "No space left on device")
        done(old, new)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(MpsError, match="No space left"):
        mps.start(folder, os.geteuid(), ["GPU-0"])
    eventually(lambda: not with_environment("ALIQUOT_TENANT", str(folder)))  # not even as `sleep 600`


@pytest.mark.parametrize("which", [logs, shm])
def test_folder_that_is_a_link_is_refused(mps: Mps, folder: Path, which: Callable[[Path], Path]) -> None:
    which(folder).symlink_to(folder.parent)
    with pytest.raises(MpsError, match=str(which(folder))):
        replace(mps, of_pods=True).start(folder, os.geteuid(), ["GPU-0"])


def test_folder_that_is_there_already_becomes_the_user_s(mps: Mps, folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    logs(folder).mkdir()
    os.chown(logs(folder), 65533, -1)
    mps.start(folder, 0, ["GPU-0"])
    assert logs(folder).stat().st_uid == 0


def test_control_that_cannot_be_ended_stays_known(mps: Mps, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> bool:
        raise PermissionError

    control = mps.start(folder, os.geteuid(), ["GPU-0"])
    with monkeypatch.context() as patch:
        patch.setattr(module, "_DIES", 0.1)
        patch.setattr(processes, "send_signal", forbidden)
        with pytest.raises(MpsError, match=f"process {control[0]}, cannot be ended"):
            mps.stop(folder)
    assert mps.running(folder) == control
    mps.stop(folder)
    assert not processes.lives(*control)
    assert not any(path.name.startswith(folder.name) for path in folder.parent.iterdir())


def test_control_and_its_folder_stay_while_no_file_is_left_to_look_for_it(mps: Mps, folder: Path) -> None:
    """Else it runs on for ever, and nobody knows of it."""
    control = mps.start(folder, os.geteuid(), ["GPU-0"])
    with scarce_files(0):
        with pytest.raises(OSError, match="Too many open files"):
            mps.running(folder)
        with pytest.raises(OSError, match="Too many open files"):
            mps.stop(folder)
    assert mps.running(folder) == control
    mps.stop(folder)
    assert not processes.lives(*control)
    assert not folder.exists()


def test_user_of_a_control_is_the_noted_one_and_not_the_folder_s(mps: Mps, folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    control = mps.start(folder, 0, ["GPU-0"])
    os.chown(folder, 65533, -1)
    mps.stop(folder)
    assert not processes.lives(*control)
