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
from typing import TypedDict

from aliquot.adapters.gpu import mpslauncher
from aliquot.adapters.host.home import TENANT_VARIABLE, open_private
from aliquot.adapters.host.process import ourselves, processes
from aliquot.adapters.host.process.procscan import with_environment
from aliquot.adapters.storage.folders import remove_folder
from aliquot.model.containers.environment import with_granted

CONTROL = "nvidia-cuda-mps-control"
_ON_HOSTS = tuple(f"{folder}/{CONTROL}" for folder in ("/usr/bin", "/bin", "/usr/local/bin", "/usr/local/nvidia/bin"))
PIPES_VARIABLE, LOGS_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_LONGEST = "/p/control_privileged"  # of the sockets in a group's folder
_SUN_PATH = 107  # bytes of a unix socket's name
_COMES_UP = 15.0  # seconds until it must listen
_QUITS = 10.0  # seconds until it must have ended when asked
_DIES = 5.0  # seconds until it must have ended when killed
_LOOK = 0.01
_children: dict[int, subprocess.Popen[bytes]] = {}  # controls that this process has started: it waits for them


class Identity(TypedDict, total=False):
    """The user that a child becomes, as subprocess takes it. Empty: our own."""

    user: int
    group: int
    extra_groups: list[int]


class MpsError(Exception):
    """MPS cannot be started. The message says why, and what to do."""


def pipes(folder: Path) -> Path:
    """Where programs find the control."""
    return folder / "p"


def logs(folder: Path) -> Path:
    """Where control and server write their logs."""
    return folder / "l"


def shm(folder: Path) -> Path:
    """What containers of a group's Pods, and their server, have at /dev/shm."""
    return folder / "s"


def preloaded(groups: Path) -> set[Path]:
    """The libraries that the controls in this folder of groups give to the servers that they start."""
    found: set[Path] = set()
    for record in groups.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            found |= {Path(path) for path in json.loads(record.read_text()).get("preload", ())}
    return found


def too_long(folder: Path) -> int:
    """By how many bytes the path is too long for the sockets in it; 0: it is not."""
    return max(0, len(os.fsencode(str(folder))) + len(_LONGEST) - _SUN_PATH)


