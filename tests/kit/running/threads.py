"""A process whose first thread has ended while another goes on: in /proc it looks like a zombie."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from kit.machines.machine import eventually

# The system call, not os._exit, which ends all threads.
PROGRAM = """
import ctypes, os, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""


@contextlib.contextmanager
def headless(environment: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment) as process:
        try:
            eventually(lambda: is_headless(process.pid))
            yield process
        finally:
            process.kill()


def is_headless(pid: int) -> bool:
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return fields[0] == b"Z" and int(fields[17]) > 1
