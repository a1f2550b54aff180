"""Other programs that want the machine too: one busy process per core, of the same priority."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_MOST_SECONDS = 900  # it ends by itself, should we be killed
_SPIN = f"import time\nend = time.monotonic() + {_MOST_SECONDS}\nwhile time.monotonic() < end: sum(range(10000))"


@contextmanager
def busy_machine() -> Iterator[None]:
    """Every core has something else to do meanwhile."""
    programs = [subprocess.Popen([sys.executable, "-c", _SPIN]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()
