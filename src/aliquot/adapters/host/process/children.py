"""Children that do not outlive their parent. Nothing heavy is imported here."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def end_with(parent: int) -> bool:
    """Have the kernel kill this process when its parent ends, however it dies. False: it has ended already."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent
