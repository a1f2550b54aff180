"""Nodes and Pods from CSV text in the openb format (Alibaba's production traces), or generated.

nodes: sn,cpu_milli,memory_mib,gpu,model        Pods: name,cpu_milli,memory_mib,num_gpu,gpu_milli[,gpu_spec,...]
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from aliquot.model.claim import AppClass, Claim, ContainerClaim, Role, Slice
from aliquot.model.device import CORE_MILLI, Card
from aliquot.model.node import Node, Offer

# The traces speak of thousandths of a card and not of its memory: every card gets the same, and no Pod asks for any.
_CARD_MEMORY_MIB = 16 * 1024

_MOST = 10**9  # of anything: larger numbers are slips, and would not fit the board's columns
MOST_CARDS = 128


class TraceError(ValueError):
    """The file cannot be used; the message names file, line and column."""


@dataclass(frozen=True, slots=True)
class PodSpec:
    """One Pod of a trace."""

    cpu_milli: int
    memory_mib: int
    num_gpu: int
    gpu_milli: int
    models: frozenset[str] | None = None
    elastic: bool = False  # asks for memory; offline work, which may be parked, where it asks for a part of one card

    @property
    def demand_milli(self) -> int:
        """All of the GPU that the task asks for."""
        return self.num_gpu * self.gpu_milli

    def claim(self, uid: str) -> Claim:
        """The task as a claim like any other."""
        parks = self.elastic and self.num_gpu == 1 and self.gpu_milli < CORE_MILLI
        share = Slice(
            memory_mib=self.gpu_milli * _CARD_MEMORY_MIB // CORE_MILLI if self.elastic else 0,
            core_milli=None if parks else self.gpu_milli,
        )
        part = ContainerClaim("main", 0, Role.MAIN, share, self.num_gpu)
        return Claim(
            uid=uid,
            namespace="trace",
            name=uid,
            dialect="trace",
            offer=Offer.ANY,
            containers=(part,) if self.num_gpu else (),
            models=self.models,
            app_class=AppClass.OFFLINE if parks else AppClass.NORMAL,
            cpu_milli=self.cpu_milli,
            memory_mib=self.memory_mib,
        )


def oversubscribed(nodes: Sequence[Node], pods: Sequence[PodSpec], factor: float) -> tuple[list[Node], list[PodSpec]]:
    """The same with cards that may be booked up to `factor` times their memory, and a pool for all that is beyond."""
    stretched = [
        structs.replace(
            node,
            cards=tuple(structs.replace(card, oversubscribe=factor) for card in node.cards),
            pool_mib=sum(structs.replace(card, oversubscribe=factor).bookable_mib for card in node.cards),
        )
        for node in nodes
    ]
    return stretched, [replace(pod, elastic=True) for pod in pods]


def parse_nodes(lines: Iterable[str], source: str) -> list[Node]:
    """The nodes of a CSV file; raises TraceError."""
    nodes: dict[str, Node] = {}
    for row in _rows(lines, source, ("sn", "cpu_milli", "memory_mib", "gpu", "model")):
        name = row.text("sn")
        if name in nodes:
            raise row.error("sn", f'"{name}" stands twice: every node needs a name of its own')
        model = row.cells["model"].strip()
        cards = row.whole("gpu", most=MOST_CARDS)
        nodes[name] = _node(name, row.whole("cpu_milli"), row.whole("memory_mib"), cards, model)
    return list(nodes.values())


def parse_pods(lines: Iterable[str], source: str, models: frozenset[str]) -> list[PodSpec]:
    """The Pods of a CSV file, for nodes of those models; raises TraceError."""
    pods = []
    for row in _rows(lines, source, ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")):
        cards = row.whole("num_gpu", most=MOST_CARDS)
        # A Pod without a card asks for nothing of one.
        milli = row.whole("gpu_milli", least=1, most=CORE_MILLI) if cards else row.whole("gpu_milli", most=0)
        spec = [name.strip() for name in (row.cells.get("gpu_spec") or "").split("|") if name.strip()]
        if spec and models.isdisjoint(spec):
            known = ", ".join(sorted(models - {""})) or "none"
            raise row.error("gpu_spec", f'"{"|".join(spec)}" is a model that no node has; the nodes have: {known}')
        pods.append(
            PodSpec(row.whole("cpu_milli"), row.whole("memory_mib"), cards, milli, frozenset(spec) if spec else None)
        )
    return pods


@dataclass(frozen=True, slots=True)
class _Row:
    source: str
    line: int
    cells: dict[str, str]

    def error(self, column: str, message: str) -> TraceError:
        return TraceError(f"{self.source}:{self.line}: column {column}: {message}")

    def text(self, column: str) -> str:
        value = self.cells[column].strip()
        if not value:
            raise self.error(column, "is empty")
        return value

    def whole(self, column: str, *, least: int = 0, most: int = _MOST) -> int:
        value = self.cells[column].strip()
        number = int(value) if value.isascii() and value.isdigit() and len(value) < 20 else None
        if number is None or not least <= number <= most:
            allowed = f"a whole number from {least} to {most}" if least < most else f"only {most}"
            raise self.error(column, f'"{value}" is not allowed: {allowed}')
        return number


def _rows(lines: Iterable[str], source: str, needed: tuple[str, ...]) -> Iterator[_Row]:
    reader = csv.reader(_without_nul(lines, source), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        if not header:
            raise TraceError(f"{source}:1: column {needed[0]}: the file is empty: it needs {','.join(needed)}")
        for name in needed:
            if name not in header:
                raise TraceError(f"{source}:1: column {name}: is missing; the file has: {','.join(header)}")
        found = False
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            found = True
            row = _Row(source, reader.line_num, dict(zip(header, cells, strict=False)))
            for name in needed:
                if name not in row.cells:
                    raise row.error(name, "is missing in this line")
            yield row
        if not found:
            raise TraceError(f"{source}:2: column {needed[0]}: nothing follows the header")
    except csv.Error as error:
        raise TraceError(f"{source}:{reader.line_num}: column 1: is not CSV: {error}") from error


def _without_nul(lines: Iterable[str], source: str) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if "\0" in line:
            raise TraceError(f"{source}:{number}: column {line.index(chr(0)) + 1}: is not text")
        yield line


def _node(name: str, cpu_milli: int, memory_mib: int, cards: int, model: str) -> Node:
    return Node(
        name=name,
        cards=tuple(Card(index, _CARD_MEMORY_MIB, model=model) for index in range(cards)),
        offers=frozenset({Offer.ANY}),
        cpu_milli=cpu_milli,
        memory_mib=memory_mib,
    )


# --- without a file ----------------------------------------------------------------------------------------------

# Kinds of Pods as inference and training clusters see them, with how often each comes: CPU milli, memory MiB, cards,
# thousandths of each. Not taken from any trace.
_USUAL = (
    (PodSpec(4_000, 8_192, 0, 0), 12),
    (PodSpec(2_000, 8_192, 1, 100), 8),
    (PodSpec(4_000, 12_288, 1, 250), 12),
    (PodSpec(5_000, 16_384, 1, 330), 8),
    (PodSpec(6_000, 16_384, 1, 450), 10),
    (PodSpec(8_000, 24_576, 1, 500), 10),
    (PodSpec(8_000, 32_768, 1, 600), 4),
    (PodSpec(8_000, 32_768, 1, 800), 6),
    (PodSpec(12_000, 49_152, 1, 1000), 20),
    (PodSpec(24_000, 98_304, 2, 1000), 4),
    (PodSpec(44_000, 180_224, 4, 1000), 3),
    (PodSpec(88_000, 360_448, 8, 1000), 3),
)


def generate(nodes: int, cards: int, seed: int) -> tuple[list[Node], list[PodSpec]]:
    """A cluster of equal nodes, and a sample of the usual Pods: some two for each card."""
    chance = random.Random(seed)
    pods, often = zip(*[(pod, times) for pod, times in _USUAL if pod.num_gpu <= cards], strict=True)
    sample = chance.choices(pods, often, k=max(100, 2 * nodes * cards))
    cpu, memory = 16_000 * cards, 128 * 1024 * cards
    return [_node(f"node-{at:05d}", cpu, memory, cards, "") for at in range(nodes)], sample
