"""A file system that a user has mounted, and whose server never answers: all who ask it anything wait."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

_libc = ctypes.CDLL(None, use_errno=True)
_DETACH = 0x2 | 0x8  # MNT_DETACH, UMOUNT_NOFOLLOW


@contextlib.contextmanager
def silent_mount(place: Path, *, seconds: float = 30.0) -> Iterator[None]:
    """Over that folder or file. After so long, all who wait for it get an error. Skips where we may not mount."""
    kind = "40000" if place.is_dir() else "100000"
    try:
        server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        pytest.skip(f"/dev/fuse: {error.strerror}")
    words = f"fd={server},rootmode={kind},user_id=65534,group_id=65534,allow_other".encode()
    if _libc.mount(b"silent", os.fsencode(place), b"fuse", ctypes.c_ulong(0x6), words):  # MS_NOSUID, MS_NODEV
        os.close(server)
        pytest.skip(f"mount: {os.strerror(ctypes.get_errno())}")
    timer = threading.Timer(seconds, _abort, (server,))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        os.close(server)  # ends all that wait
        _libc.umount2(os.fsencode(place), _DETACH)


def _abort(server: int) -> None:
    os.dup2(os.open(os.devnull, os.O_RDWR), server)  # closes it; the number stays ours


def mounts_below(folder: Path) -> list[str]:
    """Where something is mounted in that folder."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [place for line in lines if (place := line.split()[4]).startswith(str(folder))]
