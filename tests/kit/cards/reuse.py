"""A pid that is reused, for real: the next process of the machine gets the number that we name. Needs root."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

NOBODY = 65534
_LAST = Path("/proc/sys/kernel/ns_last_pid")
_TRIES = 50  # other programs start processes meanwhile

# A server of root that acts for that user for a moment: the user cannot signal it.
SERVER = (sys.executable, "-S", "-c", f"import os, time; os.seteuid({NOBODY}); time.sleep(600)")

# Connects as that user, sends the request, hands the connection to the test and ends.
_CONNECT = """
import os, socket, sys
os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[2])
connection.sendall(sys.argv[3].encode())
socket.send_fds(socket.socket(fileno=0), [b"x"], [connection.fileno()])
"""

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access(_LAST, os.W_OK), reason="only root can choose the next pid"
)


@contextlib.contextmanager
def connection_of_ended(
    path: Path, request: bytes = b"", *, victim: Sequence[str] = ("sleep", "600")
) -> Iterator[tuple[socket.socket, subprocess.Popen[bytes]]]:
    """A connection of an ended process of user NOBODY, and a process of root that has its pid now."""
    for _ in range(_TRIES):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            command = [sys.executable, "-S", "-c", _CONNECT, str(NOBODY), str(path), request.decode()]
            asking = subprocess.Popen(command, stdin=theirs.fileno())
            theirs.close()
            _, (file,), _, _ = socket.recv_fds(ours, 1, 1)
            asking.wait()
        with socket.socket(fileno=file) as connection:
            found = _with_pid(asking.pid, victim)
            if found is not None:
                with found:
                    try:
                        yield connection, found
                    finally:
                        found.kill()
                return
    pytest.skip("no process got the pid that was named: others start too many")


def _with_pid(pid: int, command: Sequence[str]) -> subprocess.Popen[bytes] | None:
    _LAST.write_text(str(pid - 1))
    child = subprocess.Popen(command)
    if child.pid == pid:
        return child
    child.kill()
    child.wait()
    return None
