"""The pool's folder is in a folder that every user may write (/dev/shm), under a name that everybody can know.

So another user can be there first, with a folder and a socket of their own. Who is handed the connections of shims
gets the tenants' memory: nothing in such a folder is used, and root's mover takes the name back.
"""

from __future__ import annotations

import ctypes
import os
import stat
import tempfile
from pathlib import Path

_RENAMEAT2 = {"x86_64": 316, "aarch64": 276}.get(os.uname().machine)
_HERE = -100  # AT_FDCWD
_EXCHANGE = 2  # RENAME_EXCHANGE


def is_private(folder: Path) -> bool:
    """Whether the folder belongs to this user, and no other user may write to it. In a sticky folder it stays so."""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def take(folder: Path) -> None:
    """Make it, or take its name from another user: what that one put there is under another name afterwards. In one
    step, or they could be first again. Raises OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if os.lstat(folder).st_uid == os.geteuid():
            return
        fresh = tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent)
        try:
            _exchange(fresh, str(folder))
        except OSError:
            os.rmdir(fresh)
            raise


def _exchange(one: str, other: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if _RENAMEAT2 is None:
        raise OSError(f"the number of renameat2 is not known for {os.uname().machine}")
    names = ctypes.c_char_p(os.fsencode(one)), ctypes.c_char_p(os.fsencode(other))
    here = ctypes.c_long(_HERE)
    if libc.syscall(ctypes.c_long(_RENAMEAT2), here, names[0], here, names[1], ctypes.c_long(_EXCHANGE)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), other)
