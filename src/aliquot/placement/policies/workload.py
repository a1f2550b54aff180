"""What kind of Pods come here, learned from those seen: the shapes that make up 95% of them, by frequency.

A lesson is taken after 32 Pods, and again whenever half as many more were seen *and* their mix has changed: in a steady
cluster the results of a lesson stay valid. Old Pods are forgotten by halves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from aliquot.model.device import CORE_MILLI
from aliquot.placement.board import Board, Bools, Floats, Ints
from aliquot.placement.demand import Demand, milli_of
from aliquot.placement.policies.prices import GRAIN

COVER = 0.95  # of the Pods seen; rarer shapes add little and cost time
_FIRST_LESSON = 32
_MEMORY = 1 << 15  # Pods; at that many, what was seen counts half
_NEWS = 0.05  # of the Pods are of another shape than the last lesson said
_WEIGHT = 1 << 20  # frequencies become whole numbers, so that sums do not depend on their order


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """One kind of Pod: `count` cards, `milli` thousandths of each (in steps of ten), with that much CPU."""

    count: int
    milli: int
    cpu_milli: int
    models: tuple[str, ...] = ()  # none: any


@lru_cache(maxsize=1024)
def shape_of(demand: Demand, card_memory_mib: int) -> Shape:
    """The demand on cards of that size."""
    models = tuple(sorted(demand.models or ()))
    if demand.whole_node:
        return Shape(1, CORE_MILLI, demand.cpu_milli, models)
    milli = max((milli_of(part, card_memory_mib) for part in demand.parts), default=0)
    milli = -(-milli // GRAIN) * GRAIN
    count = sum(part.count for part in demand.parts) if milli else 0
    return Shape(count, milli, demand.cpu_milli, models)


class Workload:
    """Counts the shapes of the Pods seen."""

    def __init__(self) -> None:
        self._counts: Counter[Shape] = Counter()
        self._total = 0
        self._learned: Counter[Shape] = Counter()  # the counts at the last lesson
        self._next_look = _FIRST_LESSON

    def observe(self, demand: Demand, card_memory_mib: int) -> None:
        """One more Pod like this; a share of memory is taken of a card of that size."""
        self._counts[shape_of(demand, card_memory_mib)] += 1
        self._total += 1
        if self._total >= _MEMORY:
            self._counts = Counter({shape: times // 2 for shape, times in self._counts.items() if times > 1})
            self._total = self._counts.total()
            self._next_look = self._total + _MEMORY // 4

    def has_news(self) -> bool:
        """Whether a new lesson would differ from the last; looks rarely."""
        total = self._total
        if total < self._next_look:
            return False
        self._next_look = total + total // 2
        before = max(self._learned.total(), 1)
        shapes = self._counts.keys() | self._learned.keys()
        moved = sum(abs(self._counts[shape] / total - self._learned[shape] / before) for shape in shapes) / 2
        return moved > _NEWS

    def everything(self) -> list[tuple[Shape, int]]:
        """All shapes remembered, the rare ones too, each with how often it was seen."""
        return sorted(self._counts.items())

    def lesson(self) -> list[tuple[Shape, int]]:
        """The most frequent shapes that together cover 95%, each with how often it was seen."""
        self._learned = self._counts.copy()
        wanted = COVER * self._total
        chosen: list[tuple[Shape, int]] = []
        covered = 0
        for shape, times in sorted(self._counts.items(), key=lambda item: (-item[1], item[0])):
            if covered >= wanted:
                break
            chosen.append((shape, times))
            covered += times
        return chosen


@dataclass(frozen=True, slots=True)
class Typical:
    """The typical Pods that ask for GPU, as columns over their kinds (cards, milli, models).

    How many of a kind a node's free CPU would satisfy is a table: `served[level, kind]`, where `level` is how many of
    the CPU sizes in use are within reach.
    """

    count: Ints
    milli: Ints
    models: tuple[tuple[str, ...], ...]  # none: any
    cpu_levels: Ints
    served: Floats  # of whole numbers
    total: int  # of the weights
    cpu_per_milli: float  # 0 when no Pod asks for CPU

    def level(self, room_cpu: Ints) -> Ints:
        """The row of `served` for that much free CPU."""
        return np.searchsorted(self.cpu_levels, room_cpu, side="right")

    def access(self, board: Board) -> Bools:
        """[model, kind]: which kinds may use a card of that model."""
        return np.array(
            [[not models or name in models for models in self.models] for name in board.models], bool
        ).reshape(len(board.models), len(self.models))


def typical_pods(shapes: Iterable[tuple[Shape, int]]) -> Typical:
    """The columns for these shapes and counts."""
    shapes = list(shapes)
    seen = sum(times for _, times in shapes)
    asking = [(shape, times) for shape, times in shapes if shape.count]
    kinds = sorted({(shape.count, shape.milli, shape.models) for shape, _ in asking})
    place = {kind: at for at, kind in enumerate(kinds)}
    levels = sorted({shape.cpu_milli for shape, _ in asking})
    served = np.zeros((len(levels) + 1, len(kinds)))
    cpu = gpu = 0
    for shape, times in asking:
        weight = max(1, times * _WEIGHT // seen)
        served[levels.index(shape.cpu_milli) + 1 :, place[shape.count, shape.milli, shape.models]] += weight
        cpu += times * shape.cpu_milli
        gpu += times * shape.count * shape.milli
    return Typical(
        count=np.array([kind[0] for kind in kinds], np.int64),
        milli=np.array([kind[1] for kind in kinds], np.int64),
        models=tuple(kind[2] for kind in kinds),
        cpu_levels=np.array(levels, np.int64),
        served=served,
        total=_WEIGHT,
        cpu_per_milli=cpu / gpu if gpu else 0.0,
    )
