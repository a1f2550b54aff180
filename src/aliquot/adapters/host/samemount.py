"""Opens files and folders in our folders, but nothing that a user has mounted over them.

A user may mount a file system of theirs (FUSE, by fusermount) over each folder and file that they own, also where it
lies in our folders. If its server never answers, a program that only asks for the size of what is there waits for ever.
The kernel sees the mount before it asks the server: openat2(2) ends at once with EXDEV.

Only the last part of a path is looked at so: its folder is ours, or was opened by this module.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Callable
from typing import TypeVar

_OPENAT2 = 437  # on every architecture
_WHERE = 0x01 | 0x04 | 0x08  # RESOLVE_NO_XDEV, NO_SYMLINKS, BENEATH
_HOW = struct.Struct("3Q")  # struct open_how
_ABSENT = (errno.ENOSYS, errno.EPERM)  # Linux before 5.6; EPERM is what older seccomp filters answer
_DETACH = 0x2 | 0x8  # MNT_DETACH, UMOUNT_NOFOLLOW
_DEEPEST = 64  # mounts on top of each other that are taken away
NO_SUCH = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)  # nothing has that name
_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_SEEN = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

_T = TypeVar("_T")

_libc = ctypes.CDLL(None, use_errno=True)


def open_in(folder: int, name: str, flags: int, mode: int = 0o600) -> int:
    """Open what has this name in the folder, which is open. Links are not followed. Raises OSError: EXDEV if something
    is mounted there."""
    if "\0" in name:  # C would see its first part only
        raise ValueError("embedded null byte")
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC
    how = ctypes.create_string_buffer(_HOW.pack(flags, mode if flags & os.O_CREAT else 0, _WHERE), _HOW.size)
    words = (ctypes.c_char_p(os.fsencode(name)), how, ctypes.c_size_t(_HOW.size))
    opened = int(_libc.syscall(ctypes.c_long(_OPENAT2), ctypes.c_long(folder), *words))
    if opened >= 0:
        return opened
    if (number := ctypes.get_errno()) not in _ABSENT:
        raise _error(number, name)
    return _open_without(folder, name, flags, mode)


def _open_without(folder: int, name: str, flags: int, mode: int) -> int:
    """The same without openat2. O_PATH asks the file system nothing."""
    try:
        seen = os.open(name, _SEEN, dir_fd=folder)
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
        return os.open(name, flags | os.O_EXCL, mode, dir_fd=folder)  # fails if there is something by now
    try:
        if _mount_of(seen) != _mount_of(folder):
            raise _error(errno.EXDEV, name)
        kind = os.fstat(seen).st_mode
        if flags & os.O_EXCL:
            raise _error(errno.EEXIST, name)
        if flags & os.O_DIRECTORY and not stat.S_ISDIR(kind):
            raise _error(errno.ENOTDIR, name)
        if flags & os.O_PATH:
            return os.dup(seen)
        if stat.S_ISLNK(kind):
            raise _error(errno.ELOOP, name)
        return os.open(f"/proc/self/fd/{seen}", flags & ~(os.O_NOFOLLOW | os.O_CREAT))
    finally:
        os.close(seen)


def _mount_of(opened: int) -> str:
    """Empty where the kernel does not say it, as gVisor may not."""
    with open(f"/proc/self/fdinfo/{opened}") as file:
        return next((line for line in file if line.startswith("mnt_id:")), "")


def _error(number: int, name: str) -> OSError:
    text = "somebody has mounted a file system there" if number == errno.EXDEV else os.strerror(number)
    return OSError(number, text, name)


def open_path(path: str | os.PathLike[str], flags: int, mode: int = 0o600) -> int:
    """As `open_in`. The folder that it lies in must be ours."""
    return _within(path, lambda folder, name: open_in(folder, name, flags, mode))


def lstat_in(folder: int, name: str) -> os.stat_result:
    """What has this name in the folder, which is open. Raises OSError as `open_in`."""
    seen = open_in(folder, name, _SEEN)
    try:
        return os.fstat(seen)
    finally:
        os.close(seen)


def lstat(path: str | os.PathLike[str]) -> os.stat_result:
    """As `lstat_in`. The folder that it lies in must be ours."""
    return _within(path, lstat_in)


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether anything has this name, a link or a mount too. The folder that it lies in must be ours. Raises OSError if
    that cannot be found out, as without a free file."""
    try:
        lstat(path)
    except OSError as error:
        if error.errno not in (*NO_SUCH, errno.EXDEV):
            raise
        return error.errno == errno.EXDEV
    except ValueError:  # no file can have that name
        return False
    return True


def detach(folder: int, name: str) -> bool:
    """Take away what is mounted over that name in the folder, which is open; whether anything was. Only root can.

    May take long, in threads of its own: the kernel may first write what the file system's server has not taken yet."""
    place = os.fsencode(f"/proc/self/fd/{folder}/{name}")
    for done in range(_DEEPEST):
        if _libc.umount2(ctypes.c_char_p(place), ctypes.c_int(_DETACH)):
            return done > 0
    return True


def _within(path: str | os.PathLike[str], look: Callable[[int, str], _T]) -> _T:
    place, name = os.path.split(os.fspath(path))
    folder = os.open(place or ".", _PLACE)
    try:
        return look(folder, name)
    except OSError as error:
        error.filename = os.fspath(path)
        raise
    finally:
        os.close(folder)
