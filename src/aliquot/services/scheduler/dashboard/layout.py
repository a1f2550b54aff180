"""The order of a cluster's nodes and cards, and a byte for each card: vector operations over 40,000.

Nodes come by name, numbers in names as numbers. A layout holds until a node comes, goes, or has other cards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np

from aliquot.dialects.dra import DIALECT
from aliquot.model.device import CORE_MILLI
from aliquot.model.node import Node
from aliquot.model.status.dashboard import CardBytes, NodeKind
from aliquot.placement.board import Board, Ints
from aliquot.services.dashboard.contract import FREE, FULL, MIXED, NORMAL, OFFLINE, ONLINE, OUT, WHOLE, packed

_DIGITS = re.compile(r"(\d+)")

Bytes = dict[str, "np.ndarray[tuple[int], np.dtype[np.uint8]]"]


class Used:
    """What is taken of some cards, a row of `table` for each: MiB, thousandths of compute, and how many tenants."""

    memory: Ints
    core: Ints
    tenants: Ints
    whole: Ints  # of these, those that have the card alone
    online: Ints
    offline: Ints

    def __init__(self, table: Ints) -> None:
        self.table = table
        self.memory, self.core, self.tenants, self.whole, self.online, self.offline = table

    @classmethod
    def none(cls, cards: int) -> Used:
        """Nothing of so many cards."""
        return cls(np.zeros((6, cards), np.int64))

    def __add__(self, other: Used) -> Used:
        return Used(self.table + other.table)


@dataclass(frozen=True, slots=True)
class Layout:
    """`rows` is the board's row of each node, -1 for one that breaks a rule and has none; `starts` its first card."""

    names: list[str]
    nodes: list[Node | None]
    kinds: list[NodeKind]
    kind: list[int]
    counts: Ints
    starts: Ints
    card_rows: Ints
    card_slots: Ints
    index_of: Mapping[str, int]
    index_of_row: Mapping[int, int]
    broken: frozenset[str]
    by_claims: frozenset[str]  # nodes whose cards go to ResourceClaims

    def holds(self, board: Board, changed: Ints, broken: frozenset[str], by_claims: Set[str]) -> bool:
        """Whether it is still right after these rows changed."""
        if broken != self.broken or by_claims != self.by_claims:
            return False
        for row in changed.tolist():
            node, at = board.nodes[row], self.index_of_row.get(row)
            if at is None:
                if node is not None and _shown(node):
                    return False
            elif node is None or (node is not self.nodes[at] and not _alike(node, self.nodes[at], by_claims)):
                return False
        return True

    def cards_of(self, nodes: Ints) -> Ints:
        """The places of these nodes' cards, in order."""
        counts = self.counts[nodes]
        ends = np.cumsum(counts)
        places: Ints = np.repeat(self.starts[nodes] - (ends - counts), counts)
        return places + np.arange(len(places))


def lay_out(board: Board, broken: frozenset[str], by_claims: frozenset[str] = frozenset()) -> Layout:
    """All nodes with cards, or that would have some."""
    shown = [(node.name, node) for node in board.nodes if node is not None and _shown(node)]
    both: list[tuple[str, Node | None]] = sorted(
        [*shown, *((name, None) for name in broken)], key=lambda item: natural(item[0])
    )
    kinds: dict[NodeKind, int] = {}
    kind = [kinds.setdefault(_kind(node, by_claims), len(kinds)) for _, node in both]
    counts = np.array([0 if node is None else len(node.cards) for _, node in both], np.int64)
    rows = [-1 if node is None else board.row_of[name] for name, node in both]
    return Layout(
        names=[name for name, _ in both],
        nodes=[node for _, node in both],
        kinds=[*kinds],
        kind=kind,
        counts=counts,
        starts=np.cumsum(counts) - counts,
        card_rows=np.repeat(np.array(rows, np.int64), counts),
        card_slots=np.array([card.index for _, node in both if node is not None for card in node.cards], np.int64),
        index_of={name: at for at, (name, _) in enumerate(both)},
        index_of_row={row: at for at, row in enumerate(rows) if row >= 0},
        broken=broken,
        by_claims=by_claims,
    )


def used_on_board(board: Board, rows: Ints, slots: Ints) -> Used:
    """What Pods have of these cards."""
    places = rows, slots
    whole = (board.exclusive[places] > 0) | (board.taken[rows] > 0)
    core, tenants = board.booked_core(rows, slots), board.used_slices[places]
    return Used(
        np.stack([board.used_memory[places], core, tenants, whole, board.online[places], board.offline[places]])
    )


def card_bytes(board: Board, rows: Ints, slots: Ints, used: Used) -> Bytes:
    """Memory and compute booked, and the class of who is there, of each of these cards."""
    online, offline = used.online > 0, used.offline > 0
    return {
        "memory": _bytes(used.memory, board.memory[rows, slots]),
        "core": _bytes(used.core, CORE_MILLI),
        "class": np.select(
            [~board.healthy[rows, slots], used.whole > 0, online & offline, online, offline, used.tenants > 0],
            [OUT, WHOLE, MIXED, ONLINE, OFFLINE, NORMAL],
            FREE,
        ).astype(np.uint8),
    }


def encoded(columns: Bytes) -> CardBytes:
    """The columns as they go over the wire."""
    memory, core, app_class = (packed(columns[name].tobytes()) for name in ("memory", "core", "class"))
    return CardBytes(memory=memory, core=core, app_class=app_class)


def _bytes(part: Ints, whole: Ints | int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Any booking at all is at least 1, so that it shows."""
    scaled = np.rint(part * FULL / np.maximum(whole, 1))
    return np.clip(scaled, part > 0, FULL).astype(np.uint8)


def natural(name: str) -> list[tuple[int, str]]:
    """A sort key: node-2 comes before node-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in _DIGITS.split(name[:256])]


def _shown(node: Node) -> bool:
    return bool(node.cards or node.offers)


def _kind(node: Node | None, by_claims: Set[str]) -> NodeKind:
    if node is None:
        return NodeKind((), "", "", 0, 0)
    first = node.cards[0] if node.cards else None
    model, memory = (first.model, first.memory_mib) if first else ("", 0)
    offers = (*node.offer_names, *((DIALECT,) if node.name in by_claims else ()))
    return NodeKind(offers, node.isolation.value, model, len(node.cards), memory)


def _alike(node: Node, before: Node | None, by_claims: Set[str]) -> bool:
    return (
        before is not None
        and node.name == before.name
        and [card.index for card in node.cards] == [card.index for card in before.cards]
        and _kind(node, by_claims) == _kind(before, by_claims)
    )
