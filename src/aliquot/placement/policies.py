"""Policies: which of the nodes that fit, and which of its cards. The smallest score wins, ties by the board's order.

`binpack` fills the fullest node first (by the part of it that is used) and the card with least left; `spread` takes the
node and the card with most left (by the MiB that are), replicas of one owner apart.
Whatever the policy, Pods with an app-class follow qGPU's rule (seed 000): online Pods spread, first onto cards
without offline Pods; offline Pods binpack, first onto cards without online Pods.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from aliquot.model.claim import AppClass
from aliquot.model.device import CORE_MILLI
from aliquot.placement.board import Board, Bools, Floats, Ints
from aliquot.placement.demand import Demand

# Keys of one order folded into one number, the weightier in the higher digits; all exact in a float64.
_CARD_BITS, _NODE_BITS = 21, 24  # of MiB: cards up to 2 TiB, nodes up to 16 TiB; larger ones count as that
_NODE = float(1 << _CARD_BITS)  # over what is left on any card
_AVOID = _NODE * (1 << (_NODE_BITS + 1))  # over what is left on any node
APART = _AVOID * 4.0  # over everything: another replica of the same owner


class Policy(Protocol):
    """How to rank. For one `version`, the same board and demand give the same scores, whatever was asked before."""

    version: int  # changes when scores given before no longer hold

    def apart(self, demand: Demand) -> bool:
        """Whether replicas of one owner are kept apart."""

    def node_scores(self, board: Board, demand: Demand, rows: Ints, cards: Bools) -> tuple[Floats, Ints]:
        """One score per row, all of which fit, and the card it would take first.

        `cards` are those of the rows that fit the demand's first part.
        """

    def card_scores(self, board: Board, demand: Demand, row: int) -> Floats:
        """One score per slot of the row: the order in which its cards are taken."""


class Fill:
    """binpack (sign 1) by how full the node is, spread (sign -1) by how much it has left; then by what the card has."""

    version = 0

    def __init__(self, sign: int) -> None:
        self.sign = sign

    def apart(self, demand: Demand) -> bool:
        """Spreading keeps replicas apart."""
        return self._sign(demand) < 0

    def node_scores(self, board: Board, demand: Demand, rows: Ints, cards: Bools) -> tuple[Floats, Ints]:
        """First the cards to avoid, then the node, then the card."""
        if demand.whole_node:  # all of them are empty: the smallest that will do
            return board.cards[rows].astype(float), np.zeros(len(rows), int)
        packing = self._sign(demand) > 0
        preferred = board.load[rows] if packing else np.minimum(board.left[rows], (1 << _NODE_BITS) - 1)
        if not demand.parts:
            return preferred * -_NODE, np.zeros(len(rows), int)
        scores = np.where(cards, self._cards(board, demand, rows), np.inf)
        count = demand.parts[0].count
        last = scores.min(axis=1) if count == 1 else np.partition(scores, count - 1, axis=1)[:, count - 1]
        return preferred * -_NODE + last, scores.argmin(axis=1)

    def card_scores(self, board: Board, demand: Demand, row: int) -> Floats:
        """First the cards to avoid, then what is left."""
        return self._cards(board, demand, np.array([row]))[0]

    def _cards(self, board: Board, demand: Demand, rows: Ints) -> Floats:
        left = np.minimum(board.milli[rows] * board.memory[rows] // CORE_MILLI, (1 << _CARD_BITS) - 1)
        scores: Floats = left * float(self._sign(demand))
        if demand.app_class is AppClass.ONLINE:
            scores += (board.offline[rows] > 0) * _AVOID
        elif demand.app_class is AppClass.OFFLINE:
            scores += (board.online[rows] > 0) * _AVOID
        return scores

    def _sign(self, demand: Demand) -> int:
        if demand.app_class is AppClass.ONLINE:
            return -1
        return 1 if demand.app_class is AppClass.OFFLINE else self.sign


def binpack() -> Fill:
    """Fill one card before the next."""
    return Fill(1)


def spread() -> Fill:
    """Most free first, replicas apart."""
    return Fill(-1)
