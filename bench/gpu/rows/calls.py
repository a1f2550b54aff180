"""What small calls cost a tenant, and one whose memory may leave the card: over the same with the stock driver."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

from bench.gpu.lab import Lab
from bench.gpu.report import Row
from bench.gpu.words import Ask

PROGRAM = Path(__file__).resolve().parents[1] / "workloads" / "calls.py"
TURNS = 3
MOST = {"cudaMalloc": 1.5, "cudaMallocAsync": 1.3, "copy": 1.3}


def measure(lab: Lab) -> list[Row]:
    found: dict[str, list[dict[str, float]]] = {"stock": [], "slice": [], "parkable": []}
    with lab.node() as node, lab.stage(node) as stage:
        for turn in range(TURNS):
            for way, turns in found.items():
                ask = Ask(name=f"{way}-{turn}", park="30s" if way == "parkable" else None)
                child = stage.child(ask, [sys.executable, str(PROGRAM)], lab.stock if way == "stock" else node)
                turns.append(child.result(60))
    return [_row(what, found) for what in found["stock"][0]]


def _row(what: str, found: dict[str, list[dict[str, float]]]) -> Row:
    took = {way: median(turn[what] for turn in turns) for way, turns in found.items()}
    most = MOST[what.split()[0]]
    ratios = {way: took[way] / took["stock"] for way in ("slice", "parkable")}
    return Row(
        what=f"{what} bytes: on a slice, parkable, over the stock driver",
        must=f"<= {most:g}",
        measured=f"{ratios['slice']:.2f}, {ratios['parkable']:.2f} of {took['stock']:.0f} ns",
        ok=max(ratios.values()) <= most,
        numbers={"ns": {way: [turn[what] for turn in turns] for way, turns in found.items()}},
    )
