"""A tenant's folder, with the page and the door (a unix socket) in it.

A local tenant's are its user's alone. A Pod's containers run as any user, so all may use its page and come to its door;
only root changes the folder, and who reaches it at all is decided by what is mounted. The page is never replaced:
processes have it mapped, and containers have that very file mounted.

A release with another layout of the page writes its number beside it, into `version`; without that file it is 1. What
the page itself says of it is the tenant's word. A page of another layout is left alone: its processes go on by it.
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
from aliquot.model.tenant import Allotment

LAYOUT = "version"


def furnish(directory: Path, allotments: Sequence[Allotment], uid: int | None) -> tuple[Page, socket.socket]:
    """Make or adopt the folder; the page, and the door, listening. `uid` None: for everybody.

    What an older version left is put right: owners and modes are set each time. Raises OSError and PageError.
    """
    if uid is None:
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_layout(directory)
    page = Page(directory / "page", allotments)
    with contextlib.ExitStack() as undo:
        undo.callback(page.close)
        page.sweep()
        door = undo.enter_context(_open_door(directory / "sock", uid))
        if uid is None:
            os.fchmod(page.fileno(), 0o666)
            _open_folder(directory)
        elif os.geteuid() == 0:
            os.fchown(page.fileno(), uid, -1)
            os.chown(directory, uid, -1, follow_symlinks=False)
        undo.pop_all()
    return page, door


def _check_layout(directory: Path) -> None:
    """Raises PageError where the page is another release's, and we would write over what its processes read."""
    try:
        file = os.open(directory / LAYOUT, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # the first layout, or no page yet
    try:
        said = os.read(file, 16).decode(errors="replace").strip()
    finally:
        os.close(file)
    if said != str(VERSION):
        what = f"is of version {said or '?'}, and this release of aliquot has version {VERSION}"
        raise PageError(f"{directory / 'page'} {what}: make the Pod, or the run, anew")


def is_whole(directory: Path, page: Page) -> bool:
    """Whether whoever comes by the folder finds this page, and a door."""
    try:
        found = os.lstat(directory / "page")
        return os.path.samestat(found, os.fstat(page.fileno())) and stat.S_ISSOCK(os.lstat(directory / "sock").st_mode)
    except OSError:
        return False


def _open_folder(directory: Path) -> None:
    """All may look into it; only we change it."""
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.geteuid() == 0:
            os.fchown(folder, 0, -1)
        os.fchmod(folder, 0o755)
    finally:
        os.close(folder)


def _open_door(path: Path, uid: int | None) -> socket.socket:
    """The tenant's socket, listening. A door left by a daemon before us is replaced at once."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        os.fchmod(door.fileno(), 0o600)  # the name's mode when it is bound
        door.bind(str(fresh))
        if uid is None or os.geteuid() == 0:
            _give(fresh, uid)
        door.listen(64)
        door.setblocking(False)
        os.replace(fresh, path)
    except BaseException:
        door.close()
        raise
    return door


def _give(path: Path, uid: int | None) -> None:
    """The socket of that name to that user, or to all. The folder is theirs: by now the name may be another file's."""
    file = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        if not stat.S_ISSOCK(found.st_mode) or found.st_nlink > 1:  # linked there, it has the name of its own still
            raise FileExistsError(errno.EEXIST, "somebody put another file there", str(path))
        if uid is None:
            os.chmod(f"/proc/self/fd/{file}", 0o666)  # noqa: S103 - as the page: containers run as any user
        else:
            os.chown(f"/proc/self/fd/{file}", uid, -1)
    finally:
        os.close(file)
