"""A tenant's folder, with its shared page and its unix socket.

Those of a run belong to its user alone. A Pod's containers run as any user, so all users may use the page and connect
to the socket; only root changes the folder, and the mounts decide who reaches it at all. The page is never replaced:
processes have it mapped, and containers have that very file mounted.

A release with another layout of the page writes the layout's number to the file `version`; without that file it is 1.
The number on the page itself cannot be trusted: the tenant can write it. A page of another layout is left alone: its
processes go on to use it.

The folder of a run is its user's, who may have mounted a file system there that never answers: nothing is looked at but
through adapters/host/samemount.py, and the folder by one handle.
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
from aliquot.adapters.host import samemount
from aliquot.adapters.host.handedfiles import Listener
from aliquot.model.tenant import Allotment

LAYOUT = "version"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_FIRST_SWEEP = 0.001  # seconds of the processor: a daemon that starts adopts hundreds of pages. The arbiter sweeps on


def prepare_folder(
    directory: Path, allotments: Sequence[Allotment], uid: int | None, *, folder_too: bool = True
) -> tuple[Page, Listener]:
    """Create or adopt the folder. Returns its page, and its socket, which listens. `uid` None: for all users.
    `folder_too`: the folder itself belongs to the user as well; runtime/together/groups.py makes that of a group.

    Owners and modes are set each time, which corrects those of an older version. Raises OSError and PageError.
    """
    if uid is None:
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    with contextlib.ExitStack() as undo:
        folder = samemount.open_path(directory, _FOLDER)
        undo.callback(os.close, folder)
        _check_layout(folder, directory)
        page = Page(directory / "page", allotments, folder=folder)
        undo_page = undo.enter_context(contextlib.ExitStack())
        undo_page.callback(page.close)
        page.sweep(seconds=_FIRST_SWEEP)
        listener = undo_page.enter_context(_listen(folder, uid))
        if uid is None:
            os.fchmod(page.fileno(), 0o666)
            _open_folder(folder)
        elif os.geteuid() == 0:
            os.fchown(page.fileno(), uid, -1)
            if folder_too:
                os.fchown(folder, uid, -1)
        undo_page.pop_all()
    return page, listener


def _check_layout(folder: int, directory: Path) -> None:
    """Raise PageError if the page has another layout: we would overwrite what its processes read."""
    try:
        file = samemount.open_in(folder, LAYOUT, os.O_RDONLY | os.O_NONBLOCK)
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
    """Whether the folder still has this page, and a socket. Raises OSError if that cannot be found out, as without a
    free file: what is there must not be replaced then."""
    try:
        folder = samemount.open_path(directory, os.O_PATH | os.O_DIRECTORY)
        try:
            is_page = os.path.samestat(samemount.lstat_in(folder, "page"), os.fstat(page.fileno()))
            return is_page and stat.S_ISSOCK(samemount.lstat_in(folder, "sock").st_mode)
        finally:
            os.close(folder)
    except OSError as error:
        if error.errno not in (*samemount.NO_SUCH, errno.ELOOP, errno.EXDEV):
            raise
        return False


def _open_folder(folder: int) -> None:
    """Let all users read the folder, and only us change it."""
    if os.geteuid() == 0:
        os.fchown(folder, 0, -1)
    os.fchmod(folder, 0o755)


def _listen(folder: int, uid: int | None) -> Listener:
    """The tenant's socket, which listens. It replaces the socket of an earlier daemon atomically."""
    listener = Listener(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        fresh = f".sock.{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh, dir_fd=folder)
        os.fchmod(listener.fileno(), 0o600)  # becomes the file's mode on bind
        listener.bind(f"/proc/self/fd/{folder}/{fresh}")
        if uid is None or os.geteuid() == 0:
            _give(folder, fresh, uid)
        listener.listen(64)
        listener.setblocking(False)
        os.replace(fresh, "sock", src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        listener.close()
        raise
    return listener


def _give(folder: int, name: str, uid: int | None) -> None:
    """Give the socket to that user, or to all. The folder is the user's: the name may be another file's by now."""
    file = samemount.open_in(folder, name, os.O_PATH)
    try:
        found = os.fstat(file)
        if not stat.S_ISSOCK(found.st_mode) or found.st_nlink > 1:  # a hard link to another socket
            raise FileExistsError(errno.EEXIST, "another file was put there", name)
        if uid is None:
            os.chmod(f"/proc/self/fd/{file}", 0o666)  # noqa: S103 - as the page: containers run as any user
        else:
            os.chown(f"/proc/self/fd/{file}", uid, -1)
    finally:
        os.close(file)
