"""The control of a group starts where something is left of another one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.adapters.gpu.mps import CONTROL, Mps, MpsError, pipes
from aliquot.adapters.host import processes
from aliquot.adapters.host.procscan import with_environment
from kit.machine import eventually

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
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(MpsError, match="No space left"):
        mps.start(folder, os.geteuid(), ["GPU-0"])
    eventually(lambda: not with_environment("ALIQUOT_TENANT", str(folder)))  # not even as `sleep 600`
