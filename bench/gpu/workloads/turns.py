"""How the PyTorch workloads are steered: one file says run or idle, samples go to another, as they come.

Starting PyTorch takes longer than a measurement, so that a workload starts once and then runs and idles by turns.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path


def play(control: Path, samples: Path, turn: Callable[[], float], period: float) -> None:
    """Call `turn` while the control file says run, every `period` seconds (0: as fast as it goes), until it says stop.

    A sample is the moment at which the turn began, and what it answered.
    """
    print("READY", file=sys.stderr, flush=True)
    with samples.open("a", buffering=1) as file:
        due = 0.0
        looked, word = 0.0, "idle"
        while True:
            now = time.monotonic()
            if now - looked > 0.02:
                looked, word = now, _word(control)
            if word == "stop":
                return
            if word != "run":
                time.sleep(0.005)
                due = time.monotonic()
                continue
            if due > now:
                time.sleep(due - now)
            began = time.monotonic()
            answer = turn()
            file.write(f"{began:.6f} {answer:.6f}\n")
            due = max(due + period, time.monotonic())


def _word(control: Path) -> str:
    try:
        return control.read_text()
    except OSError:
        return "idle"
