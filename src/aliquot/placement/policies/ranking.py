"""Policies: which of the nodes that fit, and which of its cards. The smallest score wins, ties by the board's order.

`binpack` fills the fullest node first (by the part of it that is used) and the card with least left.

`spread` puts no second replica of one owner, and no second Pod, on a card while another card with room, on whatever
node, has none. Among equal cards it takes the node with fewest replicas of that owner, then the node with fewest Pods
per card, then the card with most MiB left.

A Pod with a preference of its own is placed by that alone.

On cards that may be booked beyond their memory every policy first looks at those that have the memory unbooked. Where
there is none, the card that is booked least, by its size, comes first: all that is booked beyond it waits for turns.

Under every policy, other Pods with an app-class follow qGPU's rule (seed 000): online Pods spread, first onto cards
without offline Pods; offline Pods binpack, first onto cards without online Pods.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from aliquot.model.claim import AppClass, Preference
from aliquot.model.device import CORE_MILLI, MOST_FACTOR
from aliquot.model.node import Order
from aliquot.placement.board import Board, Bools, Floats, Ints
from aliquot.placement.demand import Demand
from aliquot.placement.fit import enough, spare_cards

# Keys of one order folded into one number, the weightier in the higher digits; all exact in a float64.
_CARD_BITS = 21  # of MiB: cards up to 2 TiB; larger ones count as that
_MOST_LEFT = (1 << _CARD_BITS) - 1
_NODE = float(1 << _CARD_BITS)  # over what is left on any card
_AVOID = _NODE * (1 << 11)  # over the load of any node

# The keys of spread: each is over all that is counted of those before it.
_CROWD, _MOST_CROWD = _NODE, (1 << 10) - 1  # Pods per card of the node, in sixteenths
_CROWD_PARTS = 16
_NODE_REPLICA, _MOST_REPLICAS = _CROWD * (1 << 10), (1 << 8) - 1
_SHARED = _NODE_REPLICA * (1 << 8)  # the card has a Pod
_BESIDE_OFFLINE = _SHARED * 2.0
_CARD_REPLICA = _BESIDE_OFFLINE * 2.0

_PARKS = float(1 << 50)  # over any score of a card or node whose memory is not booked
_BESIDE_OTHERS = 2.0 * MOST_FACTOR  # over how often any card is booked
_BOOKED = float(1 << 16)  # of a card that is booked once: a float64 of that size still resolves quarters


class Policy(Protocol):
    """How to rank. For one `version`, the same board and demand give the same scores; earlier requests do not count."""

    version: int  # changes when scores given before no longer hold

    def spreads(self, demand: Demand) -> bool:
        """Whether the demand is ranked by spread's rule (spread_nodes), which keeps replicas of one owner apart."""

    def node_scores(self, board: Board, demand: Demand, rows: Ints, cards: Bools) -> tuple[Floats, Ints]:
        """One score per row, all of which fit, and the card it would take first.

        `cards` are those of the rows that fit the demand's first part.
        """

    def card_scores(self, board: Board, demand: Demand, row: int) -> Floats:
        """One score per slot of the row: the order in which its cards are taken."""


class Fill:
    """binpack or spread, with qGPU's rule for Pods that have an app-class."""

    version = 0

    def __init__(self, *, spread: bool) -> None:
        self._spread = spread

    def spreads(self, demand: Demand) -> bool:
        """Online Pods spread and offline Pods binpack, under every policy."""
        if demand.app_class is AppClass.ONLINE:
            return True
        return demand.app_class is AppClass.NORMAL and self._spread

    def node_scores(self, board: Board, demand: Demand, rows: Ints, cards: Bools) -> tuple[Floats, Ints]:
        """Of binpack: first the cards to avoid, then the node, then the card."""
        if demand.whole_node:  # all of them are empty: the smallest that will do
            return board.cards[rows].astype(float), np.zeros(len(rows), int)
        if not demand.parts:
            preferred = board.left[rows] if self.spreads(demand) else board.load[rows]
            return -preferred.astype(float), np.zeros(len(rows), int)
        if self.spreads(demand):
            return spread_nodes(board, demand, rows, cards)
        last, first = _last_and_first(_packed_cards(board, demand, rows), cards, demand.parts[0].count)
        return board.load[rows] * -_NODE + last, first

    def card_scores(self, board: Board, demand: Demand, row: int) -> Floats:
        """Of binpack: first the cards to avoid, then what is left."""
        rows = np.array([row])
        cards = spread_cards(board, demand, rows) if self.spreads(demand) else _packed_cards(board, demand, rows)
        scores: Floats = cards[0]
        return scores


