"""How fast this machine is now. Milliseconds of two machines, or of two days on one, compare only beside this."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

DOCUMENTED_MS = 11.0  # of the machine of docs/performance.md


def milliseconds(command: list[str], times: int) -> list[float]:
    """Wall time of each run."""
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        taken.append((time.perf_counter() - begun) * 1000)
    return taken


def python_start_ms(times: int = 20) -> float:
    """What Python takes to start, beyond any other program; the middle."""
    alone = statistics.median(milliseconds(["true"], times))
    return statistics.median(milliseconds([sys.executable, "-c", "pass"], times)) - alone


def sentence(start_ms: float) -> str:
    return (
        f"Python starts in {start_ms:.0f} ms here, in {DOCUMENTED_MS:.0f} ms on the machine of docs/performance.md:"
        f" expect {start_ms / DOCUMENTED_MS:.1f} times its milliseconds"
    )
