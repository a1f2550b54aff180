"""Makes and locks a daemon's home. One daemon per home, by a file lock that the kernel drops with the process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterable, Mapping
from glob import escape, glob
from pathlib import Path

from aliquot.adapters.host.home import Home, make_private
from aliquot.adapters.host.process.processes import own_number


class AlreadyRunningError(Exception):
    """Another daemon has this home."""


class StartError(Exception):
    """The daemon cannot start; the message says why."""


def make_home(home: Home) -> None:
    """Make its folders. Other users may pass through to what is theirs: tenants' folders and logs, whose names they
    know. They can neither list nor read anything else: earlier releases left files that everybody could read."""
    home.check()
    for folder in (home.run, home.state, home.tenants, home.logs):
        make_folder(folder, 0o711)
    several = (path for start in (home.database, home.daemon_log) for path in glob(f"{escape(start)}*"))
    for path in (home.lock, home.player, home.player_log, *several):
        with contextlib.suppress(FileNotFoundError):
            make_private(path)


def make_folder(
    folder: str, mode: int, *, advice: str = "set ALIQUOT_HOME to a folder that you own", for_root: bool = False
) -> None:
    """Make the folder with that mode; it must be ours. Raises StartError, with the advice.

    `for_root`: root may have it where others may not.
    """
    as_root = "run it as root, or " if for_root and os.geteuid() else ""
    try:
        os.makedirs(folder, mode=mode, exist_ok=True)
        owner, of_name = os.stat(folder).st_uid, os.lstat(folder).st_uid
        if of_name not in (0, os.geteuid()):  # another user's link: it may lead anywhere
            owner = of_name
        if owner == os.geteuid():
            os.chmod(folder, mode)
    except PermissionError as error:
        raise StartError(f"{folder}: {error.strerror}: {as_root}{advice}") from error
    except OSError as error:
        raise StartError(f"{folder}: {error.strerror}: {advice}") from error
    if owner != os.geteuid():  # its owner could replace anything in it
        raise StartError(f"{folder} belongs to user {owner}: {as_root}{advice}")
    if os.geteuid() == 0 and (above := replaceable(folder)) is not None:
        mend = "give it to root and `chmod +t` it"
        raise StartError(f"{folder}: {above} lets other users replace it: {mend}, or {advice}, below folders of root's")


def replaceable(folder: str) -> str | None:
    """The folder above that another user can rename things in: everybody if it is not sticky, or its owner. Root's
    daemon serves all users; where users put their own home, they choose for themselves. Raises StartError."""
    for above in Path(os.path.realpath(folder)).parents:
        try:
            found = os.stat(above)
        except OSError as error:
            raise StartError(f"{above}: {error.strerror}") from error
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            return str(above)
        if found.st_uid not in (0, _unmapped()):
            return str(above)
    return None


def _unmapped() -> int | None:
    """In a user namespace, the number of those who have none there, as root of the host; None: not in one."""
    try:
        if Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]:
            return None
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return None


def check_mounted(folders: Iterable[str], *, mounts: Path = Path("/proc/self/mountinfo")) -> None:
    """In a Pod: a folder without a mount is the container's own, and no other container sees what is in it.

    Raises StartError. Only an overlay root is certainly an image's: after a chroot to the host's it is another.
    """
    if "KUBERNETES_SERVICE_HOST" not in os.environ:
        return
    points = mount_points(mounts.read_text())
    if points.get("/") != "overlay":
        return
    for folder in folders:
        if point_of(folder, points) is None:
            raise StartError(
                f"{folder} is inside this container, and no other container would see what is in it: mount the host's "
                "folder there (a hostPath volume with the same path)"
            )


def mount_points(text: str) -> dict[str, str]:
    """Filesystem types by mount point, from /proc/self/mountinfo. Of several at one point the last one is visible."""
    lines = [line.split() for line in text.splitlines()]
    return {words[4]: words[words.index("-") + 1] for words in lines}


def point_of(folder: str, points: Mapping[str, str]) -> str | None:
    """The mount point that the folder is below; None: it is in the image."""
    real = Path(folder).resolve()
    return max((point for point in points if point != "/" and real.is_relative_to(point)), key=len, default=None)


def take_lock(home: Home) -> int:
    """Take the lock; it is held as long as the file is open. Raises AlreadyRunningError."""
    handle = os.open(home.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        who = os.read(handle, 32).decode(errors="replace").strip() or "?"
        os.close(handle)
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise StartError(f"{home.lock}: {error.strerror}") from error
        raise AlreadyRunningError(f"a daemon already runs for {home.run}: pid {who}") from error
    with contextlib.suppress(OSError):  # on a full disk the file lacks the pid, which is harmless
        os.ftruncate(handle, 0)
        os.write(handle, f"{own_number()}\n".encode())
    return handle
