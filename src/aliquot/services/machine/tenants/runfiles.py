"""The name of a run and its files: its folder and its log."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Container
from pathlib import Path

from aliquot.adapters.host import logfiles, samemount
from aliquot.adapters.host.home import Home
from aliquot.adapters.storage.folders import remove_file, remove_folder
from aliquot.adapters.storage.store import Store
from aliquot.model.refusal import Invalid
from aliquot.services.daemon.control import Caller, RefusedError, invalid
from aliquot.services.machine.requests import RunRequest, readable_name

_LOG = logging.getLogger("aliquot.tenants")


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
        if samemount.exists(path) and caller.uid not in (0, os.geteuid(), samemount.lstat(path).st_uid):
            raise invalid(Invalid("name", name, "the log of another user's run has this name"))
        if _writes_to(caller.pid, path):  # it waited for a daemon before us, and what it says next goes there
            return path
        with contextlib.suppress(FileNotFoundError):
            remove_file(Path(path))  # not cut: `logs -f` of the earlier run reads it to its end
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            if os.geteuid() == 0:
                os.fchown(file.fileno(), caller.uid, caller.gid)
        with contextlib.suppress(FileNotFoundError):
            remove_file(Path(path + logfiles.OLDER))  # of an earlier run of that name
    except OSError as error:
        raise RefusedError("failed", text=f"{path}: {error.strerror}") from error
    return path


def _writes_to(pid: int, path: str) -> bool:
    """Whether that is the standard output of the process. By name: to look at another's file may take forever."""
    try:
        folder, name = os.path.split(path)
        return os.readlink(f"/proc/{pid}/fd/1") == os.path.join(os.path.realpath(folder), name)
    except OSError:
        return False


def remove_log(path: str | None) -> None:
    """The run never started."""
    if path is not None:
        for part in logfiles.parts(path):
            with contextlib.suppress(OSError):
                remove_file(Path(part))


def remove_strays(tenants: str, known: Container[str]) -> None:
    """Folders of tenants that never started because the daemon was killed before it answered."""
    for entry in os.scandir(tenants):
        if entry.is_dir(follow_symlinks=False) and entry.name not in known:
            remove_folder(Path(entry.path))
        elif entry.name.endswith(".json") and entry.name[:-5] not in known:
            os.unlink(entry.path)


class RunNames:
    """Names of runs. Those without one of their own are numbered, also over restarts."""

    def __init__(self, home: Home, store: Store) -> None:
        self._home, self._store = home, store
        self._serial = int(store.setting("serial") or 0)  # of the last run without a name of its own

    def new(self, request: RunRequest, taken: Container[str]) -> str:
        """The name that the request asks for, or one that is free. Raises RefusedError."""
        if request.name is not None:
            if request.name in taken:
                raise invalid(Invalid("name", request.name, "another run has this name; `aliquot ps` lists it"))
            return request.name
        while True:
            self._serial += 1
            name = f"{readable_name(request.command)}-{self._serial}"
            log = self._home.log_of(name)
            try:
                if name not in taken and not samemount.exists(log):
                    break
            except OSError as error:
                raise RefusedError("failed", text=f"{log}: {error.strerror}") from error
        serial = str(self._serial)
        self._store.writer.put_newest(
            "serial", lambda: self._store.set("serial", serial), log_error("serial_not_stored", name)
        )
        return name


def log_error(key: str, name: str) -> Callable[[Exception | None], None]:
    """Logs what went wrong in a write that is done later, for the tenant of that name."""

    def log(error: Exception | None) -> None:
        if error is not None:
            _LOG.error(key, extra={"data": {"tenant": name, "error": str(error)}})

    return log
