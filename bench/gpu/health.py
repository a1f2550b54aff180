"""Is the card still well? A small kernel with the right result, and no new complaint (Xid) in the kernel's log."""

from __future__ import annotations

import json
from dataclasses import dataclass

from bench.gpu import words
from bench.gpu.children import ChildError, answer
from bench.gpu.kernellog import xids
from bench.gpu.lab import Lab


@dataclass(frozen=True, slots=True)
class Health:
    """`xids` None: the kernel's log cannot be read here."""

    works: bool
    xids: int | None
    said: str = ""


def examine(lab: Lab) -> Health:
    """With the stock driver, so that nothing of ours stands between."""
    command = words.burn_load("1ms", "--seconds", "0.2", "--warmup", "0us", "--check")
    try:
        right = json.loads(answer(command, lab.stock.env, 40)).get("right") is True
    except (ChildError, ValueError) as error:
        return Health(False, xids(), str(error))
    return Health(right, xids())