class Preferred:
    """The order that a Pod itself asks for: first by node, then by card."""

    version = 0

    def __init__(self, preference: Preference) -> None:
        self._spread_nodes = preference.nodes is Order.SPREAD
        self._spread_cards = preference.cards is Order.SPREAD

    def spreads(self, demand: Demand) -> bool:
        """Never by spread's own rule: replicas are not kept apart."""
        return False

    def node_scores(self, board: Board, demand: Demand, rows: Ints, cards: Bools) -> tuple[Floats, Ints]:
        """First the node, then its card."""
        last, first = _last_and_first(self._cards(board, rows), cards, demand.parts[0].count)
        return self._nodes(board, rows) * _NODE + last, first

    def card_scores(self, board: Board, demand: Demand, row: int) -> Floats:
        """By what is left of them."""
        scores: Floats = self._cards(board, np.array([row]))[0]
        return scores

    def _nodes(self, board: Board, rows: Ints) -> Floats:
        nodes = _crowd(board, rows) if self._spread_nodes else -board.load[rows]
        return nodes.astype(float)

    def _cards(self, board: Board, rows: Ints) -> Floats:
        left = _left(board, rows).astype(float)
        return -left if self._spread_cards else left


def _crowd(board: Board, rows: Ints) -> Ints:
    """By row: Pods per card, in sixteenths."""
    crowd = board.used_slices[rows].sum(axis=1) * _CROWD_PARTS // np.maximum(board.cards[rows], 1)
    return np.minimum(crowd, _MOST_CROWD)


def spread_nodes(
    board: Board, demand: Demand, rows: Ints, cards: Bools, replicas: Ints | None = None
) -> tuple[Floats, Ints]:
    """As Policy.node_scores. The cards decide: the emptiest card may be on any node."""
    return _last_and_first(spread_cards(board, demand, rows, replicas), cards, demand.parts[0].count)


def spread_cards(board: Board, demand: Demand, rows: Ints, replicas: Ints | None = None) -> Floats:
    """[row, slot]: the score of each card. `replicas`: how many of the owner's Pods are on each."""
    pods = board.used_slices[rows]
    node = _crowd(board, rows) * _CROWD
    if replicas is not None:
        node += np.minimum(replicas.sum(axis=1), _MOST_REPLICAS) * _NODE_REPLICA
    scores: Floats = node[:, None] - _left(board, rows) + (pods > 0) * _SHARED
    if demand.app_class is AppClass.ONLINE:
        scores += (board.offline[rows] > 0) * _BESIDE_OFFLINE
    if replicas is not None:
        scores += np.minimum(replicas, _MOST_REPLICAS) * _CARD_REPLICA
    return scores


def _packed_cards(board: Board, demand: Demand, rows: Ints) -> Floats:
    scores: Floats = _left(board, rows).astype(float)
    if demand.app_class is AppClass.OFFLINE:
        scores += (board.online[rows] > 0) * _AVOID
    return scores


def _left(board: Board, rows: Ints) -> Ints:
    """[row, slot]: MiB that are left of each card, by its scarcer dimension."""
    return np.minimum(board.milli[rows] * board.memory[rows] // CORE_MILLI, _MOST_LEFT)


def resident_first(
    board: Board,
    demand: Demand,
    rows: Ints,
    cards: Bools,
    rank: Callable[[Board, Demand, Ints, Bools], tuple[Floats, Ints]],
) -> tuple[Floats, Ints]:
    """As Policy.node_scores: by `rank` where enough cards have the memory unbooked; after those, the others."""
    if not board.elastic or not demand.parts:
        return rank(board, demand, rows, cards)
    unbooked, count = cards & spare_cards(board, demand, rows), demand.parts[0].count
    stays = enough(unbooked, count)
    scores, first = rank(board, demand, rows, np.where(stays[:, None], unbooked, cards))
    parks, first_parks = _last_and_first(parking_scores(board, demand, rows), cards, count)
    return np.where(stays, scores, parks), np.where(stays, first, first_parks)


def parking_scores(board: Board, demand: Demand, rows: Ints) -> Floats:
    """[row, slot]: the score of each card for a demand that goes beyond its memory. qGPU's rule holds here too."""
    booked = board.used_memory[rows] / np.maximum(board.memory[rows], 1)
    other = {AppClass.ONLINE: board.offline, AppClass.OFFLINE: board.online}.get(demand.app_class)
    if other is not None:
        booked = booked + (other[rows] > 0) * _BESIDE_OTHERS
    scores: Floats = _PARKS + booked * _BOOKED
    return scores


def _last_and_first(scores: Floats, cards: Bools, count: int) -> tuple[Floats, Ints]:
    """By row: the score of the last of the `count` cards that it would take, and the first of them."""
    scores = np.where(cards, scores, np.inf)
    last = scores.min(axis=1) if count == 1 else np.partition(scores, count - 1, axis=1)[:, count - 1]
    return last, scores.argmin(axis=1)


def binpack() -> Fill:
    """Fill one card before the next."""
    return Fill(spread=False)


def spread() -> Fill:
    """An empty card first, replicas apart."""
    return Fill(spread=True)
