"""What every Node says to Kubernetes, and how many cards that makes where no inventory tells.

Several dialects may advertise one node at once; they speak of the same cards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

from aliquot.dialects.pods import MIB, Json, amount_at, count_at, list_at, mapping_at, text_at
from aliquot.model.device import Card
from aliquot.model.refusal import Invalid

# More than any machine holds. The board is as wide as the widest node: one that says "1e9" must not make it so.
MOST_CARDS = 128

ASSUMED_CARD_MIB = 16 * 1024


@dataclass(frozen=True, slots=True)
class NodeView:
    """A Node as far as a dialect may care."""

    name: str
    labels: Json
    annotations: Json
    capacity: Json
    allocatable: Json
    taints: tuple[object, ...]
    problems: tuple[Invalid, ...]

    def count(self, resource: str, problems: list[Invalid]) -> int | None:
        """How many of the resource the node has; None where it does not say."""
        for side, amounts in (("capacity", self.capacity), ("allocatable", self.allocatable)):
            if resource in amounts:
                field = f'status.{side}["{resource}"]'
                return count_at(amounts[resource], field, problems, allowed="a whole number, 0 or more", least=0)
        return None

    def amount(self, resource: str, scale: int, problems: list[Invalid]) -> int | None:
        """How much of CPU or memory Pods may have. Without allocatable it is the capacity, as in Kubernetes."""
        for side, amounts in (("allocatable", self.allocatable), ("capacity", self.capacity)):
            if resource in amounts:
                return floor(amount_at(amounts[resource], f'status.{side}["{resource}"]', problems) * scale)
        return None

    def cpu_milli(self, problems: list[Invalid]) -> int | None:
        """Milli-CPU for Pods."""
        return self.amount("cpu", 1000, problems)

    def memory_mib(self, problems: list[Invalid]) -> int | None:
        """Host memory for Pods."""
        found = self.amount("memory", 1, problems)
        return None if found is None else found // MIB


def read_node(value: object) -> NodeView | Invalid:
    """What the Node says; an Invalid for what is no Node at all."""
    if not isinstance(value, dict):
        return Invalid("node", value, "a Node object")
    problems: list[Invalid] = []
    metadata = mapping_at(value.get("metadata"), "metadata", problems)
    name = text_at(metadata.get("name"), "metadata.name", problems)
    if not name and not problems:
        problems.append(Invalid("metadata.name", None, "a node needs a name"))
    spec = mapping_at(value.get("spec"), "spec", problems)
    status = mapping_at(value.get("status"), "status", problems)
    return NodeView(
        name=name,
        labels=mapping_at(metadata.get("labels"), "metadata.labels", problems),
        annotations=mapping_at(metadata.get("annotations"), "metadata.annotations", problems),
        capacity=mapping_at(status.get("capacity"), "status.capacity", problems),
        allocatable=mapping_at(status.get("allocatable"), "status.allocatable", problems),
        taints=tuple(list_at(spec.get("taints"), "spec.taints", problems)),
        problems=tuple(problems),
    )


@dataclass(frozen=True, slots=True)
class Told:
    """A number, and the resource that told it."""

    source: str
    number: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one dialect's resources tell of a node's cards: how many, how much memory in all. None: they do not."""

    cards: Told | None = None
    memory: Told | None = None  # in units
    unit_mib: int = 1024


def told(source: str, number: int | None) -> Told | None:
    """A resource at 0 is one whose plugin is gone: it tells nothing."""
    return Told(source, number) if number else None


def told_in_percent(source: str, percent: int | None, notes: list[str]) -> Told | None:
    """How many cards a resource tells of that counts 100 for each."""
    if not percent:
        return None
    cards = max(1, percent // 100)
    if percent != cards * 100:
        notes.append(f"{source} is {percent}, not a multiple of 100: counted as {cards} card{'s' * (cards > 1)}")
    return Told(source, cards)


def cards_from(capacities: Sequence[Capacity], notes: list[str], problems: list[Invalid]) -> tuple[Card, ...]:
    """The cards all these describe: number and memory from the first that tells, the rest compared and noted."""
    counts = [capacity.cards for capacity in capacities if capacity.cards]
    memories = [(capacity.memory, capacity.unit_mib) for capacity in capacities if capacity.memory]
    if not counts and not memories:
        return ()
    if not counts:
        notes.append(f"{memories[0][0].source} does not say how many cards there are: one is assumed")
        counts = [Told(memories[0][0].source, 1)]
    first = counts[0]
    if first.number > MOST_CARDS:
        field = f'status.capacity["{first.source}"]'
        problems.append(Invalid(field, first.number, f"no more than {MOST_CARDS} cards in a node"))
        return ()
    notes += [
        f"{first.source} tells of {first.number} cards, {other.source} of {other.number}: the first holds"
        for other in counts[1:]
        if other.number != first.number
    ]
    memory_mib = _memory_of_each(memories, first.number, notes)
    return tuple(Card(index=index, memory_mib=memory_mib) for index in range(first.number))


def _memory_of_each(memories: Sequence[tuple[Told, int]], cards: int, notes: list[str]) -> int:
    """In whole units, rounded down: where cards are unequal, none is promised much more than it has."""
    if not memories:
        notes.append(f"nothing tells the memory of the cards: {ASSUMED_CARD_MIB // 1024} GiB each is assumed")
        return ASSUMED_CARD_MIB
    each_mib = [total.number // cards * unit_mib for total, unit_mib in memories]
    first = memories[0][0]
    if first.number % cards:
        notes.append(
            f"{first.source} is {first.number}, which {cards} cards do not share evenly: rounded down for each"
        )
    for (other, _), theirs in zip(memories[1:], each_mib[1:], strict=True):
        if theirs != each_mib[0]:
            notes.append(
                f"{first.source} tells of {each_mib[0]} MiB a card, {other.source} of {theirs}: the first holds"
            )
    return each_mib[0]
