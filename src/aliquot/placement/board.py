"""The whole cluster as numpy columns, so that a decision over 40,000 cards is a few vector operations.

A row is a node, a slot is a card's index on it. The `room_*` columns hold what is still free. A closed card (unhealthy,
missing, on a node that is gone or taken whole) already counts as -1 there: "does it fit" is then one comparison per
dimension. They are signed on purpose: what runs on a card that shrank or became unhealthy stays booked, and room simply
goes below zero instead of wrapping around.

A card may be booked beyond its memory, up to its `limit`, where work whose memory may be parked is on it (rooms.py has
the rule). Rows of nodes with such cards are in `elastic`; on all others `extra` is 0.

Rows are kept as long as anything is booked on them, even when the node is gone: nothing booked is ever forgotten
because a node blinked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np

from aliquot.model.claim import AppClass, Usage
from aliquot.model.device import CONTEXT_MIB, Card
from aliquot.model.node import Node, Offer
from aliquot.placement.columns import CLOSED, Bools, Floats, Ints
from aliquot.placement.remaining import Remaining

__all__ = ["CLOSED", "OTHERS_BIT", "UNLIMITED", "Board", "Bools", "Floats", "Ints", "Occupant", "offer_bit"]

UNLIMITED = 1 << 30  # more slices, MiB or milli-CPU than anything has; larger numbers are false and count as this much
_MANY_MODELS = 4096  # names of cards, from which on those that no card has any more are forgotten

_OFFER_BIT = {offer: 1 << place for place, offer in enumerate(Offer)}
TOGETHER_BIT = 1 << (len(Offer) + 1)  # groups of Pods run side by side there
OTHERS_BIT = 1 << len(Offer)  # of the `offers` column: other plugins hand out the node's cards, so it offers nothing


class Occupant(msgspec.Struct, frozen=True, gc=False):
    """What one Pod takes of its node. A Pod that uses no GPU has an empty `usage`."""

    usage: Mapping[int, Usage]
    app_class: AppClass = AppClass.NORMAL
    owner: str | None = None
    whole_node: bool = False
    cpu_milli: int = 0
    memory_mib: int = 0
    of_node: bool = False  # not its users': a DaemonSet's, a static Pod, our own
    parkable: bool = False  # its memory may leave cards that it shares
    group: str = ""  # Claim.group_key


class _LastCards(NamedTuple):
    """The cards that were last put on the board, and their columns."""

    cards: tuple[Card, ...] | None  # None: their columns are not for others
    kind: object
    columns: tuple[Ints, Ints, Bools, Bools, Ints, Ints]
    elastic: bool  # one may be booked beyond its memory


class Board(Remaining):
    """The board. Changed only through its methods; read freely by column."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0
        self.names: list[str] = []
        self.nodes: list[Node | None] = []
        self.row_of: dict[str, int] = {}
        self.models: dict[str, int] = {"": 0}
        self._most_models = _MANY_MODELS
        self.replicas: dict[str, dict[tuple[int, int], int]] = {}  # owner -> (row, slot) -> how many of its Pods
        self.members: dict[str, dict[tuple[int, int], int]] = {}  # the same by Claim.group_key
        self._parked_sizes: dict[tuple[int, int], Counter[int]] = {}  # MiB of each Pod on the card that may be parked
        self._booked: list[int] = []  # bookings per row: a row with any is kept
        self._usual: int | None = None
        self._beyond: dict[tuple[int, int], dict[str, int]] = {}  # what is booked on cards that no node has (see _add)
        self._spare: list[int] = []  # rows of nodes gone, to be used again
        self._last_cards: _LastCards | None = None

    # --- nodes -----------------------------------------------------------------------------------------------

    def set_node(self, node: Node) -> None:
        """Add or update the node; bookings on it stay."""
        row = self._row(node.name)
        known = self.nodes[row]
        if known is None or known.cards != node.cards:
            self._usual = None
        self.nodes[row] = node
        elastic = self._set_cards(row, node.cards)
        self.present[row] = True
        self.offers[row] = OTHERS_BIT if node.others else _offer_bits(node.offers) | TOGETHER_BIT * node.together
        for column, room, amount in (
            (self.cpu, self.room_cpu, node.cpu_milli),
            (self.host_memory, self.room_host, node.memory_mib),
        ):
            total = UNLIMITED if amount is None else min(amount, UNLIMITED)
            room[row] = room.item(row) + total - column.item(row)
            column[row] = total
        if elastic:
            self.elastic.add(row)
            self.pool[row] = min(node.pool_mib, UNLIMITED)
        elif row in self.elastic:
            self._stiffen(row)
        self._refresh(row)

    def _stiffen(self, row: int) -> None:
        """No card of it may be booked beyond its memory any more."""
        self.elastic.discard(row)
        self.pool[row] = self.pool_left[row] = 0
        self.extra[row] = 0

    def _set_cards(self, row: int, cards: tuple[Card, ...]) -> bool:
        """One write per column. Nodes with equal cards share the columns: many nodes are alike. Returns whether a card
        may be booked beyond its memory."""
        last = self._last_cards
        if last is None or last.cards is not cards:
            last = self._last_cards = self._like_last(row, cards)
        columns = last.columns
        self.memory[row], self.limit[row], self.healthy[row], self.withheld[row] = columns[:4]
        self.max_slices[row], self.model[row] = columns[4:]
        return last.elastic

    def _like_last(self, row: int, cards: tuple[Card, ...]) -> _LastCards:
        """The columns of the cards: those of the last ones where they are equal but for their UUIDs."""
        kind = [
            (card.index, card.memory_mib, card.oversubscribe, card.healthy, card.withheld, card.max_slices, card.model)
            for card in cards
        ]
        last = self._last_cards
        if last is not None and last.kind == kind:
            return _LastCards(cards, kind, last.columns, last.elastic)
        columns = self._columns_of(row, cards)
        elastic = any(card.oversubscribe > 1.0 for card in cards)
        if len(cards) != self.width:
            # What a slot without a card remembers of its model is the row's own: then the columns are not for others.
            return _LastCards(None, None, columns, elastic)
        return _LastCards(cards, kind, columns, elastic)

    def _columns_of(self, row: int, cards: tuple[Card, ...]) -> tuple[Ints, Ints, Bools, Bools, Ints, Ints]:
        self._widen(max((card.index + 1 for card in cards), default=1))
        if len(self.models) >= self._most_models:
            self._forget_models()
        memory, limit, slices = [0] * self.width, [0] * self.width, [0] * self.width
        healthy, withheld = [False] * self.width, [False] * self.width
        models = self.model[row].tolist()
        for card in cards:
            memory[card.index] = min(card.memory_mib, UNLIMITED)
            limit[card.index] = min(card.bookable_mib, UNLIMITED)
            healthy[card.index], withheld[card.index] = card.usable, bool(card.withheld)
            slices[card.index] = UNLIMITED if card.max_slices is None else card.max_slices
            models[card.index] = self.models.setdefault(card.model, len(self.models))
        flags = np.array(healthy), np.array(withheld)
        return np.array(memory), np.array(limit), *flags, np.array(slices), np.array(models)

    def _forget_models(self) -> None:
        """Those that no slot remembers: a node may give its cards other names again and again."""
        names, used = list(self.models), np.union1d(self.model, [0])
        place = np.zeros(len(names), self.model.dtype)
        place[used] = np.arange(len(used))
        self.model[:] = place[self.model]
        self.models = {names[old]: new for new, old in enumerate(used.tolist())}
        self._most_models = max(_MANY_MODELS, 2 * len(self.models))
        self._last_cards = None

    def drop_node(self, name: str) -> None:
        """The node is gone. Its row accepts no more claims, and is reused once nothing is booked on it."""
        row = self.row_of.get(name)
        if row is None:
            return
        self.nodes[row] = None
        self._usual = None
        self.present[row] = False
        if row in self.elastic:
            self._stiffen(row)
        self._refresh(row)
        self._retire(row)

    def node(self, name: str) -> Node | None:
        """The node as last set, None when unknown or gone."""
        row = self.row_of.get(name)
        return None if row is None else self.nodes[row]

    def usage(self, name: str, slot: int) -> Usage:
        """What is taken of one card of a node that is there."""
        at = (self.row_of[name], slot)
        return Usage(
            int(self.used_memory[at]),
            int(self.used_core[at]),
            int(self.used_greedy[at]),
            int(self.used_slices[at]),
            int(self.exclusive[at]),
        )

    def usual_memory(self) -> int:
        """MiB of the cluster's middle card, by which shares of memory are compared; 1 when there is no card."""
        if self._usual is None:
            there = self.memory[: self.rows].astype(bool) & self.present[: self.rows, None]
            sizes = np.sort(self.memory[: self.rows][there])
            self._usual = int(sizes[len(sizes) // 2]) if len(sizes) else 1
        return self._usual

    # --- what is on them -------------------------------------------------------------------------------------

    def take(self, name: str, occupant: Occupant) -> None:
        """Book a Pod on a node, known or not yet known. Does not check whether it fits."""
        row = self._row(name)
        self._booked[row] += 1
        self._change(row, occupant, 1)

    def release(self, name: str, occupant: Occupant) -> None:
        """Undo the `take` of the same arguments."""
        row = self.row_of[name]
        self._booked[row] -= 1
        self._change(row, occupant, -1)
        self._retire(row)

    def _change(self, row: int, occupant: Occupant, sign: int) -> None:
        for slot, use in occupant.usage.items():
            self._add(row, slot, _used_by(use, occupant.app_class, occupant.parkable), sign)
            if occupant.parkable and use.memory_mib and not use.exclusive:
                self._count_size((row, slot), min(use.memory_mib, UNLIMITED), sign)
            if occupant.owner is not None:
                _count(self.replicas, occupant.owner, (row, slot), sign)
            if occupant.group:
                _count(self.members, occupant.group, (row, slot), sign)
        # Only what changes: a write to one element of a column costs as much as all the rest here.
        if occupant.cpu_milli:
            self.room_cpu[row] -= sign * min(occupant.cpu_milli, UNLIMITED)
        if occupant.memory_mib:
            self.room_host[row] -= sign * min(occupant.memory_mib, UNLIMITED)
        if not occupant.of_node:
            self.pods[row] = self.pods.item(row) + sign
        if occupant.whole_node:
            self.taken[row] += sign
        self._refresh(row)

    def _add(self, row: int, slot: int, amounts: Iterable[tuple[str, int]], sign: int) -> None:
        """Add to the `used` columns of a card.

        A card that no node is wide enough for is kept aside until one is: otherwise an annotation that names card 127
        would make the board that wide for all.
        """
        if slot < self.width:
            for name, amount in amounts:
                column = getattr(self, name)
                column[row, slot] = column.item(row, slot) + sign * amount  # `+=` takes half as long again
            return
        kept = self._beyond.setdefault((row, slot), {})
        for name, amount in amounts:
            kept[name] = kept.get(name, 0) + sign * amount
            if not kept[name]:
                del kept[name]
        if not kept:
            del self._beyond[row, slot]

    def _count_size(self, place: tuple[int, int], mib: int, sign: int) -> None:
        """One more, or one less, of that size that may be parked."""
        sizes = self._parked_sizes.setdefault(place, Counter())
        sizes[mib] += sign
        if not sizes[mib]:
            del sizes[mib]
            if not sizes:
                del self._parked_sizes[place]
        if place[1] < self.width:
            self.largest[place] = max(sizes, default=0)

    # --- space -----------------------------------------------------------------------------------------------

    def _row(self, name: str) -> int:
        row = self.row_of.get(name)
        if row is not None:
            return row
        if self._spare:
            row = self._spare.pop()
            self.names[row] = name
            self._clear(row)
        else:
            row = self.rows
            self.rows += 1
            self.names.append(name)
            self.nodes.append(None)
            self._booked.append(0)
            if row >= len(self.present):
                self._add_rows(max(16, 2 * row))
        self.row_of[name] = row
        return row

    def _retire(self, row: int) -> None:
        if self.nodes[row] is None and self._booked[row] == 0 and self.row_of.pop(self.names[row], None) is not None:
            self.names[row] = ""
            self._spare.append(row)

    def _widen(self, width: int) -> None:
        if width <= self.width:
            return
        self._add_slots(width)
        for row, slot in [place for place in self._beyond if place[1] < width]:
            self._add(row, slot, self._beyond.pop((row, slot)).items(), 1)
            self.largest[row, slot] = max(self._parked_sizes.get((row, slot), {}), default=0)


def _used_by(use: Usage, app_class: AppClass, parkable: bool) -> list[tuple[str, int]]:
    """What a Pod adds to the columns of one card; most Pods change two of the nine. A card held whole is shared with
    nobody: its memory stays."""
    amounts = [("used_memory", min(use.memory_mib, UNLIMITED))] if use.memory_mib else []
    if parkable and use.memory_mib and not use.exclusive:
        amounts += [("used_parkable", amounts[0][1]), ("contexts", min(use.memory_mib, CONTEXT_MIB))]
    if use.core_milli:
        amounts.append(("used_core", min(use.core_milli, UNLIMITED)))
    if use.greedy_milli:
        amounts.append(("used_greedy", min(use.greedy_milli, UNLIMITED)))
    if use.slices:
        amounts.append(("used_slices", 1))
    if use.exclusive:
        amounts.append(("exclusive", use.exclusive))
    if app_class is not AppClass.NORMAL:
        amounts.append(("online" if app_class is AppClass.ONLINE else "offline", 1))
    return amounts


def _count(places_of: dict[str, dict[tuple[int, int], int]], key: str, place: tuple[int, int], sign: int) -> None:
    """One Pod more, or less, of that key in the place."""
    places = places_of.setdefault(key, {})
    places[place] = places.get(place, 0) + sign
    if places[place] == 0:
        del places[place]
        if not places:
            del places_of[key]


@lru_cache(maxsize=1024)
def _offer_bits(offers: frozenset[Offer]) -> int:
    return sum(_OFFER_BIT[offer] for offer in offers)


def offer_bit(offer: Offer) -> int:
    """The bit of the `offers` column that stands for it."""
    return _OFFER_BIT[offer]
