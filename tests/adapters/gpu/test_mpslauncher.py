"""The launcher of a group's MPS control on a node: from the agent's container to the host, as the group's user."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.adapters.gpu import mpslauncher
from aliquot.adapters.gpu.mpslauncher import FAILED, HOST

USER = 65533
NODE = ("unshare", "-m", "-p", "-f", "--mount-proc")  # a machine with a process 1 of its own
LOOK = "ls {folder}; ls /dev/shm; id -u; id -g; cat /proc/self/oom_score_adj"


@pytest.fixture
def folder() -> Iterator[Path]:
    """With the files of the host, and a folder for /dev/shm."""
    allowed = subprocess.run([*NODE, "true"], capture_output=True, check=False)
    if os.geteuid() != 0 or allowed.returncode != 0:
        pytest.skip("needs root that may mount")
    with tempfile.TemporaryDirectory(prefix="alq") as made:
        Path(made).chmod(0o755)
        for name in ("seen", "shm"):
            (Path(made) / name).mkdir(mode=0o755)
        (Path(made) / "seen" / "host").touch()
        (Path(made) / "shm" / "shared").touch()
        yield Path(made)


def launched(folder: Path, enter: str, shm: str | None = None, user: int = USER) -> subprocess.CompletedProcess[str]:
    """From mounts of its own, as in a container: there the folder has another file."""
    seen, shm = folder / "seen", str(folder / "shm") if shm is None else shm
    look = LOOK.format(folder=seen)
    words = [sys.executable, "-I", mpslauncher.__file__, str(user), shm, enter, "/bin/sh", "-c", look]
    inside = f'mount -t tmpfs none {seen} && touch {seen}/container && echo 500 > /proc/self/oom_score_adj && exec "$@"'
    node = [*NODE, "sh", "-c", '"$@"; exit $?', "sh"]  # this shell is its process 1
    return subprocess.run(
        [*node, "unshare", "-m", "sh", "-c", inside, "sh", *words], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("enter", "seen"), [("", "container"), (HOST, "host")])
def test_control_sees_the_host_and_the_group_s_shared_memory_as_its_user(folder: Path, enter: str, seen: str) -> None:
    done = launched(folder, enter)
    assert (done.returncode, done.stdout.split()) == (0, [seen, "shared", str(USER), "65534", "0"]), done.stderr
    assert "shared" not in os.listdir("/dev/shm"), "nobody else has it there"


def test_error_of_the_launcher_is_its_exit_status(folder: Path) -> None:
    assert launched(folder, "", str(folder / "missing")).returncode == FAILED + errno.ENOENT


@pytest.mark.parametrize("user", [0, -1])
def test_root_is_refused(folder: Path, user: int) -> None:
    done = launched(folder, "", user=user)
    assert (done.returncode, done.stdout) == (FAILED + errno.EINVAL, "")
