"""Fragmentation as one number: the part of what is free that is of no use to the Pods seen.

Weng et al.'s measure ("Beware of Fragmentation", ATC'23), over the whole board: for each node and kind of Pod, all that
is free there when the Pod does not fit, else the cards too small for it; weighted by how often the kind is seen. Only
rows that changed are computed again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from aliquot.model.claim import Usage
from aliquot.model.device import CORE_MILLI
from aliquot.placement.board import Board
from aliquot.placement.policies.potential import Potential, Weights
from aliquot.placement.policies.prices import GRAIN
from aliquot.placement.policies.workload import Shape

_MOST_KINDS = 64  # each is a column over all nodes; rarer ones matter little
_ONLY_FRAGMENTS = Weights(value=0.0, fragments=1.0, stranded=0.0, ahead=0.0)


class Waste:
    """Of one board."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._potential: Potential | None = None
        self._learned: Counter[Shape] = Counter()

    def learn(self, usages: Iterable[tuple[Iterable[Usage], int]]) -> None:
        """Take these for the Pods still to come: what each has of its cards, and its milli-CPU."""
        usual = self._board.usual_memory()
        counts = Counter(shape for cards, cpu in usages if (shape := _shape(cards, cpu, usual)) is not None)
        if counts != self._learned:
            self._learned = counts
            common = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_MOST_KINDS]
            self._potential = Potential(self._board, _ONLY_FRAGMENTS, common) if counts else None

    def ratio(self) -> float | None:
        """0 to 1. None: nothing is free, or no Pod was seen."""
        free = int(self._board.free[: self._board.rows].sum())
        if self._potential is None or not free:
            return None
        return max(0.0, self._potential.wasted() / free)  # weights of rare kinds are rounded up


def _shape(cards: Iterable[Usage], cpu_milli: int, card_memory_mib: int) -> Shape | None:
    """The kind of Pod that has this; None: it has no card."""
    millis = [
        CORE_MILLI
        if use.exclusive
        else min(CORE_MILLI, max(use.core_milli, use.memory_mib * CORE_MILLI // max(card_memory_mib, 1)))
        for use in cards
    ]
    if not any(millis):
        return None
    return Shape(len(millis), -(-max(millis) // GRAIN) * GRAIN, cpu_milli)
