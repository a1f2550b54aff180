"""The daemon's side of checkpoint.py: starts it, and looks whether it has ended. Nothing here waits."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from aliquot.adapters.host.process import ourselves
from aliquot.adapters.host.process.processes import start_time
from aliquot.services.mover.checkpoint import Answer, What
from aliquot.services.mover.client import MoverClient
from aliquot.services.mover.folder import is_private

_SLOWEST = 0.5e9  # bytes per second that the driver moves at least
_START = 20.0  # seconds for the process, the driver, and the lock


def patience(size: int) -> float:
    """Seconds in which so many bytes are moved, or never."""
    return _START + size / _SLOWEST


class Step(Protocol):
    """Something that goes on."""

    def poll(self, now: float) -> Answer | None:
        """What became of it; None: it goes on."""


class Checkpointer:
    """Begins steps for processes of one tenant."""

    def __init__(self, mover: MoverClient) -> None:
        self._mover = mover

    def begin(self, what: What, pids: Sequence[int], deadline: float) -> Step:
        """Kills it after the deadline: what it had the driver begin goes on."""
        locks = self._mover.folder / "checkpoints"
        known = [f"{pid}:{start_time(pid) or -1}" for pid in pids]
        command = ourselves.module("aliquot.services.mover.checkpoint", what, str(locks), *known)
        try:
            return _Process(command, self._mover.environment, locks.parent, deadline)
        except OSError as error:
            return _Refused(str(error))


class _Refused:
    def __init__(self, why: str) -> None:
        self._why = why

    def poll(self, _now: float) -> Answer:
        return Answer({}, self._why)


class _Process:
    def __init__(self, command: list[str], environment: Mapping[str, str], folder: Path, deadline: float) -> None:
        with contextlib.suppress(FileExistsError):  # the mover, which makes it otherwise, may not be there yet
            os.mkdir(folder, 0o700)
        if not is_private(folder):  # another user was there first, and would have the lock file
            raise PermissionError(f"{folder} is not ours alone")
        self._deadline, self._late = deadline, False
        self._process = subprocess.Popen(  # noqa: S603
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip

    def poll(self, now: float) -> Answer | None:
        if self._process.poll() is None:
            if now >= self._deadline and not self._late:
                self._late = True
                self._process.kill()
            return None
        assert self._process.stdout is not None
        with self._process.stdout as output:
            printed = output.read()
        if self._late:
            return Answer({}, "the driver did not answer in time")
        try:
            return msgspec.json.decode(printed, type=Answer)
        except msgspec.MsgspecError:
            return Answer({}, f"the process that asks the driver ended with {self._process.returncode}")
