"""Programs on a real node: in its namespaces, but ended by the test like any other program."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed.processes import Program, wait_until

# Joins the namespaces of the node's first process, and stays to tell how the program ended. Python 3.11 has no setns.
_DOORMAN = (
    "import ctypes, os, signal, sys\n"
    "libc = ctypes.CDLL(None, use_errno=True)\n"
    "doors = [os.open(f'/proc/{sys.argv[1]}/ns/{kind}', os.O_RDONLY) for kind in ('pid', 'mnt')]\n"
    "for door in doors:\n"
    "    if libc.setns(door, 0): sys.exit(f'cannot enter the node: {os.strerror(ctypes.get_errno())}')\n"
    "    os.close(door)\n"
    "child = os.fork()\n"
    "if not child:\n"
    "    libc.prctl(1, signal.SIGKILL)\n"
    "    os.execvp(sys.argv[2], sys.argv[2:])\n"
    "ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
    "if ended < 0:\n"
    "    signal.signal(-ended, signal.SIG_DFL) if -ended not in (9, 19) else None\n"
    "    os.kill(os.getpid(), -ended)\n"
    "sys.exit(ended)\n"
)


def door(init: int) -> list[str]:
    """What to write before a command that is to run on the node whose first process this is."""
    return [sys.executable, "-I", "-S", "-c", _DOORMAN, str(init)]


class NodeProgram(Program):
    """A program on a node. Its pid is this machine's; `pid_there` is what the node knows it by."""

    def __init__(
        self,
        init: int,
        command: Sequence[str | Path],
        log: Path,
        *,
        name: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__([*door(init), *command], log, name=name or Path(command[0]).name, environment=environment)
        self._inside: int | None = None

    @property
    def pid(self) -> int:
        if self._inside is None:
            self._inside = wait_until(self._child, 10, f"{self.name} is in the node", saw=self.tail, every=0.005)
        return self._inside

    def _child(self) -> int:
        if self._popen.poll() is not None:
            raise RuntimeError(f"{self.name} ended with exit code {self.exit_code}:\n{self.tail()}")
        doorman = self._popen.pid
        children = Path(f"/proc/{doorman}/task/{doorman}/children").read_text().split()
        return int(children[0]) if children else 0

    @property
    def pid_there(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1])

    def signal(self, number: int) -> None:
        if self.running:
            with contextlib.suppress(ProcessLookupError, RuntimeError):  # it has just ended by itself
                os.kill(self.pid, number)
