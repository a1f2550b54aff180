"""How much more may be booked on cards that may be booked beyond their memory.

What is booked on a card is of two kinds: `fixed` stays on it, `parkable` may leave for the host's pool. A card of size
`memory` with the factor F takes a claim as long as afterwards

    fixed + parkable  <=  F x memory
    fixed + the largest parkable claim + the contexts of the others + reserve  <=  memory
    all that is booked beyond the cards of the node  <=  the node's pool

or as long as all of it fits on the card: fixed + parkable <= memory. The second is so that each can be on the card at
all, while of the others only their CUDA contexts are there (CONTEXT_MIB of each, or its whole claim). The reserve is
for the process that moves memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from aliquot.model.device import CONTEXT_MIB, LARGE_CARD_PART, SMALL_CARD_PART, USUAL_RESERVE_MIB
from aliquot.placement.columns import Columns, Ints


def booked_pool(board: Columns, rows: Ints) -> Ints:
    """By row: MiB that are booked beyond the cards. A card that is gone does not count: no pool replaces it."""
    beyond = np.maximum(board.used_memory[rows] - board.memory[rows], 0)
    beyond[board.memory[rows] == 0] = 0
    return beyond.sum(axis=1)


def free_pool(board: Columns, rows: Ints) -> Ints:
    """By row: MiB of the pool that nothing is booked on."""
    return np.maximum(board.pool[rows] - booked_pool(board, rows), 0)


def elastic_rooms(board: Columns, rows: Ints, *, pooled: bool = True) -> tuple[Ints, Ints]:
    """[row, slot]: MiB for a claim of one card that cannot be parked, and for one that can. `pooled`: heed the pool."""
    used, memory, largest = board.used_memory[rows], board.memory[rows], board.largest[rows]
    most = board.limit[rows] - used
    if pooled:
        most = np.minimum(most, spare(board, rows) + board.pool_left[rows][:, None])
    beside_fixed = memory - reserve(memory) - used + board.used_parkable[rows] - board.contexts[rows]
    fixed = np.maximum(memory - used, np.minimum(most, beside_fixed - largest + np.minimum(largest, CONTEXT_MIB)))
    parkable = np.maximum(memory - used, np.where(largest <= beside_fixed, np.minimum(most, beside_fixed), 0))
    return fixed, parkable


def reserve(memory: Ints) -> Ints:
    """MiB of cards of those sizes that are not booked when more is booked than they have."""
    return np.minimum(memory // SMALL_CARD_PART, np.maximum(USUAL_RESERVE_MIB, memory // LARGE_CARD_PART))


def spare(board: Columns, rows: Ints | slice) -> Ints:
    """[row, slot]: MiB that are not booked at all: what goes there needs no pool."""
    return np.maximum(board.memory[rows] - board.used_memory[rows], 0)


def beyond_cards(board: Columns, row: int, wanted: Mapping[int, int]) -> int:
    """MiB of the pool that claims of so many MiB of those cards would need."""
    left = spare(board, np.array([row]))[0].tolist()
    return sum(max(0, mib - left[slot]) for slot, mib in wanted.items())
