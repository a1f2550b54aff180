"""What a program shows on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Mapping, Sequence


def shown_on_terminal(
    command: Sequence[str], environment: Mapping[str, str], stream: str = "stderr", seconds: float = 30
) -> tuple[str, int]:
    """All that came there on that stream, and the exit code; the other stream is a pipe."""
    ours, theirs = pty.openpty()
    streams = {"stdout": subprocess.PIPE, "stderr": None, stream: theirs}
    with subprocess.Popen(command, env=environment, stdout=streams["stdout"], stderr=streams["stderr"]) as process:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # Linux answers so when the other end is closed
            pass
        process.communicate(timeout=seconds)
    os.close(ours)
    return shown.decode(), process.returncode
