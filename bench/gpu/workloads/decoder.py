"""A language model that decodes for one user without a pause: the GPT of llm.py at batch 1, one CUDA graph per token.

usage: decoder.py STEPS_FILE. Prints READY when it decodes; ten times a second the file gets the number of steps so far.
Ends by itself after three minutes.
"""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from bench.gpu.workloads.llm import PROMPT, Gpt

_LONGEST = 180.0
_IN_FLIGHT = 8  # steps


def main(file: Path) -> None:
    model, steps, done = Gpt(), 0, torch.cuda.Event()
    file.write_text("0\n")
    print("READY", flush=True)
    began = written = time.monotonic()
    with file.open("a") as out:
        while time.monotonic() - began < _LONGEST:
            model.at.fill_(PROMPT)  # the cache does not grow
            for _ in range(_IN_FLIGHT):
                model.decode.replay()
            done.record()
            done.synchronize()
            steps += _IN_FLIGHT
            if time.monotonic() - written >= 0.1:
                written = time.monotonic()
                out.write(f"{steps}\n")
                out.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
