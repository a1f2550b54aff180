"""A claim reduced to what vector operations can compare with cards.

Most claims come down to `count` equal slices on distinct cards: one container; containers that stay together; whole
cards. Those are exact in one comparison over the whole board. Only Pods with several containers that may go to
different cards stay a list of parts, of which the board can only say "each part alone would fit" and seat.py the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from aliquot.model.claim import AppClass, CardFilter, Claim, ContainerClaim, Preference, Role, Slice, Usage, peak
from aliquot.model.device import CORE_MILLI
from aliquot.model.node import LIMITED_SHARING, Offer
from aliquot.placement.board import UNLIMITED

_NONE = Usage()


@dataclass(frozen=True, slots=True)
class Part:
    """`count` cards that each have room for `slice`; `tenants` is 1 where the card must have a place for one more Pod.

    0: that limit is not this claim's to heed. The role matters only where parts may go to different cards.
    """

    slice: Slice
    count: int
    tenants: int
    role: Role = Role.MAIN


@dataclass(frozen=True, slots=True)
class Demand:
    """The shape of a claim: claims of equal demand fit in the same places and score alike. Hashable, a cache's key."""

    offer: Offer
    parts: tuple[Part, ...]  # none: no card is wanted, only a node
    whole_node: bool
    app_class: AppClass
    models: frozenset[str] | None
    cards: CardFilter | None
    preference: Preference | None
    cpu_milli: int
    memory_mib: int
    parkable: bool = False  # and not of whole cards, which are not shared
    together: bool = False  # a group's member: the node must run groups
    at_once: Usage = _NONE  # of an inexact demand: what all parts use at once, on any cards

    @property
    def exact(self) -> bool:
        """True when "the parts fit" already means "the claim fits"."""
        return len(self.parts) <= 1


def demand_of(claim: Claim) -> Demand:
    """What the claim comes down to."""
    parts = () if claim.whole_node else _parts(claim, int(claim.offer in LIMITED_SHARING))
    return Demand(
        claim.offer,
        parts,
        claim.whole_node,
        claim.app_class,
        claim.models,
        claim.cards,
        claim.preference,
        min(claim.cpu_milli, UNLIMITED),
        min(claim.memory_mib, UNLIMITED),
        claim.parkable and not any(part.slice.exclusive for part in parts),
        bool(claim.group),
        _at_once(claim) if len(parts) > 1 else _NONE,
    )


def _at_once(claim: Claim) -> Usage:
    return peak(
        (
            container.role,
            Usage(
                container.cards * container.slice.memory_mib,
                container.cards * (container.slice.core_milli or 0),
            ),
        )
        for container in claim.containers
    )


def _parts(claim: Claim, tenants: int) -> tuple[Part, ...]:
    asking = claim.containers
    if len(asking) == 1:
        return (Part(asking[0].slice, asking[0].cards, tenants),)
    if claim.together:
        return (_stacked(asking, tenants),)
    if asking and all(container.slice == asking[0].slice and container.slice.exclusive for container in asking):
        cards = peak((container.role, Usage(slices=container.cards)) for container in asking).slices
        return (Part(asking[0].slice, cards, tenants),)
    return tuple(Part(container.slice, container.cards, tenants, container.role) for container in asking)


def _stacked(asking: tuple[ContainerClaim, ...], tenants: int) -> Part:
    """All containers on the same cards: as much of each card as they use at once."""

    def most(amount: Callable[[Slice], int | None]) -> int | None:
        if all(amount(container.slice) is None for container in asking):
            return None
        return peak((container.role, Usage(slices=amount(container.slice) or 0)) for container in asking).slices

    return Part(
        Slice(
            memory_mib=most(lambda part: part.memory_mib) or 0,
            memory_percent=most(lambda part: ceil(part.memory_percent)) or 0,
            core_milli=most(lambda part: part.core_milli),
            greedy_milli=most(lambda part: part.greedy_milli),
            exclusive=any(container.slice.exclusive for container in asking),
        ),
        max(container.cards for container in asking),
        tenants,
    )


def milli_of(part: Part, card_memory_mib: int) -> int:
    """The part's share of a card of that size, which is not 0, in thousandths, by its larger dimension."""
    if part.slice.exclusive:
        return CORE_MILLI
    memory = -(-part.slice.memory_on(card_memory_mib) * 1000 // card_memory_mib)
    return min(CORE_MILLI, max(part.slice.core_milli or 0, memory))