@dataclass(frozen=True, slots=True)
class Mps:
    """`environment` and `front` are those of every tenant: the server has the shim, which registers it."""

    environment: Mapping[str, str]
    front: Mapping[str, Sequence[str]]
    simulation: str | None = None  # the folder of the stand-ins
    of_pods: bool = False  # members are in containers, and the control is not to end with the agent's (mpslauncher.py)

    def program(self) -> str | None:
        """The path of nvidia-cuda-mps-control; None: it is not installed."""
        if self._enters_host:  # by its name alone: a link there is to a path of the host
            return next((path for path in _ON_HOSTS if os.path.lexists(f"/proc/1/root{path}")), None)
        return shutil.which(CONTROL, path=self.simulation)

    @property
    def _enters_host(self) -> bool:
        return self.of_pods and self.simulation is None and mpslauncher.is_elsewhere()

    def _command(self, program: str, *arguments: str, user: int, shm: str = "") -> tuple[list[str], Identity]:
        """What to execute so that the program runs as that user, and with which of Popen's options."""
        if not self.of_pods:
            return [program, *arguments], _identity(user)
        enter = mpslauncher.HOST if self._enters_host else ""
        words = (str(user), shm, enter, program, *arguments)
        return ourselves.script(mpslauncher.__file__, *words, site=True), {}

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
            _make(user, [pipes(folder), logs(folder), *([shm(folder)] if self.of_pods else [])])
            _note(folder, user, None, None, self._preload)  # first: a daemon that is killed now shall know its user
            command, more = self._command(program, "-f", user=user, shm=str(shm(folder)))
            child = subprocess.Popen(  # noqa: S603
                command,
                env=self._environment(folder, cards),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
                start_new_session=True,
                **more,
            )  # fmt: skip
        except OSError as error:
            raise MpsError(f"{CONTROL} cannot be started: {error.filename or folder}: {error.strerror}") from error
        _children[child.pid] = child
        try:
            return self._wait_for(child, folder, user)
        except (MpsError, OSError) as error:
            child.kill()
            _children.pop(child.pid, None)  # `running` may have waited for it
            child.wait()
            raise (
                error
                if isinstance(error, MpsError)
                else MpsError(f"the process of {CONTROL} cannot be written down: {error}")
            ) from error

    @property
    def _preload(self) -> Sequence[str]:
        return self.front.get("LD_PRELOAD", ())

    def _wait_for(self, child: subprocess.Popen[bytes], folder: Path, user: int) -> tuple[int, int]:
        """Until it listens: its pid and start time. Raises MpsError, and OSError where it cannot be noted."""
        started = processes.start_time(child.pid)
        _note(folder, user, child.pid, started, self._preload)
        deadline = time.monotonic() + _COMES_UP
        while started is None or not (pipes(folder) / "control").exists():
            if started is None or child.poll() is not None or time.monotonic() > deadline:
                raise MpsError(self._why_down(child, folder))
            time.sleep(_LOOK)
        return child.pid, started

    def _why_down(self, child: subprocess.Popen[bytes], folder: Path) -> str:
        code = child.poll()
        if self.of_pods and code is not None and code > mpslauncher.FAILED:
            why = os.strerror(code - mpslauncher.FAILED)
            return f"{CONTROL} cannot be started on the node: {why}: the agent's container must be privileged"
        return f"{CONTROL} does not come up: read {logs(folder)}/control.log, or run without --together"

    def running(self, folder: Path) -> tuple[int, int] | None:
        """The pid and start time of the folder's control, if it lives. A child of ours that ended is waited for. Raises
        OSError where we lack files to read that."""
        try:
            found = json.loads(_record(folder).read_text())
            pid, started = int(found["pid"]), int(found["started"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, OSError) and processes.is_shortage(error):
                raise
            return None
        if processes.lives(pid, started) and found.get("boot") == processes.boot_id():
            return pid, started
        child = _children.get(pid)
        if child is not None and child.poll() is not None:
            _children.pop(pid, None)
        return None

    def stop(self, folder: Path) -> None:
        """End control and server, and remove the folder. Never raises for what is gone already; raises MpsError, and
        keeps the record, if the control cannot be ended. Raises OSError where we lack files to find that out."""
        with contextlib.suppress(OSError):
            user = _user(folder)
            program = self.program()
            if program is not None and (pipes(folder) / "control").exists():
                self._quit(program, folder, user)
            self._end(folder, user)
        running = self.running(folder)
        if running is not None:
            raise MpsError(
                f"{CONTROL}, process {running[0]}, cannot be ended: may the daemon or agent end processes of other "
                "users? On a node set chart value agent.together.enabled=true again, or end the process by hand"
            )
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
        command, more = self._command(program, user=user)
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(  # noqa: S603
                command, input=b"quit -t 1\n", env=env, capture_output=True, timeout=_QUITS, check=False,
                cwd="/", **more,
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
        deadline = time.monotonic() + _DIES
        while self.running(folder) is not None and time.monotonic() < deadline:
            time.sleep(_LOOK)


def _record(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")


def _user(folder: Path) -> int:
    """Whose control it is. Raises OSError if nothing is there, or we lack files to read it."""
    try:
        return int(json.loads(_record(folder).read_text())["user"])
    except (OSError, ValueError, KeyError, TypeError) as error:  # of an older release
        if isinstance(error, OSError) and processes.is_shortage(error):
            raise
        return os.lstat(folder).st_uid


def _note(folder: Path, user: int, pid: int | None, started: int | None, preload: Sequence[str]) -> None:
    fresh = _record(folder).with_suffix(".new")
    with open_private(str(fresh), os.O_TRUNC) as file:
        found = {"user": user, "pid": pid, "started": started, "boot": processes.boot_id()}
        file.write(json.dumps({**found, "preload": list(preload)}).encode())
    os.replace(fresh, _record(folder))  # at once: without it, a daemon after a crash would know no control


def _make(user: int, folders: Sequence[Path]) -> None:
    """The folders for pipes, logs and shared memory, the owner's own: no other user may connect. Raises OSError, also
    for a link."""
    for made in folders:
        with contextlib.suppress(FileExistsError):
            made.mkdir(mode=0o700)
        opened = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:  # not by its path: the folder's owner may have put another user's file there meanwhile
            if os.geteuid() == 0:
                os.fchown(opened, user, -1)
        finally:
            os.close(opened)


def _identity(user: int) -> Identity:
    if os.geteuid() != 0 or user == 0:
        return {}
    try:
        entry = pwd.getpwuid(user)
        return {"user": user, "group": entry.pw_gid, "extra_groups": os.getgrouplist(entry.pw_name, entry.pw_gid)}
    except KeyError:  # a user without a name
        return {"user": user, "group": user, "extra_groups": []}
