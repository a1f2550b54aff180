"""The Pods of the trials: 411 shapes in the mix of a real cluster, and shapes that no Pod had before.

Benchmarks with one shape flatter a scheduler that keeps what it worked out per shape. A shape here is what a Pod asks
for: slices of several sizes and dialects, whole cards, online and offline work, several containers, CPU and memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aliquot.dialects import gpushare, qgpu

SHAPES = 411
_CPU = (0, 500, 1000, 2000, 3500, 4000, 6000, 8000)
_MEMORY = (0, 512, 1024, 2048, 4096, 8192, 16384, 24576)
_GIB = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24)
_CORE = (5, 10, 20, 25, 30, 50, 75)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a Pod asks for: GPU resources of each container, CPU and memory of the first, annotations."""

    containers: tuple[tuple[tuple[str, int], ...], ...]
    cpu_milli: int = 0
    memory_mib: int = 0
    annotations: tuple[tuple[str, str], ...] = ()

    def written(self) -> list[dict[str, Any]]:
        """The containers as a Pod's manifest has them."""
        host: dict[str, str] = {}
        if self.cpu_milli:
            host["cpu"] = f"{self.cpu_milli}m"
        if self.memory_mib:
            host["memory"] = f"{self.memory_mib}Mi"
        return [
            {
                "name": f"c{place}",
                "image": "registry.example/pause",
                "resources": {
                    "limits": {resource: str(amount) for resource, amount in limits},
                    **({"requests": host} if host and not place else {}),
                },
            }
            for place, limits in enumerate(self.containers)
        ]


def gpushare_shapes(count: int = SHAPES) -> list[Shape]:
    """Slices of memory alone, which every extender of that dialect can place."""
    return _distinct(count, _memory_only)


def mixed_shapes(count: int = SHAPES) -> list[Shape]:
    """The same dialect and qGPU: slices, several cards, several containers, online and offline."""
    return _distinct(count, _mixed)


def new_shapes(count: int, *, gpushare_only: bool = False) -> Iterator[Shape]:
    """Shapes that are none of the others, each once: their amount of CPU is odd."""
    chance = random.Random(1)
    for number in range(count):
        shape = _memory_only(chance) if gpushare_only else _mixed(chance)
        yield Shape(shape.containers, 1 + 2 * number, shape.memory_mib, shape.annotations)


def weights(shapes: Sequence[Shape]) -> list[float]:
    """How often each comes: few kinds of Pods are most of them, as in Alibaba's traces."""
    return [1.0 / (1 + place) ** 0.6 for place in range(len(shapes))]


def _host(chance: random.Random) -> tuple[int, int]:
    return chance.choice(_CPU), chance.choice(_MEMORY)


def _memory_only(chance: random.Random) -> Shape:
    return Shape((((gpushare.MEMORY, chance.choice(_GIB)),),), *_host(chance))


def _mixed(chance: random.Random) -> Shape:
    kind = chance.random()
    host = _host(chance)
    if kind < 0.4:
        return _memory_only(chance)
    if kind < 0.75:
        return Shape((_sliced(chance),), *host)
    if kind < 0.83:
        several = ((gpushare.MEMORY, chance.choice((8, 16, 24))), (gpushare.COUNT, chance.choice((2, 4))))
        return Shape((several,), *host)
    if kind < 0.9:
        return Shape((((qgpu.MEMORY, chance.choice(_GIB)),),), *host, ((qgpu.APP_CLASS, "online"),))
    if kind < 0.95:
        greedy = ((qgpu.MEMORY, chance.choice(_GIB)), (qgpu.GREEDY, 10 * chance.randint(1, 9)))
        return Shape((greedy,), *host, ((qgpu.APP_CLASS, "offline"),))
    return Shape((_sliced(chance), _sliced(chance)), *host)


def _sliced(chance: random.Random) -> tuple[tuple[str, int], ...]:
    return (qgpu.CORE, chance.choice(_CORE)), (qgpu.MEMORY, chance.choice(_GIB))


def _distinct(count: int, make: Callable[[random.Random], Shape]) -> list[Shape]:
    chance = random.Random(15)
    found: dict[Shape, None] = {}
    while len(found) < count:
        found[make(chance)] = None
    return list(found)


def capacity(cards: int, card_gib: int) -> Mapping[str, int]:
    """What a node of these cards says to kube-scheduler in both dialects."""
    return {
        gpushare.MEMORY: cards * card_gib,
        gpushare.COUNT: cards,
        qgpu.CORE: cards * 100,
        qgpu.MEMORY: cards * card_gib,
        qgpu.GREEDY: cards * 100,
    }
