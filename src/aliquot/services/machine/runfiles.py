"""The files of a run: its folder and its log."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container
from pathlib import Path

from aliquot.adapters.host import logfiles
from aliquot.adapters.host.home import Home
from aliquot.adapters.storage.folders import remove_folder
from aliquot.model.refusal import Invalid
from aliquot.services.daemon.control import Caller, RefusedError, invalid


def new_id(home: Home) -> str:
    """An id for a tenant. Of fixed length: it is part of a socket path."""
    while True:
        name = os.urandom(5).hex()
        if not os.path.exists(f"{home.tenants}/{name}"):
            return name


def make_folder(folder: Path, uid: int, gid: int) -> None:
    """The folder of a tenant. Raises OSError."""
    folder.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(folder, uid, gid)


def new_log(path: str, name: str, caller: Caller) -> str:
    """An empty log for the run of that name. Raises RefusedError."""
    try:
        # Only the daemon can write to the folder, so there is no race between check and open.
        if os.path.lexists(path) and caller.uid not in (0, os.geteuid(), os.lstat(path).st_uid):
            raise invalid(Invalid("name", name, "another name: the log of another user's run has this name"))
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
            if os.geteuid() == 0:
                os.fchown(file.fileno(), caller.uid, caller.gid)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + logfiles.OLDER)  # of an earlier run of that name
    except OSError as error:
        raise RefusedError("failed", text=f"{path}: {error.strerror}") from error
    return path


def remove_log(path: str | None) -> None:
    """The run never started."""
    if path is not None:
        logfiles.remove(path)


def remove_strays(tenants: str, known: Container[str]) -> None:
    """Folders of tenants that never started because the daemon was killed before it answered."""
    for entry in os.scandir(tenants):
        if entry.is_dir(follow_symlinks=False) and entry.name not in known:
            remove_folder(Path(entry.path))
        elif entry.name.endswith(".json") and entry.name[:-5] not in known:
            os.unlink(entry.path)
