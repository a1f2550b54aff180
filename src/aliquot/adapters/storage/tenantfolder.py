"""A tenant's folder, with its shared page and its unix socket.

Those of a run belong to its user alone. A Pod's containers run as any user, so all users may use the page and connect
to the socket; only root changes the folder, and the mounts decide who reaches it at all. The page is never replaced:
processes have it mapped, and containers have that very file mounted.

A release with another layout of the page writes the layout's number to the file `version`; without that file it is 1.
The number on the page itself cannot be trusted: the tenant can write it. A page of another layout is left alone: its
processes go on to use it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Sequence
from pathlib import Path

from aliquot.adapters.gpu.page import VERSION, Page, PageError
from aliquot.adapters.host.handedfiles import Listener
from aliquot.model.tenant import Allotment

LAYOUT = "version"


def prepare_folder(
    directory: Path, allotments: Sequence[Allotment], uid: int | None, *, folder_too: bool = True
) -> tuple[Page, Listener]:
    """Create or adopt the folder. Returns its page, and its socket, which listens. `uid` None: for all users.
    `folder_too`: the folder itself belongs to the user as well; runtime/together/groups.py makes that of a group.

    Owners and modes are set each time, which corrects those of an older version. Raises OSError and PageError.
    """
    if uid is None:
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_layout(directory)
    page = Page(directory / "page", allotments)
    with contextlib.ExitStack() as undo:
        undo.callback(page.close)
        page.sweep()
        listener = undo.enter_context(_listen(directory / "sock", uid))
        if uid is None:
            os.fchmod(page.fileno(), 0o666)
            _open_folder(directory)
        elif os.geteuid() == 0:
            os.fchown(page.fileno(), uid, -1)
            if folder_too:
                os.chown(directory, uid, -1, follow_symlinks=False)
        undo.pop_all()
    return page, listener


def _check_layout(directory: Path) -> None:
    """Raise PageError if the page has another layout: we would overwrite what its processes read."""
    try:
        file = os.open(directory / LAYOUT, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # the first layout, or no page yet
    try:
        version = os.read(file, 16).decode(errors="replace").strip()
    finally:
        os.close(file)
    if version != str(VERSION):
        what = f"is of version {version or '?'}, and this release of aliquot has version {VERSION}"
        raise PageError(f"{directory / 'page'} {what}: create the Pod again, or start the run again")


def is_whole(directory: Path, page: Page) -> bool:
    """Whether the folder still has this page, and a socket."""
    try:
        found = os.lstat(directory / "page")
        return os.path.samestat(found, os.fstat(page.fileno())) and stat.S_ISSOCK(os.lstat(directory / "sock").st_mode)
    except OSError:
        return False


def _open_folder(directory: Path) -> None:
    """Let all users read the folder, and only us change it."""
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.geteuid() == 0:
            os.fchown(folder, 0, -1)
        os.fchmod(folder, 0o755)
    finally:
        os.close(folder)


def _listen(path: Path, uid: int | None) -> Listener:
    """The tenant's socket, which listens. It replaces the socket of an earlier daemon atomically."""
    listener = Listener(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        os.fchmod(listener.fileno(), 0o600)  # becomes the file's mode on bind
        listener.bind(str(fresh))
        if uid is None or os.geteuid() == 0:
            _give(fresh, uid)
        listener.listen(64)
        listener.setblocking(False)
        os.replace(fresh, path)
    except BaseException:
        listener.close()
        raise
    return listener


def _give(path: Path, uid: int | None) -> None:
    """Give the socket to that user, or to all. The folder is the user's: the name may be another file's by now."""
    file = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        if not stat.S_ISSOCK(found.st_mode) or found.st_nlink > 1:  # a hard link to another socket
            raise FileExistsError(errno.EEXIST, "another file was put there", str(path))
        if uid is None:
            os.chmod(f"/proc/self/fd/{file}", 0o666)  # noqa: S103 - as the page: containers run as any user
        else:
            os.chown(f"/proc/self/fd/{file}", uid, -1)
    finally:
        os.close(file)
