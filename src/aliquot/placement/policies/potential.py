"""What a node is still good for, as one number; `packing.py` places where it grows least.

With G the node's free milli-GPU, C its free CPU and rho the CPU per milli-GPU of the typical Pods:

    F  expected free milli-GPU that a typical Pod could not use here: all of G when it does not fit,
       else the cards too small for it                       (Weng et al., "Beware of Fragmentation", ATC'23)
    S  = max(0, G - C / rho)       GPU that has no CPU left to be sold with
    X  = max(0, 2 G - C / rho)     the same, looking ahead
    V  = - what the remainders of the cards are worth        (prices.py)

F needs, per node and kind of typical Pod, how many cards would do and how much is free on those. That is kept per row
and brought up to date as rows change, for every request; a card that changes then only changes two terms of it.

Every number that is summed is whole and below 2**53, so that sums of floats are exact and do not depend on their order:
a score never depends on which rows were asked for with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aliquot.model.device import CORE_MILLI
from aliquot.placement.board import Board, Bools, Floats, Ints
from aliquot.placement.policies.prices import remainder_values
from aliquot.placement.policies.workload import Shape, typical_pods


@dataclass(frozen=True, slots=True)
class Weights:
    """How much each term counts."""

    value: float  # V
    fragments: float  # F
    stranded: float  # S
    ahead: float  # X


class Potential:
    """The potential for one estimate of the workload, on one board."""

    def __init__(self, board: Board, weights: Weights, shapes: list[tuple[Shape, int]]) -> None:
        pieces: dict[int, int] = {}
        for shape, times in shapes:
            pieces[shape.milli] = pieces.get(shape.milli, 0) + shape.count * times
        self._board = board
        self._weights = weights
        self._typical = typical_pods(shapes)
        self._values = remainder_values(pieces)
        free = np.arange(CORE_MILLI + 1)[:, None]
        enough = (free >= self._typical.milli).astype(float)
        # [free milli, kinds twice]: would the card do for the kind, and how much of it is then of use
        self._uses = np.hstack([enough, free * enough])
        self._access: Bools = self._typical.access(board)  # [model, kind]: may use a card of that model
        self._clock = -1
        space = len(board.changed)
        self._of_row: Floats = np.zeros((space, self._uses.shape[1]))  # the same, summed over the cards of each row
        self._fragments: Floats = np.zeros(space)  # [row]: F, in weights
        self._stranded: Floats = np.zeros(space)  # [row]: the terms in S and X

    def wasted(self) -> float:
        """F over all rows, in milli-GPU."""
        self._follow()
        return float(self._fragments[: self._board.rows].sum()) / self._typical.total

    def growth_of_one(self, rows: Ints, before: Ints, after: Ints, cpu_milli: int) -> Floats:
        """For each option: the growth when one card of that row goes from `before` to `after` free milli."""
        self._follow()
        uses = self._of_row.take(rows, axis=0)
        uses -= self._uses.take(before, axis=0)
        uses += self._uses.take(after, axis=0)
        taken = before - after
        growth = self._fragments_grown(rows, uses, taken, cpu_milli)
        growth += self._weights.value * (self._values[before] - self._values[after])
        return growth + self._strandings(rows, taken, cpu_milli) - self._stranded[rows]

    def growth_of_several(self, rows: Ints, after: Ints, cpu_milli: int) -> Floats:
        """For each row: the growth when its cards come to have `after[row, slot]` free milli."""
        self._follow()
        before = self._board.milli[rows]
        taken = (before - after).sum(axis=1)
        growth = self._fragments_grown(rows, self._uses[after].sum(axis=1), taken, cpu_milli)
        growth += self._weights.value * (self._values[before] - self._values[after]).sum(axis=1)
        return growth + self._strandings(rows, taken, cpu_milli) - self._stranded[rows]

    def _fragments_grown(self, rows: Ints, uses: Floats, taken: Ints, cpu_milli: int) -> Floats:
        after = self._in_weights(rows, uses, self._board.free[rows] - taken, cpu_milli)
        return (after - self._fragments[rows]) * (self._weights.fragments / self._typical.total)

    def _in_weights(self, rows: Ints, uses: Floats, free: Ints, cpu_milli: int) -> Floats:
        """F of each row, for those cards and that much less CPU, times the total weight."""
        board, typical = self._board, self._typical
        served = typical.served.take(typical.level(board.room_cpu[rows] - cpu_milli), axis=0)
        if any(typical.models):  # by the node's first card: mixed nodes are rare, and this is only a score
            if len(self._access) != len(board.models):
                self._access = typical.access(board)
            served = served * self._access[board.model[rows, 0]]
        kinds = len(typical.milli)
        enough = uses[:, :kinds] >= typical.count
        useful = np.einsum("rk,rk,rk->r", served, uses[:, kinds:], enough)
        return free * float(typical.total) - useful

    def _strandings(self, rows: Ints, taken: Ints | int, cpu_milli: int) -> Floats:
        """The terms in S and X once `taken` milli and that much CPU are gone."""
        weights, rho = self._weights, self._typical.cpu_per_milli
        if not rho or not (weights.stranded or weights.ahead):
            return np.zeros(len(rows))
        free = self._board.free[rows] - taken
        sold = (self._board.room_cpu[rows] - cpu_milli) / rho
        return weights.stranded * np.maximum(0.0, free - sold) + weights.ahead * np.maximum(0.0, 2 * free - sold)

    def _follow(self) -> None:
        """Bring what is kept per row up to date."""
        board = self._board
        if self._clock == board.clock:
            return
        missing = len(board.changed) - len(self._fragments)
        if missing:
            self._of_row = np.concatenate([self._of_row, np.zeros((missing, self._of_row.shape[1]))])
            self._fragments = np.concatenate([self._fragments, np.zeros(missing)])
            self._stranded = np.concatenate([self._stranded, np.zeros(missing)])
        rows = np.flatnonzero(board.changed[: board.rows] > self._clock)
        # Slot by slot: all at once would be rows x cards x kinds numbers in memory.
        self._of_row[rows] = sum(self._uses.take(board.milli[rows, slot], axis=0) for slot in range(board.width))
        self._fragments[rows] = self._in_weights(rows, self._of_row[rows], board.free[rows], 0)
        self._stranded[rows] = self._strandings(rows, 0, 0)
        self._clock = board.clock
