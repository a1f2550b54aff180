"""What a node is still good for, as one number; `packing.py` places where it grows least.

With G the node's free milli-GPU, C its free CPU and rho the CPU per milli-GPU of the typical Pods:

    F  expected free milli-GPU that a typical Pod could not use here: all of G when it does not fit,
       else the cards too small for it                       (Weng et al., "Beware of Fragmentation", ATC'23)
    S  = max(0, G - C / rho)       GPU that has no CPU left to be sold with
    X  = max(0, 2 G - C / rho)     the same, looking ahead
    V  = - what the remainders of the cards are worth        (prices.py)

F needs, per node and kind of typical Pod, how many cards would do and how much is free on those. That is kept per row
and brought up to date as rows change, whatever is asked; a card that changes then only changes two terms of it.

Every number that is summed is whole and below 2**53, so that sums of floats are exact and do not depend on their order:
a score never depends on which rows were asked for with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aliquot.model.device import CORE_MILLI

from .board import Board, Floats, Ints
from .prices import remainder_values
from .workload import Shape, typical_pods


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
        self._enough = (free >= self._typical.milli).astype(float)  # [free milli, kind]: would the card do?
        self._usable = free * self._enough  # ... and how much of it is then of use
        self._clock = -1
        self._counts: Floats = np.zeros((0, 0))  # [row, kind]: how many cards would do
        self._usables: Floats = np.zeros((0, 0))  # [row, kind]: how much is free on them
        self._fragments: Floats = np.zeros(0)  # [row]: F, in weights

    def growth_of_one(self, rows: Ints, before: Ints, after: Ints, cpu_milli: int) -> Floats:
        """For each option: the growth when one card of that row goes from `before` to `after` free milli."""
        self._follow()
        counts = self._counts[rows] - self._enough[before] + self._enough[after]
        usables = self._usables[rows] - self._usable[before] + self._usable[after]
        taken = before - after
        growth = self._fragments_grown(rows, counts, usables, taken, cpu_milli)
        growth += self._weights.value * (self._values[before] - self._values[after])
        return growth + self._strandings(rows, taken, cpu_milli)

    def growth_of_several(self, rows: Ints, after: Ints, cpu_milli: int) -> Floats:
        """For each row: the growth when its cards come to have `after[row, slot]` free milli."""
        self._follow()
        before = self._board.milli[rows]
        taken = (before - after).sum(axis=1)
        counts, usables = self._enough[after].sum(axis=1), self._usable[after].sum(axis=1)
        growth = self._fragments_grown(rows, counts, usables, taken, cpu_milli)
        growth += self._weights.value * (self._values[before] - self._values[after]).sum(axis=1)
        return growth + self._strandings(rows, taken, cpu_milli)

    def _fragments_grown(self, rows: Ints, counts: Floats, usables: Floats, taken: Ints, cpu_milli: int) -> Floats:
        after = self._in_weights(rows, counts, usables, self._board.free[rows] - taken, cpu_milli)
        return (after - self._fragments[rows]) * (self._weights.fragments / self._typical.total)

    def _in_weights(self, rows: Ints, counts: Floats, usables: Floats, free: Ints, cpu_milli: int) -> Floats:
        """F of each row, for those cards and that much less CPU, times the total weight."""
        board, typical = self._board, self._typical
        served = typical.served[typical.level(board.room_cpu[rows] - cpu_milli)]
        if any(typical.models):
            served = served * typical.access(board)[board.model[rows, 0]]
        useful = np.einsum("rk,rk,rk->r", served, usables, counts >= typical.count)
        return free * float(typical.total) - useful

    def _strandings(self, rows: Ints, taken: Ints, cpu_milli: int) -> Floats:
        """Growth of the terms in S and X when `taken` milli and that much CPU go."""
        rho = self._typical.cpu_per_milli
        growth = np.zeros(len(rows))
        if not rho:
            return growth
        free, cpu = self._board.free[rows], self._board.room_cpu[rows]
        before, after = cpu / rho, (cpu - cpu_milli) / rho
        for weight, times in ((self._weights.stranded, 1), (self._weights.ahead, 2)):
            if weight:
                later = np.maximum(0.0, times * (free - taken) - after)
                growth += weight * (later - np.maximum(0.0, times * free - before))
        return growth

    def _follow(self) -> None:
        """Bring what is kept per row up to date."""
        board = self._board
        if self._clock == board.clock:
            return
        missing = len(board.changed) - len(self._counts)
        if missing:
            kinds = len(self._typical.milli)
            self._counts = np.concatenate([self._counts.reshape(-1, kinds), np.zeros((missing, kinds))])
            self._usables = np.concatenate([self._usables.reshape(-1, kinds), np.zeros((missing, kinds))])
            self._fragments = np.concatenate([self._fragments, np.zeros(missing)])
        rows = np.flatnonzero(board.changed[: board.rows] > self._clock)
        milli = board.milli[rows]
        self._counts[rows] = self._enough[milli].sum(axis=1)
        self._usables[rows] = self._usable[milli].sum(axis=1)
        self._fragments[rows] = self._in_weights(rows, self._counts[rows], self._usables[rows], board.free[rows], 0)
        self._clock = board.clock
