"""Busy engines in a group (`--together`), and the same on the stock driver, which lets them take turns."""

from __future__ import annotations

from functools import partial

from bench.gpu.engines.catalog import ENGINES
from bench.gpu.engines.folder import Folder
from bench.gpu.engines.player import Player
from bench.gpu.engines.scenes import Found, Measure, start, watch
from bench.gpu.grounds import Ground
from bench.gpu.lab import Lab
from bench.gpu.report import Row


def measured(names: tuple[str, ...], least: float) -> Measure:
    """`least`: how many times the stock driver's sum."""
    return partial(_measure, names, least)


def _measure(names: tuple[str, ...], least: float, lab: Lab, folder: Folder) -> list[Row]:
    with lab.node() as node:
        ours = _busy(names, lab, folder, node)
    stock = _busy(names, lab, folder, lab.stock)
    before = sum(found.per_s for found in stock)
    times = sum(found.per_s for found in ours) / before if before else 0.0
    return [
        Row(
            what=f"{len(names)} {names[0]} in a group, all busy: sum over the same on the stock driver",
            must=f">= {least}",
            measured=f"{times:.2f} ({_told(names, ours)})",
            ok=times >= least,
            stock=_told(names, stock),
            numbers={"group": [found.figures for found in ours], "stock": [found.figures for found in stock]},
        )
    ]


def _busy(names: tuple[str, ...], lab: Lab, folder: Folder, ground: Ground) -> list[Found]:
    with lab.stage(ground) as stage:
        core = 100 // len(names)
        begun = (
            partial(Player, stage, folder, ENGINES[name], f"{name}-{at}", core=core, group="engines")
            for at, name in enumerate(names)
        )
        return watch(lab, *start(stage, *begun))


def _told(names: tuple[str, ...], found: list[Found]) -> str:
    return f"{' + '.join(f'{each.per_s:.0f}' for each in found)} {ENGINES[names[0]].unit}"
