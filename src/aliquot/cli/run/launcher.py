"""Starts the daemon so that it is not a child of the command that needed it.

`aliquot run` becomes the user's command, which would have a child that it does not know: `aliquot stop` would end the
daemon as a process of that run, and a command that waits for all its children would never end. So this program is the
parent, and ends when its input is closed, or with the daemon and its exit code (128 + the signal that killed it).
The daemon serves other runs too, and stays: what the shell limits for its own command (`nice`, `ulimit -t`) does not
hold for it, as far as this user may lift it, and no folder is in use because a run was started there.
Arguments: the daemon's command. A program of its own, without the rest of aliquot, so that it starts fast.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys

_LIMITS = (resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_RSS)


def main(command: list[str]) -> int:
    """The exit code."""
    os.chdir("/")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # who ignores it has no exit codes
    _lift_limits()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603 - ourselves
    ended = os.pidfd_open(process.pid)
    select.select([0, ended], [], [])
    code = process.poll()
    if code is None:
        process.returncode = 0  # it outlives this process, which does not wait for it
        return 0
    return code if code >= 0 else 128 - code


def _lift_limits() -> None:
    for limit in _LIMITS:
        try:
            resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        except (OSError, ValueError):  # only root may lift the hard limit
            hard = resource.getrlimit(limit)[1]
            resource.setrlimit(limit, (hard, hard))
    if os.getpriority(os.PRIO_PROCESS, 0) > 0:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
