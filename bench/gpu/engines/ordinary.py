"""Busy engines of the ordinary class: two, three or four taking turns with equal shares, and two in a group."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from bench.gpu.engines.catalog import ENGINES
from bench.gpu.engines.folder import Folder
from bench.gpu.engines.player import Player
from bench.gpu.engines.scenes import Found, Measure, alone, differing, on_grounds, same, start, watch
from bench.gpu.grounds import Ground
from bench.gpu.lab import Lab
from bench.gpu.report import Row

LEAST_TURNS, LEAST_GAIN = 0.95, 1.15
MOST_TOKEN_MS = 20.0  # p99, of each that takes turns
_PAIR = 2
Names = tuple[str, ...]


def measured(names: Names) -> Measure:
    return partial(_measure, names)


def _measure(names: Names, lab: Lab, folder: Folder) -> list[Row]:
    """Each way has its own figures alone: in a group an engine runs under a server of MPS even then."""
    with lab.node() as node:
        turns = _scene(names, None, lab, folder, node)
    others = on_grounds(lab, partial(_scene, names, None, lab, folder))
    words = f"{' and '.join(names)}, all busy"
    tails = [tail for tail in turns["token_p99_ms"] if tail is not None]
    taking = _row(
        (
            f"{words}, taking turns: sum of each / alone",
            f">= {LEAST_TURNS}; token p99 <= {MOST_TOKEN_MS:g} ms; same tokens",
        ),
        names,
        turns,
        good=turns["sum"] >= LEAST_TURNS and max(tails, default=0.0) <= MOST_TOKEN_MS,
        others=others,
    )
    if len(names) > _PAIR:
        return [taking]
    with lab.node() as node:
        side_by_side = _scene(names, "engines", lab, folder, node)
    return [
        taking,
        _row(
            (f"{words}, in a group: sum of each / alone", f">= {LEAST_GAIN} of turns; same tokens"),
            names,
            side_by_side,
            good=side_by_side["sum"] >= LEAST_GAIN * turns["sum"],
        ),
    ]


def _scene(names: Names, group: str | None, lab: Lab, folder: Folder, ground: Ground) -> dict[str, Any]:
    with lab.stage(ground) as stage:
        asked: dict[str, Any] = {"core": 100 // len(names), "group": group}
        players = start(
            stage,
            *(partial(Player, stage, folder, ENGINES[name], f"{name}-{at}", **asked) for at, name in enumerate(names)),
        )
        before = alone(lab, players)
        beside = watch(lab, *players)
    both = list(zip(before, beside, names, strict=True))
    parts = [now.per_s / then.per_s if then.per_s else 0.0 for then, now, _ in both]
    agree, well = same([differing(then, now, ENGINES[name]) for then, now, name in both])
    return {
        "sum": round(sum(parts), 3),
        "parts": [round(part, 3) for part in parts],
        "answers": agree,
        "well": well,
        "alone": [found.figures for found in before],
        "beside": [found.figures for found in beside],
        "token_p99_ms": [_tail(found) for found in beside],
    }


def _tail(found: Found) -> float | None:
    return found.ms("token_ms", "p99")


def _told(names: Names, scene: dict[str, Any]) -> str:
    rates = " + ".join(
        f"{found['per_s']:.0f} {ENGINES[name].unit}" for found, name in zip(scene["beside"], names, strict=True)
    )
    tails = ", ".join("-" if each is None else f"{each:.1f}" for each in scene["token_p99_ms"])
    return f"{scene['sum']:.2f} ({rates}; token p99 {tails} ms)"


def _row(
    words: tuple[str, str],
    names: Names,
    scene: dict[str, Any],
    *,
    good: bool,
    others: Mapping[str, dict[str, Any]] = MappingProxyType({}),
) -> Row:
    told = {name: _told(names, other) for name, other in others.items()}
    return Row(
        what=words[0],
        must=words[1],
        measured=f"{_told(names, scene)}; {scene['answers']}",
        ok=good and scene["well"],
        stock=told.get("stock", ""),
        mps=told.get("mps", ""),
        numbers={**scene, **others},
    )
