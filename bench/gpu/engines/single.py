"""One engine: with the stock driver, on a slice, and on a slice whose memory may leave the card. All three are started
first and then run by turns, so that what the card does meanwhile (its clock, its warmth) is the same for all."""

from __future__ import annotations

from functools import partial
from statistics import mean

from bench.gpu.engines.catalog import ENGINES, Engine
from bench.gpu.engines.folder import Folder
from bench.gpu.engines.player import Player
from bench.gpu.engines.scenes import Found, Measure, differing, length, same, start, watch
from bench.gpu.lab import Lab
from bench.gpu.report import Row

LEAST = 0.98
TURNS = 3
WAYS = ("stock", "slice", "parkable")


def measured(name: str) -> Measure:
    return partial(_measure, name)


def _measure(name: str, lab: Lab, folder: Folder) -> list[Row]:
    engine = ENGINES[name]
    found: dict[str, list[Found]] = {way: [] for way in WAYS}
    with lab.node() as node, lab.stage(node) as stage:
        stock = Player(stage, folder, engine, "stock", ground=lab.stock)
        stock.ready()
        players = [
            stock,
            *start(
                stage,
                partial(Player, stage, folder, engine, "slice"),
                partial(Player, stage, folder, engine, "parkable", park="30s"),
            ),
        ]
        for _ in range(TURNS):
            for way, player in zip(WAYS, players, strict=True):
                found[way] += watch(lab, player, seconds=max(0.5, length(lab) / TURNS))
    return [_row(engine, found, way) for way in WAYS[1:]]


def _row(engine: Engine, found: dict[str, list[Found]], way: str) -> Row:
    """Of all turns: throughput over the stock driver's, and the answers."""
    rates = {name: [each.per_s for each in turns] for name, turns in found.items()}
    stock = mean(rates["stock"])
    part = mean(rates[way]) / stock if stock else 0.0
    agree, well = same([differing(found["stock"][0], turn, engine) for turn in found[way]])
    return Row(
        what=f"{engine.name} alone on the card, {way}, over the stock driver",
        must=f">= {LEAST}; {agree if well else 'same tokens'}",
        measured=f"{part:.3f} of {stock:.1f} {engine.unit}{_tail(found[way])}; {agree}",
        ok=part >= LEAST and well,
        numbers={"per_s": rates, "figures": {name: [each.figures for each in turns] for name, turns in found.items()}},
    )


def _tail(turns: list[Found]) -> str:
    """The slowest tokens, where there are tokens."""
    slowest = [each.ms("token_ms", "p99") for each in turns]
    return f", token p99 {mean(filter(None, slowest)):.2f} ms" if any(slowest) else ""
