"""Starts the supervisor processes of local Pods: as the Pod's owner, in sessions of their own."""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess

from aliquot.adapters.host import samemount
from aliquot.adapters.host.process import ourselves, processes
from aliquot.model.containers.localpod import Applier

SUPERVISOR = "aliquot.services.machine.pods.supervisor"  # the module that runs as the process
_OURS = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "LANG", "LC_ALL", "TZ")


class SupervisorError(Exception):
    """The supervisor cannot be started; the message says why."""


class Supervisors:
    """Starts them, and waits for those that are our children: a zombie would never be gone."""

    def __init__(self, control: str) -> None:
        self._control = control
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, uid: str, owner: Applier, log: str, environment: dict[str, str]) -> tuple[int, int]:
        """Its pid and start time. Raises SupervisorError."""
        given = {name: os.environ[name] for name in _OURS if name in os.environ}
        try:
            child = subprocess.Popen(  # noqa: S603 - ourselves
                ourselves.module(SUPERVISOR, self._control, uid, log, *_identity(owner)),
                env={"PATH": os.environ.get("PATH", os.defpath), **given, **environment},
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise SupervisorError(
                f"its supervisor cannot be started: {error.filename or log}: {error.strerror}"
            ) from error
        self._children[child.pid] = child
        started = processes.start_time(child.pid)
        if started is None:
            self.reap(child.pid)
            raise SupervisorError("its supervisor ended at once")
        return child.pid, started

    def reap(self, pid: int) -> None:
        """The process is gone: collect its exit code."""
        child = self._children.pop(pid, None)
        if child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0.5)


def _identity(owner: Applier) -> list[str]:
    """The user that the supervisor becomes once it has loaded its modules, which that user may not be able to read."""
    if os.geteuid() != 0 or owner.user == 0:  # only root can switch users
        return []
    try:
        groups = os.getgrouplist(pwd.getpwuid(owner.user).pw_name, owner.group)
    except KeyError:  # a user without a name
        groups = [owner.group]
    return [str(owner.user), str(owner.group), ",".join(map(str, groups))]


def make_log_folder(folder: str, owner: Applier) -> None:
    """The owner's alone. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        os.makedirs(folder, mode=0o700)
    opened = samemount.open_path(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if os.geteuid() == 0:
            os.fchown(opened, owner.user, owner.group)
    finally:
        os.close(opened)
