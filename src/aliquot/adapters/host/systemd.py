"""systemd: whether it runs here, its programs, and the word that this service is ready."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Sequence

SYSTEM_RUNS = "/run/systemd/system"  # as sd_booted(3) finds out
_PATIENCE = 120.0  # seconds; `start` waits until the daemon is ready


def runs(*, user: bool) -> bool:
    """Whether there is a systemd to talk to: the machine's, or this user's own."""
    own = os.path.join(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}", "systemd")
    return shutil.which("systemctl") is not None and os.path.isdir(own if user else SYSTEM_RUNS)


def systemctl(words: Sequence[str], *, user: bool) -> tuple[int, str]:
    """Exit code, and what it printed on stdout and stderr."""
    command = ["systemctl", *(["--user"] if user else []), "--no-pager", *words]
    try:
        done = subprocess.run(  # noqa: S603 - the words are ours
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return 124, f"{' '.join(command)} did not end within {_PATIENCE:.0f} s"
    return done.returncode, (done.stdout + done.stderr).strip()


def notify_ready() -> None:
    """Notify the systemd that started this process, if one did (sd_notify(3))."""
    path = os.environ.pop("NOTIFY_SOCKET", "")
    if path:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.connect(f"\0{path[1:]}" if path.startswith("@") else path)
            connection.send(b"READY=1")
