"""Who has to go so that a more important Pod gets its cards: tenants in, victims out. Nothing on the board changes.

On each node the victims are, in this order of rules:

    none that a PodDisruptionBudget protects, where there is another way
    the least important: no Pod goes while less important ones would be enough (priority, then offline before normal
        before online)
    the fewest

Pods of the preemptor's priority or above are never among the tenants that the caller passes. What leaves anyway
(Pods that terminate, room kept for less important Pods) counts as gone and costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import combinations
from math import comb

import msgspec

from aliquot.model.claim import AppClass, Claim
from aliquot.model.grant import Grant
from aliquot.placement.board import Board, Occupant
from aliquot.placement.choose import Chooser
from aliquot.placement.demand import demand_of

_FEW = 4  # Pods; for more it is faster to work out the room of their node once
_MOST_TRIALS = 200  # sets of victims tried on a node; beyond that Pods are spared one by one
_CLASS_ORDER = {AppClass.OFFLINE: 0, AppClass.NORMAL: 1, AppClass.ONLINE: 2}

Importance = tuple[bool, int, int]
_NOBODY: Importance = (False, -(1 << 31) - 1, 0)  # less than any Pod's


class Tenant(msgspec.Struct, frozen=True, gc=False):
    """A Pod that may be evicted; `protected`: a PodDisruptionBudget forbids it now."""

    uid: str
    priority: int
    occupant: Occupant
    protected: bool = False

    @property
    def importance(self) -> Importance:
        """The smaller, the earlier it goes."""
        return (self.protected, self.priority, _CLASS_ORDER[self.occupant.app_class])


class Plan(msgspec.Struct, frozen=True, gc=False):
    """What the claim gets on a node once the victims are gone; without victims, once what leaves anyway is gone."""

    grant: Grant
    victims: tuple[Tenant, ...]

    @property
    def cost(self) -> tuple[Importance, int, tuple[Importance, ...]]:
        """The smaller, the better."""
        return _cost(self.victims)


class Outlook(msgspec.Struct, frozen=True, gc=False):
    """What changes on a node anyway: Pods that leave it, and Pods for which room is kept there."""

    leaving: tuple[Occupant, ...] = ()
    coming: tuple[Occupant, ...] = ()


_UNCHANGED = Outlook()


def plan_on(
    chooser: Chooser, claim: Claim, node: str, tenants: Iterable[Tenant], outlook: Outlook = _UNCHANGED
) -> Plan | None:
    """The victims on that node; None where the claim would not fit even if all tenants were gone."""
    board = chooser.board
    row = board.row_of.get(node)
    if row is None or not board.present[row]:
        return None

    def grant_without(gone: Iterable[Tenant]) -> Grant | None:
        with _changed(board, node, Outlook(tuple(tenant.occupant for tenant in gone))):
            return chooser.seat(claim, row)

    with _changed(board, node, outlook):
        there = sorted(tenants, key=lambda tenant: tenant.importance)
        for allowed in _levels(there):
            grant = grant_without(allowed)
            if grant is not None:
                chosen = _fewest(_groups(board, row, claim, allowed), allowed, grant_without) if allowed else []
                return Plan(grant_without(chosen) or grant, tuple(chosen))
    return None


def _levels(there: Sequence[Tenant]) -> Iterator[Sequence[Tenant]]:
    """No tenant; the least important ones; those and the next; ...; all."""
    yield ()
    for at, tenant in enumerate(there):
        if at + 1 == len(there) or there[at + 1].importance != tenant.importance:
            yield there[: at + 1]


def _fewest(
    groups: Sequence[Sequence[Tenant]],
    allowed: Sequence[Tenant],
    grant_without: Callable[[Iterable[Tenant]], Grant | None],
) -> list[Tenant]:
    """The cheapest of these tenants that are enough; all of them are. Those that have to go are all in one group."""
    if len(groups) > 1:
        groups = [group for group in groups if grant_without(group) is not None]
    left = _MOST_TRIALS
    for size in range(1, len(allowed)):
        tries = sum(comb(len(group), size) for group in groups)
        if tries > left:
            break
        left -= tries
        sets = {
            frozenset(tenant.uid for tenant in chosen): chosen
            for group in groups
            for chosen in combinations(group, size)
        }
        for chosen in sorted(sets.values(), key=_cost):
            if grant_without(chosen) is not None:
                return list(chosen)
    return min((_spared(group, grant_without) for group in groups), key=_cost)


def _spared(group: Sequence[Tenant], grant_without: Callable[[Iterable[Tenant]], Grant | None]) -> list[Tenant]:
    """Those of the group that remain when one after the other is spared where it can be, the most important first."""
    going = list(group)
    for tenant in reversed(group):
        others = [other for other in going if other is not tenant]
        if grant_without(others) is not None:
            going = others
    return going


def _groups(board: Board, row: int, claim: Claim, allowed: Sequence[Tenant]) -> Sequence[Sequence[Tenant]]:
    """Tenants of which several may have to go at once: those of one card, where only one card is wanted and short."""
    demand = demand_of(claim)
    one_card = demand.exact and demand.parts and demand.parts[0].count == 1 and row not in board.elastic
    enough_cpu = board.room_cpu[row] >= demand.cpu_milli and board.room_host[row] >= demand.memory_mib
    if not (one_card and enough_cpu and not board.taken[row]):
        return [allowed]
    on_card: dict[int, list[Tenant]] = {}
    for tenant in allowed:
        for card in tenant.occupant.usage:
            on_card.setdefault(card, []).append(tenant)
    return list(on_card.values())


def _cost(victims: Sequence[Tenant]) -> tuple[Importance, int, tuple[Importance, ...]]:
    ranks = tuple(sorted((tenant.importance for tenant in victims), reverse=True))
    return (ranks[0] if ranks else _NOBODY, len(ranks), ranks)


@contextmanager
def _changed(board: Board, node: str, outlook: Outlook) -> Iterator[None]:
    """The board as it will be. First come those that come: a row of which all are released may be given up."""
    many = len(outlook.coming) + len(outlook.leaving) > _FEW
    with board.together() if many else nullcontext():
        for occupant in outlook.coming:
            board.take(node, occupant)
        for occupant in outlook.leaving:
            board.release(node, occupant)
    try:
        yield
    finally:
        with board.together() if many else nullcontext():
            for occupant in outlook.leaving:
                board.take(node, occupant)
            for occupant in outlook.coming:
                board.release(node, occupant)
