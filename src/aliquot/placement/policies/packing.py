"""`fgd` and `dense`: place where least is spoiled for the Pods still to come. docs/packing.md has the figures.

Both score by how much the node's potential grows (potential.py):

    fgd    F alone, rounded as published
    dense  V + 0.1 F + 0.1 S + 0.03 X, rounded to 10 milli; and it keeps room for Pods of several cards (reserve.py)

The Pods still to come are taken to be like those seen; the estimate is made anew when what is seen has changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from aliquot.model.claim import AppClass, Slice
from aliquot.model.device import CORE_MILLI
from aliquot.placement.board import Board, Bools, Floats, Ints
from aliquot.placement.demand import Demand
from aliquot.placement.fit import fitting_cards, memory_need
from aliquot.placement.policies.potential import Potential, Weights
from aliquot.placement.policies.ranking import Fill
from aliquot.placement.policies.reserve import Reserve
from aliquot.placement.policies.workload import Workload

# The published score is int(100 * sigmoid(-growth / 1000)): these are the growths where it changes. Without the
# rounding the same rule packs 0.7 points worse: every tiny difference then scatters Pods over the nodes.
_PUBLISHED_STEPS = np.array(sorted(-1000.0 * math.log(k / (100 - k)) for k in range(1, 100)))


def _published(growth: Floats) -> Floats:
    return np.searchsorted(_PUBLISHED_STEPS, growth).astype(float)


def _to_ten_milli(growth: Floats) -> Floats:
    """For the same reason, and with less loss than the published rounding."""
    return np.floor(growth / 10.0)


class Packing:
    """The policy for one set of weights, with the workload it has learned."""

    def __init__(self, weights: Weights, rounded: Callable[[Floats], Floats], *, keeps_room: bool = False) -> None:
        self.version = 0
        self._keeps_room = keeps_room
        self._reserve: Reserve | None = None
        self._weights = weights
        self._rounded = rounded
        self._mixed = Fill(spread=False)  # Pods with an app-class follow qGPU's rule
        self._workload = Workload()
        self._potential: Potential | None = None

    def spreads(self, demand: Demand) -> bool:
        """Whether qGPU's rule spreads the demand: nothing else is spread."""
        return self._mixed.spreads(demand)

    def follows_class(self, demand: Demand) -> bool:
        """Whether qGPU's rule decides instead of the potential."""
        return demand.app_class is not AppClass.NORMAL

    def observe(self, board: Board, demand: Demand) -> None:
        """Learn from one more Pod seen."""
        self._workload.observe(demand, board.usual_memory())
        if self._workload.has_news():
            self.learn(board)

    def learn(self, board: Board) -> None:
        """Take the workload as seen so far for what is to come."""
        self._potential = Potential(board, self._weights, self._workload.lesson())
        if self._keeps_room:
            self._reserve = Reserve(board, self._workload.everything())
        self.version += 1

    def node_scores(self, board: Board, demand: Demand, rows: Ints, cards: Bools) -> tuple[Floats, Ints]:
        """The potential's growth when the best cards of each node are taken."""
        if self.follows_class(demand):
            return self._mixed.node_scores(board, demand, rows, cards)
        potential = self._known(board)
        if not demand.parts or demand.parts[0].count > 1 or not demand.exact:
            after = self._after_all(board, demand, rows, cards)
            growth = potential.growth_of_several(rows, after, demand.cpu_milli)
            return self._rounded(growth), np.zeros(len(rows), int)
        before, after = board.milli[rows], self._after(board, demand.parts[0].slice, rows)
        tried = np.flatnonzero(cards & ~_seen_before(before, after, cards))  # much faster than nonzero
        at = rows.take(tried // board.width)
        growth = potential.growth_of_one(at, before.take(tried), after.take(tried), demand.cpu_milli)
        scores = np.full(before.shape, np.inf)
        scores.put(tried, self._rounded(growth))
        return scores.min(axis=1), scores.argmin(axis=1)

    def card_scores(self, board: Board, demand: Demand, row: int) -> Floats:
        """The potential's growth for each card of the row; whole cards in their order."""
        if self.follows_class(demand):
            return self._mixed.card_scores(board, demand, row)
        if not demand.parts or demand.parts[0].slice.exclusive or demand.parts[0].slice.core_milli == CORE_MILLI:
            return np.arange(board.width, dtype=float)
        rows = np.array([row])
        after = self._after(board, demand.parts[0].slice, rows)[0]
        rows = rows.repeat(board.width)
        return self._rounded(self._known(board).growth_of_one(rows, board.milli[row], after, demand.cpu_milli))

    def dues(self, demand: Demand, cards: Ints) -> tuple[Ints, Floats] | None:
        """Rows where the demand pays for taking room from Pods of several cards, and how much."""
        if self._reserve is None or demand.app_class is not AppClass.NORMAL:
            return None
        found = self._reserve.dues(demand, cards)
        return None if found is None else (found[0], self._rounded(found[1]))

    def _known(self, board: Board) -> Potential:
        if self._potential is None:
            self.learn(board)
        assert self._potential is not None
        return self._potential

    def _after(self, board: Board, part: Slice, rows: Ints) -> Ints:
        """[row, slot]: free milli of each card if the slice went there."""
        if part.exclusive:
            return np.zeros((len(rows), board.width), int)
        left = board.room_core[rows] - (part.core_milli or 0)
        if part.memory_mib or part.memory_percent:
            memory = board.memory[rows]
            rest = (board.room_memory[rows] - memory_need(board, part, rows)) * 1000 // np.maximum(memory, 1)
            left = np.minimum(left, rest)
        # A card of 700 free core and 300 free memory has 300 milli: what takes only core may leave those 300.
        return np.clip(left, 0, board.milli[rows])

    def _after_all(self, board: Board, demand: Demand, rows: Ints, cards: Bools) -> Ints:
        """[row, slot]: free milli after every part was given its cards, the first that fit."""
        left = board.milli[rows] * (0 if demand.whole_node else 1)
        for part in demand.parts:
            fitting = cards if part is demand.parts[0] else fitting_cards(board, part, demand, rows)
            chosen = fitting & (np.cumsum(fitting, axis=1) <= part.count)
            left = np.where(chosen, np.minimum(left, self._after(board, part.slice, rows)), left)
        return left


def _seen_before(before: Ints, after: Ints, cards: Bools) -> Bools:
    """[row, slot]: an earlier card that fits has just as much free, so this one need not be tried too."""
    both = before * (CORE_MILLI + 1) + after
    seen = np.zeros(both.shape, bool)
    for apart in range(1, both.shape[1]):
        seen[:, apart:] |= (both[:, apart:] == both[:, :-apart]) & cards[:, :-apart]
    return seen


def fgd() -> Packing:
    """Least expected fragmentation, as published."""
    return Packing(Weights(value=0.0, fragments=1.0, stranded=0.0, ahead=0.0), _published)


def dense() -> Packing:
    """The densest rule we know."""
    return Packing(Weights(value=1.0, fragments=0.1, stranded=0.1, ahead=0.03), _to_ten_milli, keeps_room=True)
