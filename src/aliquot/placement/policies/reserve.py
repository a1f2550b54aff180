"""Room kept for Pods of several whole cards, while there is little of it.

The other terms of `dense` look at one card at a time and at the most frequent Pods. Pods of eight cards are one in two
hundred: nothing kept a small Pod from the last empty node, and where Pods come and go few nodes empty by themselves.

For each kind of Pod that asks for several whole cards, and the CPU it asks for with them, this counts the places that
the cluster has for it now. A kind is short when there are fewer than its margin: four standard deviations of how many
such Pods, and larger ones, a full cluster would have at a time. A Pod that would take a place from a kind that is short
pays for it, so that it goes elsewhere if it can. Where places abound nothing changes: a rule that always prefers broken
nodes packs a point worse, because it wastes CPU.

Nor does anything change where the cluster runs out of CPU before it runs out of GPU. There the places go for want of
CPU, all kinds are short from the start, and keeping room packs up to a point and a half worse.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from aliquot.model.device import CORE_MILLI
from aliquot.placement.board import Board, Floats, Ints
from aliquot.placement.demand import Demand
from aliquot.placement.policies.workload import Shape

_MARGIN = 4.0  # standard deviations; of 2 to 16, 4 to 8 let large Pods wait least
_PRICE = float(CORE_MILLI)  # milli-GPU for every card of a place that is lost: more than any other term comes to
_MOST_KINDS = 16  # the commonest
_CPU_TO_SPARE = 1.1  # times the CPU that the Pods seen ask for with as much GPU; less is scarce


class Reserve:
    """The places for one estimate of the workload, on one board."""

    def __init__(self, board: Board, shapes: Sequence[tuple[Shape, int]]) -> None:
        kinds: Counter[tuple[int, int]] = Counter()
        for shape, times in shapes:
            if shape.count > 1 and shape.milli == CORE_MILLI:
                kinds[shape.count, shape.cpu_milli] += times
        common = sorted(sorted(kinds, key=lambda kind: (-kinds[kind], kind))[:_MOST_KINDS])
        asked = sum(shape.count * shape.milli * times for shape, times in shapes)
        self._cpu_per_milli = sum(shape.cpu_milli * times for shape, times in shapes) / max(asked, 1)
        self._board = board
        self._count: Ints = np.array([count for count, _ in common], np.int64)
        self._cpu: Ints = np.array([max(cpu, 1) for _, cpu in common], np.int64)
        # Of the cluster's cards, how many Pods a full cluster would have of the kind or of larger ones.
        self._per_card: Floats = np.array(
            [
                sum(times * other[0] for other, times in kinds.items() if other[0] >= count and other[1] >= cpu)
                * CORE_MILLI / (asked * count)
                for count, cpu in common
            ]
        )  # fmt: skip
        self._clock = -1
        self._places: Ints = np.zeros((board.rows, len(common)), np.int64)  # [row, kind]
        self._total: Ints = np.zeros(len(common), np.int64)

    def dues(self, demand: Demand, cards: Ints) -> tuple[Ints, Floats] | None:
        """Rows where the demand would take places from kinds that are short, and what it pays, in milli-GPU.

        `cards` is the card that each row would give first.
        """
        board = self._board
        if not len(self._count):
            return None
        self._follow()
        there = int(board.cards[: board.rows].sum())
        short = self._total < _MARGIN * np.sqrt(self._per_card * there)
        if not short.any() or self._cpu_is_scarce():
            return None
        rows = np.flatnonzero(self._places[: board.rows, short].any(axis=1))
        if not len(rows):
            return None
        whole = (board.milli[rows] == CORE_MILLI).sum(axis=1)
        taken = self._broken(demand, rows, cards, whole)
        left = self._places_for(whole - taken, board.room_cpu[rows] - demand.cpu_milli)
        lost = ((self._places[rows] - left) * self._count)[:, short].sum(axis=1)
        return rows, _PRICE * lost

    def _cpu_is_scarce(self) -> bool:
        """In the whole cluster or in what is free of it: Pods that were not seen may hold CPU too."""
        board, rows = self._board, self._board.rows
        wanted = _CPU_TO_SPARE * self._cpu_per_milli
        if int(board.cpu[:rows].sum()) < wanted * CORE_MILLI * int(board.cards[:rows].sum()):
            return True
        return int(np.maximum(board.room_cpu[:rows], 0).sum()) < wanted * int(board.free[:rows].sum())

    def _broken(self, demand: Demand, rows: Ints, cards: Ints, whole: Ints) -> Ints:
        """By row: how many of the `whole` cards the demand would take something of."""
        if demand.whole_node:
            return whole
        if demand.exact and demand.parts and demand.parts[0].count == 1:
            return (self._board.milli[rows, cards[rows]] == CORE_MILLI).astype(np.int64)
        return np.minimum(whole, sum(part.count for part in demand.parts))

    def _places_for(self, whole: Ints, cpu: Ints) -> Ints:
        """[row, kind]: Pods of the kind that so many free cards and so much CPU are enough for."""
        found: Ints = np.minimum(whole[:, None] // self._count, np.maximum(cpu, 0)[:, None] // self._cpu)
        return found

    def _follow(self) -> None:
        board = self._board
        if self._clock == board.clock:
            return
        if len(self._places) == board.rows:
            rows = np.flatnonzero(board.changed[: board.rows] > self._clock)
        else:  # nodes joined
            rows = np.arange(board.rows)
            self._places, self._total = np.zeros((board.rows, len(self._count)), np.int64), np.zeros_like(self._total)
        places = self._places_for((board.milli[rows] == CORE_MILLI).sum(axis=1), board.room_cpu[rows])
        self._total += (places - self._places[rows]).sum(axis=0)
        self._places[rows] = places
        self._clock = board.clock
