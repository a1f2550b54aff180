"""The one reason that keeps a claim from each node, as a small number per row, for the answer to kube-scheduler.

kube-scheduler counts equal reasons ("0/5000 nodes are available: 4990 ..."), so each node gives the deciding one,
without numbers. `fit.shortages` has them all; this module picks the deciding one, for all rows at once.
"""

from __future__ import annotations

import numpy as np

from aliquot.model.refusal import Reason
from aliquot.placement.board import Board, Ints
from aliquot.placement.demand import Demand
from aliquot.placement.fit import fits, shortages

FITS = -1
_REASONS = tuple(Reason)
_CODE = {reason: at for at, reason in enumerate(_REASONS)}

# Reasons about the node come before those about its cards; the number of cards that fit before what each card lacks.
_NODE_WEIGHT, _CARDS_WEIGHT = 10_000, 1_000


def code_of(reason: Reason, never: bool) -> int:
    """The number that stands for it."""
    return 2 * _CODE[reason] + never


def verdict_of(code: int) -> tuple[Reason, bool]:
    """The reason, and whether even an empty node would not do."""
    return _REASONS[code // 2], bool(code % 2)


TOGETHER_NOT = code_of(Reason.CONTAINERS, never=False)


def verdicts(board: Board, demand: Demand, rows: Ints) -> Ints:
    """Per row the code of the deciding reason; FITS if there is none. A row without a node has none."""
    decided = np.full(len(rows), FITS)
    nodes, _ = fits(board, demand, rows)
    short = np.flatnonzero(~nodes & board.present[rows])
    if not len(short):
        return decided
    lacking = rows[short]
    place = np.zeros(board.rows, np.int64)  # of those that lack something
    place[lacking] = np.arange(len(lacking))
    weights = np.zeros((len(lacking), 2 * len(_REASONS)), np.int64)
    out_for_good = np.zeros(len(lacking), bool)
    refused = np.zeros((len(lacking), board.width), bool)
    hopeless = np.zeros_like(refused)
    for shortage in shortages(board, demand, lacking):
        at = place[shortage.rows]
        codes = 2 * _CODE[shortage.reason] + shortage.never
        if shortage.slots is None:
            weight = _CARDS_WEIGHT if shortage.reason is Reason.CARDS else _NODE_WEIGHT
            np.add.at(weights, (at, codes), weight)
            out_for_good[at[shortage.never]] = True
        else:
            np.add.at(weights, (at, codes), 1)
            refused[at, shortage.slots] = True
            hopeless[at[shortage.never], shortage.slots[shortage.never]] = True
    # A node is out for good when every one of its cards that refused is.
    out_for_good |= refused.any(axis=1) & (hopeless == refused).all(axis=1)
    weights[out_for_good, 0::2] = 0
    weights[~out_for_good, 1::2] = 0
    # No card and no part is short by itself, and yet all that is left is not enough for all of them.
    decided[short] = np.where(weights.any(axis=1), weights.argmax(axis=1), TOGETHER_NOT)
    return decided
