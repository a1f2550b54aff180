"""What all rows with engines share: who can run here, two engines on one ground, and how they are alone."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from bench.gpu.children import ChildError
from bench.gpu.engines import figures
from bench.gpu.engines.catalog import ENGINES, Engine
from bench.gpu.engines.folder import Folder
from bench.gpu.engines.player import Player, let_end
from bench.gpu.grounds import Ground
from bench.gpu.lab import Lab
from bench.gpu.report import Row
from bench.gpu.stage import Stage, window

LEAST_SECONDS, MOST_SECONDS = 8.0, 15.0
SETTLE = 1.5
Measure = Callable[[Lab, Folder], list[Row]]


def length(lab: Lab) -> float:
    """Of one measurement: long enough for a tail, and short enough for a leased card."""
    return lab.seconds if lab.simulate else min(MOST_SECONDS, max(LEAST_SECONDS, lab.seconds))


def row(names: tuple[str, ...], limit: float, measure: Measure) -> Callable[[Lab], list[Row]]:
    """A row of the bench that says so where an engine is not there, and ends when its time is over."""

    def measured(lab: Lab) -> list[Row]:
        folder = Folder(lab.engines, lab.simulate is not None)
        for name in dict.fromkeys(names):
            if why := folder.missing(ENGINES[name]):
                return [Row(what=f"engines: {', '.join(dict.fromkeys(names))}", must="", measured=why, ok=None)]
        with at_most(limit):
            return measure(lab, folder)

    return measured


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise ChildError in what takes longer: the next row is measured all the same."""

    def over(number: int, frame: FrameType | None) -> None:
        raise ChildError(f"not done in {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass(slots=True)
class Found:
    """Figures of one engine, and its answers."""

    figures: dict[str, Any]
    answers: dict[int, set[str]]

    @property
    def per_s(self) -> float:
        return float(self.figures["per_s"])

    def ms(self, what: str, quantile: str) -> float | None:
        found = self.figures.get(what)
        return None if found is None else float(found[quantile])


def watch(lab: Lab, *players: Player, seconds: float | None = None) -> list[Found]:
    """Let them run together for a window, and what each did in it."""
    for player in players:
        player.run()
    time.sleep(SETTLE if lab.simulate is None else 0.3)
    measured = window(seconds or length(lab))
    let_end(*players)
    return [Found(player.done(measured), player.answers(measured)) for player in players]


def differing(alone: Found, beside: Found, engine: Engine) -> int | None:
    """Prompts that are answered otherwise than alone; None: this engine does not repeat itself even alone."""
    return figures.differing(alone.answers, beside.answers) if engine.repeatable else None


def same(differences: list[int | None]) -> tuple[str, bool]:
    """In words, and whether that is well."""
    counted = [each for each in differences if each is not None]
    if not counted:
        return "tokens not compared", True
    return ("same tokens" if not any(counted) else f"{sum(counted)} prompts with other tokens"), not any(counted)


def start(stage: Stage, *players: Callable[[], Player]) -> list[Player]:
    """vLLM measures the card's free memory as it starts: where it sees the whole card, one after the other."""
    started = []
    for begin in players:
        started.append(begin())
        if stage.ground.name != "aliquot":
            started[-1].ready()
    for player in started:
        player.ready()
    return started


def alone(lab: Lab, players: list[Player]) -> list[Found]:
    """One after the other, the others at rest."""
    return [watch(lab, player)[0] for player in players]


def on_grounds(lab: Lab, measure: Callable[[Ground], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The same with the stock driver and MPS, where `--grounds` names them; what fails there is told, not raised."""
    found: dict[str, dict[str, Any]] = {}
    if "stock" in lab.grounds:
        try:
            found["stock"] = measure(lab.stock)
        except ChildError as error:
            lab.say(f"stock: {error}")
    if "mps" in lab.grounds and (under := lab.under_mps(measure)):
        found["mps"] = under
    return found
