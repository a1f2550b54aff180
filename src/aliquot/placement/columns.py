"""The board's columns: a numpy array each, by row (a node) and by slot (a card's index). They grow as needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.signedinteger[Any]]
Floats = npt.NDArray[np.floating[Any]]
Bools = npt.NDArray[np.bool_]

CLOSED = -1  # the room of a card that takes nothing


class CardColumns:
    """Per card: [row, slot]."""

    # what there is ...
    memory: Ints  # MiB; 0: no such card
    limit: Ints  # MiB that may be booked: its memory times its factor of oversubscription
    max_slices: Ints
    healthy: Bools  # and not withheld
    withheld: Bools  # MIG mode is on, or a Pod of another plugin holds it
    model: Ints  # an index into `models`
    # ... what is taken ...
    used_memory: Ints
    used_parkable: Ints  # MiB of those that may be parked
    largest: Ints  # MiB of the largest Pod that may be parked
    contexts: Ints  # MiB of those that may be parked that stay on the card while they are
    used_core: Ints
    used_greedy: Ints
    used_slices: Ints  # Pods; how many containers each has on the card does not count
    exclusive: Ints
    online: Ints
    offline: Ints
    # ... and what is left, CLOSED where the card takes nothing
    room_memory: Ints  # for work that cannot be parked
    extra: Ints  # beyond that, for work that can
    room_core: Ints
    room_greedy: Ints
    room_slices: Ints
    milli: Ints  # the free part of the card in thousandths, by its scarcer dimension; 0 where closed


class NodeColumns:
    """Per node: [row]."""

    present: Bools
    offers: Ints  # a bit per Offer, OTHERS_BIT, TOGETHER_BIT
    cpu: Ints
    host_memory: Ints
    pool: Ints  # MiB of host memory for what is booked beyond the cards
    pool_left: Ints  # of that not booked; only of elastic rows
    room_cpu: Ints
    room_host: Ints
    pods: Ints  # Pods on the node that are its users'
    taken: Ints  # Pods that hold the whole node
    cards: Ints  # how many healthy cards
    load: Ints  # used thousandths over all its cards, 0..1000
    left: Ints  # MiB that are free on all its cards, by the scarcer dimension of each
    free: Ints  # free milli-GPU of the node
    changed: Ints  # the clock's count at the last change


_OF_CARDS = CardColumns.__annotations__  # by name, the type as it is written above
_OF_NODES = NodeColumns.__annotations__


class Columns(CardColumns, NodeColumns):
    """All of them, and their space."""

    def __init__(self) -> None:
        self.width = 1
        for name, kind in _OF_CARDS.items():
            setattr(self, name, np.zeros((0, 1), bool if kind == "Bools" else np.int64))
        for name, kind in _OF_NODES.items():
            setattr(self, name, np.zeros(0, bool if kind == "Bools" else np.int64))

    def _clear(self, row: int) -> None:
        for name in (*_OF_CARDS, *_OF_NODES):
            getattr(self, name)[row] = 0

    def _add_rows(self, rows: int) -> None:
        """Make space for so many rows."""
        for name in (*_OF_CARDS, *_OF_NODES):
            old = getattr(self, name)
            new = np.zeros((rows, *old.shape[1:]), old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)

    def _add_slots(self, width: int) -> None:
        """From now on there is space for so many. No row has cards in those that are new."""
        for name in _OF_CARDS:
            old = getattr(self, name)
            new = np.zeros((old.shape[0], width), old.dtype)
            new[:, : self.width] = old
            if name.startswith("room_"):
                new[:, self.width :] = CLOSED
            setattr(self, name, new)
        self.width = width
