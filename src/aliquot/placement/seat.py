"""Which cards of one node each container gets.

One container, or containers that stay together, take the first cards in the policy's order that have room. Several
containers that may go apart are seated by a small search, the hardest to place first, init containers last (they run
before the others and reuse their cards). The search is exact up to a bound that no sane Pod reaches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, islice

import numpy as np

from aliquot.model.claim import Claim, ContainerClaim, Role, Slice, Usage, peak
from aliquot.model.grant import ContainerGrant, Grant, Share

from .board import Board
from .demand import Demand
from .fit import fits

# Combinations of cards tried for one Pod on one node. A Pod of 3 containers on 8 cards has at most 512.
_PATIENCE = 20_000


def seat(board: Board, row: int, claim: Claim, demand: Demand, ranking: Sequence[int]) -> Grant | None:
    """The grant on that node, cards taken in the order of `ranking`; None when it does not fit."""
    rows = np.array([row])
    nodes, fitting = fits(board, demand, rows)
    if not nodes[0]:
        return None
    if claim.whole_node:
        cards = [slot for slot in range(board.width) if board.memory[row, slot] > 0]
        chosen = [cards] * len(claim.containers)
    elif len(claim.containers) == 1 or claim.together:
        cards = [slot for slot in ranking if fitting[0, slot]][: demand.parts[0].count]
        chosen = [cards] * len(claim.containers)
    else:
        found = _search(board, row, claim, demand, ranking)
        if found is None:
            return None
        chosen = found
    return grant_on(board, row, claim, chosen)


def grant_on(board: Board, row: int, claim: Claim, chosen: Sequence[Sequence[int]]) -> Grant:
    """The grant that gives each container those cards."""
    return Grant(
        claim.uid,
        board.names[row],
        tuple(
            ContainerGrant(each.name, each.index, each.role, _shares(board, row, each.slice, cards))
            for each, cards in zip(claim.containers, chosen, strict=True)
        ),
        claim.whole_node,
    )


def _shares(board: Board, row: int, part: Slice, cards: Sequence[int]) -> tuple[Share, ...]:
    node = board.nodes[row]
    uuids = {card.index: card.uuid for card in node.cards} if node else {}
    return tuple(
        Share(
            card,
            part.memory_on(int(board.memory[row, card])),
            part.core_milli,
            part.greedy_milli,
            part.exclusive,
            uuids.get(card, ""),
        )
        for card in sorted(cards)
    )


def _search(board: Board, row: int, claim: Claim, demand: Demand, ranking: Sequence[int]) -> list[list[int]] | None:
    """The cards of each container, found by trying; None when there is no way."""
    order = sorted(range(len(claim.containers)), key=lambda place: _hardness(board, row, claim.containers[place]))
    right = [slot for slot in ranking if demand.models is None or _model(board, row, slot) in demand.models]
    seated: dict[int, list[tuple[int, Role, Usage]]] = {slot: [] for slot in right}
    chosen: list[list[int]] = [[] for _ in claim.containers]
    tries = 0

    def place_from(step: int) -> bool:
        nonlocal tries
        if step == len(order):
            return True
        place = order[step]
        container = claim.containers[place]
        for cards in _options(container, right, seated):
            tries += 1
            if tries > _PATIENCE:
                return False
            for card in cards:
                seated[card].append((place, container.role, _usage(board, row, container.slice, card)))
            if all(_has_room(board, row, card, seated[card]) for card in cards):
                chosen[place] = list(cards)
                if place_from(step + 1):
                    return True
            for card in cards:
                seated[card].pop()
        return False

    return chosen if place_from(0) else None


def _options(
    container: ContainerClaim, ranking: Sequence[int], seated: dict[int, list[tuple[int, Role, Usage]]]
) -> Iterator[tuple[int, ...]]:
    """Sets of cards to try. An init container goes first where its Pod already sits: that costs nothing."""
    if container.role is Role.INIT:
        ranking = sorted(ranking, key=lambda slot: not seated[slot])
    return islice(combinations(ranking, container.count or 0), _PATIENCE)


def _hardness(board: Board, row: int, container: ContainerClaim) -> tuple[bool, bool, int, int]:
    part = container.slice
    size = max(part.memory_on(int(board.memory[row].max())), part.core_milli or 0)
    return (container.role is Role.INIT, not part.exclusive, -(container.count or 0), -size)


def _usage(board: Board, row: int, part: Slice, card: int) -> Usage:
    return Share(
        card, part.memory_on(int(board.memory[row, card])), part.core_milli, part.greedy_milli, part.exclusive
    ).usage()


def _has_room(board: Board, row: int, card: int, tenants: list[tuple[int, Role, Usage]]) -> bool:
    use = peak((role, usage) for _, role, usage in sorted(tenants, key=lambda tenant: tenant[0]))
    if use.exclusive:
        return use.slices == 1 and bool(board.used_slices[row, card] == 0 and board.room_memory[row, card] >= 0)
    return bool(
        board.room_memory[row, card] >= use.memory_mib
        and board.room_core[row, card] >= use.core_milli
        and board.room_greedy[row, card] >= use.greedy_milli
        and board.room_slices[row, card] >= use.slices
    )


def _model(board: Board, row: int, slot: int) -> str:
    node = board.nodes[row]
    return next((card.model for card in node.cards if card.index == slot), "") if node else ""
