"""Why a decision took these cards: which keys of the policy's own order ruled the other cards out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aliquot.model.choice import Choice, Rule
from aliquot.model.grant import Grant
from aliquot.placement.board import Board, Bools, Floats, Ints
from aliquot.placement.demand import Demand
from aliquot.placement.fit import fits, spare_cards
from aliquot.placement.policies.packing import Packing
from aliquot.placement.policies.ranking import Policy, Preferred, packed_keys, spread_keys

Keys = Sequence[tuple[Rule, Floats]]  # [row, slot] each, the weightiest first; the smaller wins


def choice_of(
    board: Board, policy: Policy, demand: Demand, grant: Grant, replicas: Ints | None, group: Bools | None = None
) -> Choice:
    """The choice behind a grant that was just made on this board, and is not booked on it yet.

    `replicas`: how many Pods of the claim's owner are on each card, if the policy keeps them apart. `group`: the cards
    with other members of its group.
    """
    rows = np.arange(board.rows)
    nodes, cards = fits(board, demand, rows)
    if demand.whole_node:
        return Choice((Rule.SMALLEST_NODE,) if nodes.sum() > 1 else (), int(nodes.sum()))
    fitting = cards & nodes[:, None]
    row = board.row_of[grant.node]
    chosen = np.zeros_like(fitting)
    for container in grant.containers:
        chosen[row, [share.card for share in container.shares]] = True
    others = fitting & ~chosen
    count = int(fitting.sum())
    if not others.any():
        return Choice((), count)
    first: tuple[Rule, ...] = ()
    if group is not None and group[chosen].all():
        first, others = (Rule.GROUP,) if (others & ~group).any() else (), others & group
    if board.elastic and demand.parts:
        spare = spare_cards(board, demand, rows)
        if spare[chosen].all() and (others & ~spare).any():
            first, others = (*first, Rule.UNBOOKED), others & spare
    return Choice(first + _rules(board, policy, demand, chosen & fitting, others, replicas), count)


def _rules(
    board: Board, policy: Policy, demand: Demand, chosen: Bools, others: Bools, replicas: Ints | None
) -> tuple[Rule, ...]:
    if not others.any():
        return ()
    rows = np.arange(board.rows)
    if not demand.exact:
        return (Rule.TOGETHER,)
    if isinstance(policy, Preferred):
        return _ruled_out(policy.keys(board, demand, rows, replicas), chosen, others)
    if isinstance(policy, Packing) and not policy.follows_class(demand):
        return (Rule.LEAST_SPOILED,)
    keys = spread_keys if policy.spreads(demand) else packed_keys
    return _ruled_out(keys(board, demand, rows, replicas), chosen, others)


def _ruled_out(keys: Keys, chosen: np.ndarray, others: np.ndarray) -> tuple[Rule, ...]:
    """The keys by which other cards came after the last of the chosen ones."""
    found = []
    for rule, values in keys:
        worst = values[chosen].max(initial=-np.inf)
        worse = others & (values > worst)
        if worse.any():
            found.append(rule)
        others = others & (values == worst)
        chosen = chosen & (values == worst)
    return tuple(found)
