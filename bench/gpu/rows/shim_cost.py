"""What does the shim cost a tenant that is alone? With and without it by turns, so that drift hits both alike."""

from __future__ import annotations

from statistics import median

from bench.gpu.lab import Lab
from bench.gpu.report import Row
from bench.gpu.stage import Stage
from bench.gpu.words import Ask

KERNEL, TURNS = "50us", 4
LEAST = 0.995


def measure(lab: Lab) -> list[Row]:
    with lab.node() as node, lab.stage(node) as inside, lab.stage(lab.stock) as outside:
        loads = [
            stage.load(Ask(name=f"turn-{at}"), KERNEL)
            for at in range(TURNS)
            for stage in _by_turns(at, inside, outside)
        ]
        for load in loads:
            inside.ready(load)
        shares = [lab.solo(load, min(1.5, lab.seconds)) for load in loads]
        ours, stock = (
            [share for load, share in zip(loads, shares, strict=True) if load.folder == stage.folder]
            for stage in (inside, outside)
        )
    return [
        Row(
            what="one tenant of 50 us kernels, with the shim / without",
            must=">= 0.995",
            measured=f"{median(ours) / median(stock):.4f}",
            ok=median(ours) / median(stock) >= LEAST,
            numbers={"with": ours, "without": stock},
        )
    ]


def _by_turns(turn: int, first: Stage, second: Stage) -> tuple[Stage, Stage]:
    """ABBA: neither is always the one that comes first."""
    return (first, second) if turn % 2 == 0 else (second, first)
