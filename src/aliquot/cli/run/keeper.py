"""Waits for a run in the background and writes its exit code to the tenant's folder, for `aliquot ps -a` and `logs`.

A program of its own, without the rest of aliquot, so that it is small: it stays as long as the run. Arguments: the pid
of the run, which is its child, and a file from which it reads the tenant's folder.
"""

from __future__ import annotations

import contextlib
import os
import sys


def main(child: int, pipe: int) -> None:
    """Returns when the run has ended."""
    with open(pipe, "rb") as file:
        folder = os.fsdecode(file.read())  # empty: the run was refused
    # The daemon reads the status of a process that was not waited for yet. So the file is there before we wait.
    ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    if ended is None or not folder:
        return
    code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    with contextlib.suppress(OSError):  # the daemon has removed the folder: it knows
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(os.open(f"{folder}/exit", flags, 0o600), "wb") as file:
            file.write(b"%d\n" % code)
    os.waitpid(child, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
