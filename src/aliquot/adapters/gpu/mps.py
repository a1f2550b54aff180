"""NVIDIA's MPS: one control, and the server that it starts, for each group of docs/together.md.

A control belongs to the group's owner, has a folder of its own, and outlives the daemon. A file beside the folder names
its process; everything that was started for the folder is also known by a variable of its environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aliquot.adapters.host import processes
from aliquot.adapters.host.home import TENANT_VARIABLE, open_private
from aliquot.adapters.host.procscan import with_environment
from aliquot.adapters.storage.folders import remove_folder
from aliquot.model.environment import with_granted

CONTROL = "nvidia-cuda-mps-control"
PIPES_VARIABLE, LOGS_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_LONGEST = "/p/control_privileged"  # of the sockets in a group's folder
_SUN_PATH = 107  # bytes of a unix socket's name
_COMES_UP = 15.0  # seconds until it must listen
_QUITS = 10.0  # seconds until it must have ended when asked
_LOOK = 0.01
_children: dict[int, subprocess.Popen[bytes]] = {}  # controls that this process has started: it waits for them


class MpsError(Exception):
    """It cannot be started; the message says why, and what to do."""


def pipes(folder: Path) -> Path:
    """Where programs find the control."""
    return folder / "p"


def logs(folder: Path) -> Path:
    """Where control and server write their logs."""
    return folder / "l"


def too_long(folder: Path) -> int:
    """By how many bytes the path is too long for the sockets in it; 0: it is not."""
    return max(0, len(os.fsencode(str(folder))) + len(_LONGEST) - _SUN_PATH)


@dataclass(frozen=True, slots=True)
class Mps:
    """`environment` and `front` are those of every tenant: the server has the shim, which registers it."""

    environment: Mapping[str, str]
    front: Mapping[str, Sequence[str]]
    simulation: str | None = None  # the folder of the stand-ins

    def program(self) -> str | None:
        """The path of nvidia-cuda-mps-control; None: it is not installed."""
        return shutil.which(CONTROL, path=self.simulation)

    def start(self, folder: Path, user: int, cards: Sequence[str]) -> tuple[int, int]:
        """Start the control, unless it runs: its pid and start time. Returns when it listens. Raises MpsError."""
        running = self.running(folder)
        if running is not None:
            return running
        program = self.program()
        if program is None:
            raise MpsError(f"{CONTROL} is not installed")
        self._clear(program, folder, user)
        try:
            _make(folder, user)
            child = subprocess.Popen(  # noqa: S603
                [program, "-f"],
                env=self._environment(folder, cards),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
                start_new_session=True,
                **_identity(user),
            )  # fmt: skip
        except OSError as error:
            raise MpsError(f"{CONTROL} cannot be started: {error.filename or folder}: {error.strerror}") from error
        _children[child.pid] = child
        try:
            return self._wait_for(child, folder)
        except (MpsError, OSError) as error:
            child.kill()
            _children.pop(child.pid, None)  # `running` may have waited for it
            child.wait()
            raise error if isinstance(error, MpsError) else MpsError(f"{CONTROL} cannot be noted: {error}") from error

    def _wait_for(self, child: subprocess.Popen[bytes], folder: Path) -> tuple[int, int]:
        """Until it listens: its pid and start time. Raises MpsError, and OSError where it cannot be noted."""
        started = processes.start_time(child.pid)
        _note(folder, child.pid, started)
        deadline = time.monotonic() + _COMES_UP
        while started is None or not (pipes(folder) / "control").exists():
            if started is None or child.poll() is not None or time.monotonic() > deadline:
                raise MpsError(
                    f"{CONTROL} does not come up: read {logs(folder)}/control.log, or run without --together"
                )
            time.sleep(_LOOK)
        return child.pid, started

    def running(self, folder: Path) -> tuple[int, int] | None:
        """The pid and start time of the folder's control, if it lives. A child of ours that ended is waited for."""
        try:
            found = json.loads(_record(folder).read_text())
            pid, started = int(found["pid"]), int(found["started"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if processes.lives(pid, started) and found.get("boot") == processes.boot_id():
            return pid, started
        child = _children.get(pid)
        if child is not None and child.poll() is not None:
            _children.pop(pid, None)
        return None

    def stop(self, folder: Path) -> None:
        """End control and server, and remove the folder. Never raises for what is gone already."""
        with contextlib.suppress(OSError):
            user = os.lstat(folder).st_uid
            program = self.program()
            if program is not None and (pipes(folder) / "control").exists():
                self._quit(program, folder, user)
            self._end(folder, user)
        remove_folder(folder)
        for record in (_record(folder), _record(folder).with_suffix(".new")):
            record.unlink(missing_ok=True)

    def _environment(self, folder: Path, cards: Sequence[str]) -> dict[str, str]:
        base = {"PATH": os.environ.get("PATH", os.defpath)}
        own = {
            TENANT_VARIABLE: str(folder),
            PIPES_VARIABLE: str(pipes(folder)),
            LOGS_VARIABLE: str(logs(folder)),
            "CUDA_VISIBLE_DEVICES": ",".join(cards),  # by UUID: then a client's own list means the same cards
        }
        return with_granted(base, fixed={**self.environment, **own}, front=self.front)

    def _quit(self, program: str, folder: Path, user: int) -> None:
        # Without the shim: this process is of no tenant.
        env = {**self.environment, "PATH": os.defpath, PIPES_VARIABLE: str(pipes(folder))}
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(  # noqa: S603
                [program], input=b"quit -t 1\n", env=env, capture_output=True, timeout=_QUITS, check=False,
                cwd="/", **_identity(user),
            )  # fmt: skip

    def _clear(self, program: str, folder: Path, user: int) -> None:
        """Nothing is left of a control that was killed, or that a killed daemon did not note: a socket that is there
        already would look like one that listens. A server goes on for the members that it has."""
        if not os.path.lexists(pipes(folder)):
            return
        if (pipes(folder) / "control").exists():
            self._quit(program, folder, user)
        for pid, started in with_environment(TENANT_VARIABLE, str(folder), uid=user).items():
            if processes.program_of(pid) == CONTROL:
                with contextlib.suppress(PermissionError):
                    processes.send_signal(pid, signal.SIGKILL, started, user=user)
        remove_folder(pipes(folder))

    def _end(self, folder: Path, user: int) -> None:
        """What did not end when asked. By its user and environment: its server is not in its session."""
        running, deadline = self.running(folder), time.monotonic() + 1.0
        while running is not None and time.monotonic() < deadline:
            time.sleep(_LOOK)
            running = self.running(folder)
        for pid, started in with_environment(TENANT_VARIABLE, str(folder), uid=user).items():
            with contextlib.suppress(PermissionError):
                processes.send_signal(pid, signal.SIGKILL, started, user=user)
        self.running(folder)


def _record(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")


def _note(folder: Path, pid: int, started: int | None) -> None:
    fresh = _record(folder).with_suffix(".new")
    with open_private(str(fresh), os.O_TRUNC) as file:
        file.write(json.dumps({"pid": pid, "started": started, "boot": processes.boot_id()}).encode())
    os.replace(fresh, _record(folder))  # at once: without it, a daemon after a crash would know no control


def _make(folder: Path, user: int) -> None:
    """The folders for pipes and logs, the owner's own: nobody else may connect."""
    for made in (pipes(folder), logs(folder)):
        with contextlib.suppress(FileExistsError):
            made.mkdir(mode=0o700)
            if os.geteuid() == 0:
                opened = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:  # not by its path: the folder's owner may have put a file of somebody else there meanwhile
                    os.fchown(opened, user, -1)
                finally:
                    os.close(opened)


def _identity(user: int) -> dict[str, Any]:
    """The user that a child becomes."""
    if os.geteuid() != 0 or user == 0:
        return {}
    try:
        entry = pwd.getpwuid(user)
        return {"user": user, "group": entry.pw_gid, "extra_groups": os.getgrouplist(entry.pw_name, entry.pw_gid)}
    except KeyError:  # a user without a name
        return {"user": user, "group": user, "extra_groups": []}
