"""What every Node reports to Kubernetes, and its cards by that where it has no inventory of ours.

Several dialects may advertise one node at once; they mean the same cards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

from aliquot.dialects.pods import MIB, amount_at, count_at
from aliquot.model.decoding.openjson import JsonView
from aliquot.model.device import Card
from aliquot.model.node import NodeNote, NoteKind
from aliquot.model.refusal import Invalid

# More than any machine holds. The board is as wide as the widest node: one that says "1e9" must not make it so.
MOST_CARDS = 128

ASSUMED_CARD_MIB = 16 * 1024


@dataclass(frozen=True, slots=True)
class NodeView:
    """A Node as far as a dialect may care."""

    name: str
    labels: JsonView
    annotations: JsonView
    capacity: JsonView
    allocatable: JsonView
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
        """How much of CPU or memory Pods may have."""
        side, amount = amount_for_pods(self.capacity, self.allocatable, resource)
        if not side:
            return None
        return floor(amount_at(amount, f'status.{side}["{resource}"]', problems) * scale)

    def cpu_milli(self, problems: list[Invalid]) -> int | None:
        """Milli-CPU for Pods."""
        return self.amount("cpu", 1000, problems)

    def memory_mib(self, problems: list[Invalid]) -> int | None:
        """Host memory for Pods."""
        found = self.amount("memory", 1, problems)
        return None if found is None else found // MIB


def amount_for_pods(capacity: JsonView, allocatable: JsonView, resource: str) -> tuple[str, object]:
    """Which side of the status says how much of it Pods may have, and what it says; without allocatable it is the
    capacity, as in Kubernetes. An empty side: neither does."""
    for side, amounts in (("allocatable", allocatable), ("capacity", capacity)):
        if resource in amounts:
            return side, amounts[resource]
    return "", None


@dataclass(frozen=True, slots=True)
class Advertised:
    """An amount, and the resource that advertises it."""

    source: str
    number: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one dialect's resources say of a node's cards: how many, how much memory in all. None: they do not say."""

    cards: Advertised | None = None
    memory: Advertised | None = None  # in units
    unit_mib: int = 1024


def advertised(source: str, number: int | None) -> Advertised | None:
    """None for a resource at 0: its device plugin is gone."""
    return Advertised(source, number) if number else None


def advertised_percent(source: str, percent: int | None, notes: list[NodeNote]) -> Advertised | None:
    """The number of cards, by a resource that counts 100 for each."""
    if not percent:
        return None
    cards = max(1, percent // 100)
    if percent != cards * 100:
        notes.append(NodeNote(NoteKind.PART_OF_A_CARD, source, percent, other_number=cards))
    return Advertised(source, cards)


def cards_from(capacities: Sequence[Capacity], notes: list[NodeNote], problems: list[Invalid]) -> tuple[Card, ...]:
    """The cards that all these describe: number and memory from the first that has them; differences are noted."""
    counts = [capacity.cards for capacity in capacities if capacity.cards]
    memories = [(capacity.memory, capacity.unit_mib) for capacity in capacities if capacity.memory]
    if not counts and not memories:
        return ()
    if not counts:
        notes.append(NodeNote(NoteKind.NO_CARD_COUNT, memories[0][0].source))
        counts = [Advertised(memories[0][0].source, 1)]
    first = counts[0]
    if first.number > MOST_CARDS:
        field = f'status.capacity["{first.source}"]'
        problems.append(Invalid(field, first.number, f"no more than {MOST_CARDS} cards in a node"))
        return ()
    notes += [
        NodeNote(NoteKind.CARD_COUNTS_DIFFER, first.source, first.number, other.source, other.number)
        for other in counts[1:]
        if other.number != first.number
    ]
    memory_mib = _memory_of_each(memories, first.number, notes)
    return tuple(Card(index=index, memory_mib=memory_mib) for index in range(first.number))


def _memory_of_each(memories: Sequence[tuple[Advertised, int]], cards: int, notes: list[NodeNote]) -> int:
    """In whole units, rounded down: where cards are unequal, none is promised much more than it has."""
    if not memories:
        notes.append(NodeNote(NoteKind.NO_MEMORY, number=ASSUMED_CARD_MIB))
        return ASSUMED_CARD_MIB
    card_mib = [total.number // cards * unit_mib for total, unit_mib in memories]
    first = memories[0][0]
    if first.number % cards:
        notes.append(NodeNote(NoteKind.UNEVEN_MEMORY, first.source, first.number, other_number=cards))
    for (other, _), theirs in zip(memories[1:], card_mib[1:], strict=True):
        if theirs != card_mib[0]:
            notes.append(NodeNote(NoteKind.MEMORIES_DIFFER, first.source, card_mib[0], other.source, theirs))
    return card_mib[0]
