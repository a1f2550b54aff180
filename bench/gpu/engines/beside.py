"""An online engine beside an offline one; and the same at fixed release delays, to see what `auto` makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.gpu.engines.catalog import ENGINES
from bench.gpu.engines.folder import Folder
from bench.gpu.engines.player import Player
from bench.gpu.engines.scenes import Found, Measure, alone, differing, on_grounds, same, start, watch
from bench.gpu.grounds import Ground
from bench.gpu.lab import Lab
from bench.gpu.report import Row
from bench.gpu.stage import Stage

MOST_FIRST_MS, MOST_TOKEN, LEAST_FREE = 2.0, 1.10, 0.90
DELAYS = ("0", "0.5ms", "1ms", "2ms", "5ms", "20ms", "100ms", "auto")
_MOST_OFF_BEST = 0.05  # by how much auto may be worse than the best delay


@dataclass(slots=True)
class Scene:
    """What both did, alone and beside each other."""

    names: tuple[str, str]
    alone: list[Found]
    beside: list[Found]

    @property
    def added_ms(self) -> float | None:
        """To the first token, at the median."""
        return _minus(self.beside[0].ms("first_ms", "p50"), self.alone[0].ms("first_ms", "p50"))

    @property
    def token_ratio(self) -> float | None:
        """p99 of later tokens, over the same alone."""
        before, now = self.alone[0].ms("token_ms", "p99"), self.beside[0].ms("token_ms", "p99")
        return now / before if before and now else None

    @property
    def of_free(self) -> float:
        """Offline throughput over what online work leaves free by its own times alone; above 1 where they overlap."""
        free = max(0.05, 1 - self.alone[0].figures["busy"])
        return self.beside[1].per_s / self.alone[1].per_s / free if self.alone[1].per_s else 0.0

    def told(self) -> str:
        """One line: online first token p50/p99, later tokens, offline throughput."""
        online, offline = self.beside
        unit = ENGINES[self.names[1]].unit
        return f"TTFT {_ms(online, 'first_ms')}; token {_ms(online, 'token_ms')}; {offline.per_s:.1f} {unit}"

    def numbers(self) -> dict[str, Any]:
        return {
            "alone": [each.figures for each in self.alone],
            "beside": [each.figures for each in self.beside],
            "first_added_ms": self.added_ms,
            "token_ratio": self.token_ratio,
            "offline_of_free": round(self.of_free, 3),
        }


def _ms(found: Found, what: str) -> str:
    p50, p99 = found.ms(what, "p50"), found.ms(what, "p99")
    return "-" if p50 is None else f"{p50:.2f}/{p99:.2f} ms"


def _minus(now: float | None, before: float | None) -> float | None:
    return None if now is None or before is None else round(now - before, 3)


def measured(names: tuple[str, str]) -> Measure:
    return partial(_measure, names)


def swept(names: tuple[str, str]) -> Measure:
    return partial(_sweep, names)


def begin(stage: Stage, folder: Folder, names: tuple[str, str]) -> list[Player]:
    """Both started, and at rest."""
    online, offline = (ENGINES[name] for name in names)
    return start(
        stage,
        partial(Player, stage, folder, online, "online", order=online.order, app_class="online"),
        partial(Player, stage, folder, offline, "offline", app_class="offline"),
    )


# ---- one delay


def _measure(names: tuple[str, str], lab: Lab, folder: Folder) -> list[Row]:
    with lab.node(release_delay="auto") as node, lab.stage(node) as stage:
        players = begin(stage, folder, names)
        before = alone(lab, players)
        scene = Scene(names, before, watch(lab, *players))
        delays = node.standings()
    others = on_grounds(lab, partial(_on_ground, names, lab, folder))
    both = zip(before, scene.beside, names, strict=True)
    agree, well = same([differing(then, now, ENGINES[name]) for then, now, name in both])
    added, ratio = scene.added_ms, scene.token_ratio
    good = added is not None and added <= MOST_FIRST_MS and (ratio is None or ratio <= MOST_TOKEN)
    return [
        Row(
            what=f"{names[0]} online beside {names[1]} offline, auto: TTFT p50 added; token p99; offline of free",
            must=f"<= {MOST_FIRST_MS:g} ms; <= {MOST_TOKEN:.2f}; >= {LEAST_FREE:.2f}; same tokens",
            measured=f"{number(added, '+.2f')} ms; {number(ratio, '.2f')}; {scene.of_free:.2f}; {agree}",
            ok=good and scene.of_free >= LEAST_FREE and well,
            stock=others.get("stock", {}).get("told", ""),
            mps=others.get("mps", {}).get("told", ""),
            numbers={**scene.numbers(), "told": scene.told(), "standings": delays, **others},
        )
    ]


def number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _on_ground(names: tuple[str, str], lab: Lab, folder: Folder, ground: Ground) -> dict[str, Any]:
    with lab.stage(ground) as stage:
        players = begin(stage, folder, names)
        scene = Scene(names, alone(lab, players), watch(lab, *players))
    return {"told": scene.told(), **scene.numbers()}


# ---- all delays


def _sweep(names: tuple[str, str], lab: Lab, folder: Folder) -> list[Row]:
    """Each delay by itself; `auto` last, and judged by the best of the others."""
    scenes: dict[str, Scene] = {}
    rows = []
    with lab.node(release_delay=DELAYS[0]) as node, lab.stage(node) as stage:
        players = begin(stage, folder, names)
        before = alone(lab, players)
        for delay in DELAYS:
            node.set_release_delay(delay)
            scenes[delay] = scene = Scene(names, before, watch(lab, *players))
            lab.say(f"{delay}: {scene.told()}")
            rows.append(
                Row(
                    what=f"{names[0]} beside {names[1]}, release-delay {delay}",
                    must="",
                    measured=f"{scene.told()} ({scene.of_free:.2f} of free)",
                    ok=None,
                    numbers=scene.numbers(),
                )
            )
    return [*rows, _verdict(names, scenes)]


def _verdict(names: tuple[str, str], scenes: dict[str, Scene]) -> Row:
    """The best delay has tokens as good as alone, if there is one, and then the most offline work."""
    fixed = {delay: scene for delay, scene in scenes.items() if delay != "auto"}
    best = max(fixed, key=lambda delay: (_held(fixed[delay]), fixed[delay].of_free))
    auto = scenes["auto"]
    share = auto.beside[1].per_s / fixed[best].beside[1].per_s if fixed[best].beside[1].per_s else 0.0
    good = _held(auto) >= _held(fixed[best]) and share >= 1 - _MOST_OFF_BEST
    alone_told = f"alone: TTFT {_ms(auto.alone[0], 'first_ms')}; token {_ms(auto.alone[0], 'token_ms')}"
    return Row(
        what=f"{names[0]} beside {names[1]}: auto against the best of {len(fixed)} fixed delays",
        must=f"tokens as good, offline >= {1 - _MOST_OFF_BEST:.2f} of it",
        measured=f"best {best}: offline {share:.2f} of it; tokens {number(auto.token_ratio, '.2f')} of alone",
        ok=good,
        numbers={"best": best, "alone": alone_told, "offline": auto.alone[1].figures},
    )


def _held(scene: Scene) -> bool:
    """Do later tokens come as they do alone, or first ones where there are no others?"""
    if scene.token_ratio is not None:
        return scene.token_ratio <= MOST_TOKEN
    return scene.added_ms is not None and scene.added_ms <= MOST_FIRST_MS
