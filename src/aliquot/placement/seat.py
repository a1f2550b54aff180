"""Which cards of one node each container gets.

One container, or containers that stay together, take the first cards in the policy's order that have room. Several
containers that may go apart are seated by a small search, the hardest to place first, init containers last (they run
before the others and reuse their cards). The search is exact as long as patience lasts, which is for all sane Pods.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, islice
from typing import NamedTuple

import numpy as np

from aliquot.model.claim import Claim, ContainerClaim, Role, Slice, Usage, peak
from aliquot.model.grant import ContainerGrant, Grant, Share
from aliquot.model.node import LIMITED_SHARING
from aliquot.placement.board import Board
from aliquot.placement.demand import Demand, Part
from aliquot.placement.fit import fits, fitting_cards, short_of
from aliquot.placement.rooms import beyond_cards

# Sets of cards that one decision may try, over all nodes: some tenths of a second. Three containers on 8 cards have at
# most 512 on a node, so only Pods of very many containers, of very many sizes, ever feel it.
_TRIES = 20_000


class _Tenant(NamedTuple):
    """A container on a card."""

    place: int  # in the Pod's order
    role: Role
    usage: Usage
    peak: Usage  # the most that it and those before it use of the card at once


_Seated = dict[int, list[_Tenant]]  # by card


class Patience:
    """How many sets of cards one decision may still try."""

    def __init__(self) -> None:
        self.left = _TRIES

    @property
    def untouched(self) -> bool:
        """Whether nothing was tried yet."""
        return self.left == _TRIES

    def spend(self) -> bool:
        """One more try; False when there is none left."""
        self.left -= self.left > 0
        return self.left > 0


def seat(
    board: Board, row: int, claim: Claim, demand: Demand, ranking: Sequence[int], patience: Patience
) -> Grant | None:
    """The grant on that node, cards taken in the order of `ranking`; None when it does not fit."""
    rows = np.array([row])
    nodes, fitting = fits(board, demand, rows)
    if not nodes[0]:
        return None
    if claim.whole_node:
        cards = np.flatnonzero(board.memory[row]).tolist()
        chosen = [cards] * len(claim.containers)
    elif len(claim.containers) == 1 or claim.together:
        cards = [slot for slot in ranking if fitting[0, slot]][: demand.parts[0].count]
        chosen = [cards] * len(claim.containers)
    else:
        found = _search(board, row, claim, demand, ranking, patience)
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
            ContainerGrant(container.name, container.index, container.role, _shares(board, row, container.slice, cards))
            for container, cards in zip(claim.containers, chosen, strict=True)
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


def _search(
    board: Board, row: int, claim: Claim, demand: Demand, ranking: Sequence[int], patience: Patience
) -> list[list[int]] | None:
    """The cards of each container, found by search; None if there is no solution."""
    order = sorted(range(len(claim.containers)), key=lambda place: _hardness(board, row, claim.containers[place]))
    limited = claim.offer in LIMITED_SHARING
    kinds = {(container.slice, container.count): container for container in claim.containers}
    fitting = {kind: _choices(board, row, container, demand, ranking, limited) for kind, container in kinds.items()}
    choices = [fitting[claim.containers[place].slice, claim.containers[place].count] for place in order]
    seated: _Seated = {slot: [] for slot in ranking}
    chosen: list[list[int]] = [[] for _ in claim.containers]

    def place_from(step: int, first: int) -> bool:
        """Seat the containers from that step on; the one at `step` may not take options before `first`."""
        if step == len(order):
            return row not in board.elastic or _pool_holds(board, row, seated)
        place = order[step]
        container = claim.containers[place]
        # Equal containers are seated in the order of their options: the other orders are the same with names changed.
        twin = step + 1 < len(order) and _interchangeable(container, claim.containers[order[step + 1]])
        options = islice(_options(container, choices[step], seated), first, None)
        for at, cards in enumerate(options, first):
            if not patience.spend():
                return False
            for card in cards:
                _sit_down(seated[card], place, container.role, _usage(board, row, container.slice, card))
            if all(
                not short_of(board, row, card, seated[card][-1].peak, limited=limited, parkable=demand.parkable)
                for card in cards
            ):
                chosen[place] = list(cards)
                if place_from(step + 1, at if twin else 0):
                    return True
            for card in cards:
                seated[card].pop()
        return False

    return chosen if place_from(0, 0) else None


def _choices(
    board: Board, row: int, container: ContainerClaim, demand: Demand, ranking: Sequence[int], limited: bool
) -> list[int]:
    """The cards that would do for the container alone, in the policy's order."""
    part = Part(container.slice, container.cards, int(limited))
    fitting = fitting_cards(board, part, demand, np.array([row]))[0]
    return [slot for slot in ranking if fitting[slot]]


def _interchangeable(first: ContainerClaim, second: ContainerClaim) -> bool:
    """Whether swapping the containers changes nothing. Not so for init containers and sidecars, which run in turn."""
    same = first.slice == second.slice and first.count == second.count
    return same and first.role is second.role is Role.MAIN


def _options(container: ContainerClaim, ranking: Sequence[int], seated: _Seated) -> Iterator[tuple[int, ...]]:
    """Sets of cards to try. An init container goes first where its Pod already sits: that costs nothing."""
    if container.role is Role.INIT:
        ranking = sorted(ranking, key=lambda slot: not seated[slot])
    return combinations(ranking, container.cards)


def _hardness(board: Board, row: int, container: ContainerClaim) -> tuple[bool, bool, int, int, bool]:
    part = container.slice
    size = max(part.memory_on(int(board.memory[row].max())), part.core_milli or 0)
    return (
        container.role is Role.INIT,
        not part.exclusive,
        -container.cards,
        -size,
        container.role is Role.SIDECAR,
    )


def _usage(board: Board, row: int, part: Slice, card: int) -> Usage:
    return Share(
        card, part.memory_on(int(board.memory[row, card])), part.core_milli, part.greedy_milli, part.exclusive
    ).usage()


def _sit_down(tenants: list[_Tenant], place: int, role: Role, usage: Usage) -> None:
    """One more container on the card. Init containers come last: all others are there at once, so they only add up."""
    if role is not Role.INIT:
        tenants.append(_Tenant(place, role, usage, tenants[-1].peak + usage if tenants else usage))
        return
    everyone = sorted([*tenants, _Tenant(place, role, usage, usage)], key=lambda tenant: tenant.place)
    tenants.append(_Tenant(place, role, usage, peak((tenant.role, tenant.usage) for tenant in everyone)))


def _pool_holds(board: Board, row: int, seated: _Seated) -> bool:
    """Whether the pool has room for what goes beyond the cards, on all of them together."""
    wanted = {card: tenants[-1].peak.memory_mib for card, tenants in seated.items() if tenants}
    return beyond_cards(board, row, wanted) <= int(board.pool_left[row])
