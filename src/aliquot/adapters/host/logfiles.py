"""Logs to which programs append, bounded: NAME has what was written last, NAME.1 what was written before.

The programs keep their file open (O_APPEND), so it is copied and cut, not renamed; what they write in the instant
between the two is lost.
"""

from __future__ import annotations

import contextlib
import os
import stat

from aliquot.adapters.host import samemount
from aliquot.adapters.host.process.processes import is_shortage

OLDER = ".1"
USUAL_LIMIT = 64 << 20  # bytes of a log and its older part together
_FRESH = ".new"
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PIECE = 1 << 20


def bound(path: str, limit: int) -> bool:
    """Cut the log if it has more than half of the limit; whether it was cut. Raises OSError."""
    if samemount.lstat(path).st_size <= limit // 2:
        return False
    log = samemount.open_path(path, os.O_RDWR | _OPEN)
    try:
        found = os.fstat(log)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            return False
        kept = _copied(log, path + _FRESH, found, limit)
        os.ftruncate(log, 0)
        if kept:  # after the cut: a reader that sees another older part knows that the log begins anew
            os.replace(path + _FRESH, path + OLDER)
        return True
    finally:
        os.close(log)


def _copied(log: int, fresh: str, found: os.stat_result, limit: int) -> bool:
    """False if the disk has no room for it: then it is lost, and the disk has room again."""
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh)
        copy = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o600)
        try:
            if os.geteuid() == 0:
                os.fchown(copy, found.st_uid, found.st_gid)
            at, end = max(0, found.st_size - limit), found.st_size + limit  # it may grow faster than we read
            while at < end and (piece := os.pread(log, min(_PIECE, end - at), at)):
                at += os.write(copy, piece)
        finally:
            os.close(copy)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        if is_shortage(error):  # it is cut when there are files again
            raise
        return False
    return True


def parts(path: str) -> tuple[str, ...]:
    """The files of a log, each of which may be missing."""
    return path, path + OLDER, path + _FRESH


def remove(path: str) -> None:
    """The log and its older part, if they are there."""
    for part in parts(path):
        with contextlib.suppress(OSError):
            os.unlink(part)
