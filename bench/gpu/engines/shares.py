"""Two engines with shares of 70 and 30, kept busy by 1, 4 and 16 clients each: how their tokens divide."""

from __future__ import annotations

from functools import partial

from bench.gpu.engines.catalog import ENGINES
from bench.gpu.engines.folder import Folder
from bench.gpu.engines.player import Player
from bench.gpu.engines.scenes import Found, Measure, start, watch
from bench.gpu.lab import Lab
from bench.gpu.report import Row

PARTS = (70, 30)
CLIENTS = (1, 4, 16)
MOST_OFF = 2.0  # points


def measured(name: str) -> Measure:
    return partial(_measure, name)


def _measure(name: str, lab: Lab, folder: Folder) -> list[Row]:
    rows = []
    with lab.node("burst-share") as node, lab.stage(node) as stage:
        begun = (partial(Player, stage, folder, ENGINES[name], f"{name}-{part}", core=part) for part in PARTS)
        players = start(stage, *begun)
        for clients in CLIENTS:
            for player in players:
                player.order = f"clients={clients} tokens=64 prompt=256"
            rows.append(_row(name, clients, watch(lab, *players)))
    return rows


def _row(name: str, clients: int, found: list[Found]) -> Row:
    total = sum(each.per_s for each in found)
    had = [100 * each.per_s / total if total else 0.0 for each in found]
    off = max(abs(part - promised) for part, promised in zip(had, PARTS, strict=True))
    rates = " + ".join(f"{each.per_s:.0f}" for each in found)
    return Row(
        what=f"two {name}, shares {'/'.join(map(str, PARTS))}, {clients} + {clients} requests: points off",
        must=f"<= {MOST_OFF:g}",
        measured=f"{off:.1f} ({' / '.join(f'{part:.1f}' for part in had)}; {rates} {ENGINES[name].unit})",
        ok=off <= MOST_OFF,
        numbers={"figures": [each.figures for each in found]},
    )
