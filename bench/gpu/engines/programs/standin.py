"""No engine: it sleeps as long as one would compute, so that the bench itself can be tried without a card.

usage: standin.py CONTROL_FILE SAMPLES_FILE [--loop]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.gpu.engines.programs import steer

VOCABULARY = 1000


def answer(prompt: list[int], tokens: int, put: Callable[[int], None]) -> None:
    time.sleep(0.004)
    for at in range(tokens):
        time.sleep(0.001)
        put((sum(prompt) + at) % VOCABULARY)


def turn() -> tuple[float, list[int]]:
    time.sleep(0.02)
    return 1.0, []


def main() -> None:
    control, samples = steer.Control(Path(sys.argv[1])), steer.Samples(Path(sys.argv[2]))
    steer.ready()
    if "--loop" in sys.argv[3:]:
        steer.loop(control, samples, turn)
    else:
        steer.serve(control, samples, VOCABULARY, answer)


if __name__ == "__main__":
    main()
