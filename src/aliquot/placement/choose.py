"""The best node for a claim, with scores kept per shape.

Between two claims of one shape only a few rows change. So the scores of a shape are kept, and the next claim of that
shape recomputes only the rows that changed since (the board stamps them): a decision costs a few small vector
operations and one argmin, on any number of nodes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from msgspec.structs import replace

from aliquot.model.claim import AppClass, Claim, Preference
from aliquot.model.device import Card
from aliquot.model.grant import Grant
from aliquot.model.node import Node, Order
from aliquot.model.refusal import Reason, Refusal
from aliquot.placement.board import Board, Floats, Ints
from aliquot.placement.demand import Demand, demand_of
from aliquot.placement.fit import fits, shortages, spare_cards
from aliquot.placement.policies.packing import Packing, dense, fgd
from aliquot.placement.policies.ranking import (
    Policy,
    Preferred,
    binpack,
    parking_scores,
    resident_first,
    spread,
    spread_cards,
    spread_nodes,
)
from aliquot.placement.seat import Patience, grant_on, seat
from aliquot.placement.verdicts import FITS, TOGETHER_NOT, verdicts

POLICIES: dict[str, Callable[[], Policy]] = {"binpack": binpack, "spread": spread, "fgd": fgd, "dense": dense}

_SHAPES_KEPT = 512
# Of cards and codes: a node has few of the one, and there are few of the other. 512 shapes times 5,000 rows are many.
_Small = np.int16


@dataclass(slots=True)
class _Kept:
    """The scores of one shape: by row, infinite where it does not fit; right for the board at `clock`."""

    scores: Floats
    cards: Ints  # the card each row would take first
    clock: int
    version: int
    why: Ints | None = None  # by row, the verdict's code; FITS where it fits. Computed on demand
    why_clock: int = -1


@dataclass(frozen=True, slots=True)
class _Own:
    """The scores of one claim whose owner has other replicas; right for the board at `clock`."""

    claim: Claim
    kept: _Kept
    clock: int
    scores: Floats
    cards: Ints


class Chooser:
    """Chooses on one board by one policy."""

    def __init__(self, board: Board, policy: Policy) -> None:
        self.board = board
        self.policy = policy
        self._kept: OrderedDict[Demand, _Kept] = OrderedDict()
        self._latest: tuple[Claim, Demand] | None = None
        self._own: _Own | None = None

    def choose(self, claim: Claim, among: Ints | None = None) -> Grant | None:
        """The best place for the claim, of all rows or of those; None when there is none now. Books nothing."""
        demand = self._demand(claim)
        kept = self._scores(demand)
        scores, cards = self._own_scores(claim, demand, kept)
        one_card = demand.exact and demand.parts and demand.parts[0].count == 1 and not self._members(claim)
        if not len(scores if among is None else among):
            return None
        patience = Patience()
        while True:
            row = _first_best(scores, among)
            if not np.isfinite(scores[row]):
                return None
            if one_card and self._card_order(demand, row) is None:
                return grant_on(self.board, row, claim, [[int(cards[row])]] * len(claim.containers))
            had_patience = patience.untouched
            grant = self.seat(claim, row, patience)
            if grant is not None or not (patience.left or had_patience):
                return grant
            self._exclude(kept, row)

    def fitting(self, claim: Claim, among: Ints | None = None) -> Ints:
        """The rows that the claim fits, of all or of those."""
        demand = self._demand(claim)
        kept = self._scores(demand)
        rows = np.arange(self.board.rows) if among is None else among
        rows = rows[np.isfinite(kept.scores[rows])]
        if demand.exact:
            return rows
        patience = Patience()
        seated = np.array([self.seat(claim, int(row), patience) is not None for row in rows], bool)
        if patience.left:  # otherwise the search gave up on some
            self._exclude(kept, rows[~seated])
        return rows[seated]

    def first_fitting(self, claim: Claim, among: Ints, most: int) -> Ints:
        """The best `count` of those rows that the claim fits; examines no more rows than needed."""
        demand = self._demand(claim)
        kept = self._scores(demand)
        scores, _ = self._own_scores(claim, demand, kept)
        rows = among[np.isfinite(scores[among])]
        found: list[int] = []
        patience = Patience()
        for row in rows[np.argsort(scores[rows], kind="stable")].tolist():
            if len(found) == most or not patience.left:
                break
            if self.seat(claim, row, patience) is not None:
                found.append(row)
            elif patience.left:  # otherwise the search gave up
                self._exclude(kept, row)
        return np.array(found, np.int64)

    def exact(self, claim: Claim) -> bool:
        """Whether a finite score already means that it fits."""
        return self._demand(claim).exact

    def scores(self, claim: Claim) -> Floats:
        """By row, the smaller the better, infinite where the claim does not fit (of an inexact demand: may not)."""
        demand = self._demand(claim)
        return self._own_scores(claim, demand, self._scores(demand))[0]

    def why_not(self, claim: Claim) -> Ints:
        """By row, the code of the one reason that keeps the claim away (verdicts.verdict_of), or FITS."""
        demand = self._demand(claim)
        kept, board = self._scores(demand), self.board
        why = kept.why
        if why is None or len(why) < board.rows:
            why, kept.why_clock = np.full(board.rows, FITS, _Small), -1
        if kept.why_clock < board.clock:
            stale = np.flatnonzero(board.changed[: board.rows] > kept.why_clock)
            why[stale] = verdicts(board, demand, stale)
            kept.why, kept.why_clock = why, board.clock
        # Each container alone would fit, together they do not.
        lost = ~np.isfinite(kept.scores) & (why == FITS) & board.present[: board.rows]
        if lost.any():
            why[lost] = TOGETHER_NOT
        return why

    def seat(self, claim: Claim, row: int, patience: Patience | None = None) -> Grant | None:
        """The claim's cards on that row, None when it does not fit there."""
        demand = self._demand(claim)
        there = {place: times for place, times in self._replicas(claim, demand).items() if place[0] == row}
        order = self._card_order(demand, row)
        if order is not None:
            scores = Preferred(Preference(order, order)).card_scores(self.board, demand, row)
        elif there:
            rows = np.array([row])
            scores = spread_cards(self.board, demand, rows, self._counted(there, rows))[0]
        else:
            scores = self._policy(demand).card_scores(self.board, demand, row)
        if row in self.board.elastic and demand.parts:
            rows = np.array([row])
            parks = parking_scores(self.board, demand, rows)[0]
            scores = np.where(spare_cards(self.board, demand, rows)[0], scores, parks)
        members = self._members(claim)
        if members:
            scores = np.where(self._counted(members, np.array([row]))[0] > 0, scores - _above_all(scores), scores)
        return seat(self.board, row, claim, demand, _order(scores), patience or Patience())

    def refusals(self, claim: Claim, among: Ints | None = None) -> list[Refusal]:
        """Every reason why the claim does not go to the rows (all, or those) that it does not fit."""
        demand = self._demand(claim)
        rows = np.arange(self.board.rows) if among is None else among
        rows = rows[self.board.present[rows]]
        found = [
            refusal for shortage in shortages(self.board, demand, rows) for refusal in shortage.refusals(self.board)
        ]
        return found if demand.exact else found + self._unseated(claim, rows, {refusal.node for refusal in found})

    def _unseated(self, claim: Claim, rows: Ints, reported: set[str]) -> list[Refusal]:
        """Of the nodes not reported yet, those whose cards fit each container but not all of them together."""
        patience, when_empty = Patience(), Patience()
        never: dict[tuple[Card, ...], bool] = {}  # most nodes of a cluster have the same cards
        found = []
        for row in rows.tolist():
            node = self.board.nodes[row]
            if node is None or node.name in reported or self.seat(claim, row, patience) is not None:
                continue
            named = claim.cards is not None and (claim.cards.uuids or claim.cards.not_uuids)
            bare = tuple(
                replace(card, healthy=True, withheld=None, uuid=card.uuid if named else "") for card in node.cards
            )
            if bare not in never:
                never[bare] = _never_seats(replace(node, cards=bare), claim, when_empty)
            found.append(Refusal(node.name, None, Reason.CONTAINERS, len(claim.containers), None, never=never[bare]))
        return found

    def observe(self, claim: Claim) -> None:
        """Learn from one more Pod seen, where the policy learns."""
        if isinstance(self.policy, Packing):
            self.policy.observe(self.board, self._demand(claim))

    def learn(self) -> None:
        """Take what was seen so far for what is to come, where the policy learns."""
        if isinstance(self.policy, Packing):
            self.policy.learn(self.board)

    def _card_order(self, demand: Demand, row: int) -> Order | None:
        """The order that the node's owner wants, for ordinary Pods without a preference of their own."""
        if demand.preference is not None or demand.app_class is not AppClass.NORMAL:
            return None
        node = self.board.nodes[row]
        return None if node is None else node.card_order

    def _policy(self, demand: Demand) -> Policy:
        return self.policy if demand.preference is None else Preferred(demand.preference)

    def _scores(self, demand: Demand) -> _Kept:
        board, policy = self.board, self._policy(demand)
        kept = self._kept.get(demand)
        if kept is None or kept.version != policy.version:
            kept = _Kept(np.full(board.rows, np.inf), np.zeros(board.rows, _Small), -1, policy.version)
            self._kept[demand] = kept
            if len(self._kept) > _SHAPES_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(demand)
        missing = board.rows - len(kept.scores)
        if missing:
            kept.scores = np.concatenate([kept.scores, np.full(missing, np.inf)])
            kept.cards = np.concatenate([kept.cards, np.zeros(missing, _Small)])
        if kept.clock < board.clock:
            stale = np.flatnonzero(board.changed[: board.rows] > kept.clock)
            # A slice copies no columns: a shape that is new looks at every row.
            nodes, cards = fits(board, demand, slice(0, board.rows) if len(stale) == board.rows else stale)
            kept.scores[stale] = np.inf
            rows = stale[nodes]
            if len(rows):
                kept.scores[rows], kept.cards[rows] = resident_first(
                    board, demand, rows, cards[nodes], policy.node_scores
                )
                kept.version = policy.version  # a policy that learns may have begun to with this call
            kept.clock = board.clock
        return kept

    def _replicas(self, claim: Claim, demand: Demand) -> Mapping[tuple[int, int], int]:
        """Where the other replicas of its owner are, and how many, if the policy keeps them apart."""
        if claim.owner is None or not demand.parts or not self._policy(demand).spreads(demand):
            return {}
        return self.board.replicas.get(claim.owner, {})

    def _members(self, claim: Claim) -> Mapping[tuple[int, int], int]:
        """Where the other members of its group are, and how many."""
        return self.board.members.get(claim.group_key, {}) if claim.group else {}

    def _demand(self, claim: Claim) -> Demand:
        """The claim's demand; a claim is usually asked about several times in a row."""
        if self._latest is None or self._latest[0] is not claim:
            self._latest = (claim, demand_of(claim))
        return self._latest[1]

    def _own_scores(self, claim: Claim, demand: Demand, kept: _Kept) -> tuple[Floats, Ints]:
        """The shape's scores and cards; copies where rows with other replicas of the claim's owner, or with members of
        its group, differ.

        A claim is usually asked about several times in a row: the latest copies are kept.
        """
        own, board = self._own, self.board
        if own is not None and own.claim is claim and own.kept is kept and own.clock == board.clock:
            return own.scores, own.cards
        scores, cards = self._scores_among_replicas(claim, demand, kept)
        members = self._members(claim)
        if members:
            scores = self._beside(members, demand, scores)
        if scores is not kept.scores:
            self._own = _Own(claim, kept, board.clock, scores, cards)
        return scores, cards

    def _scores_among_replicas(self, claim: Claim, demand: Demand, kept: _Kept) -> tuple[Floats, Ints]:
        places, board = self._replicas(claim, demand), self.board
        if not places:
            policy = self._policy(demand)
            dues = policy.dues(demand, kept.cards) if isinstance(policy, Packing) else None
            if dues is None:
                return kept.scores, kept.cards
            scores = kept.scores.copy()
            scores[dues[0]] += dues[1]
            return scores, kept.cards
        scores, cards = kept.scores.copy(), kept.cards.copy()
        rows = np.unique(np.fromiter((row for row, _ in places), np.int64, len(places)))
        rows = rows[np.isfinite(scores[rows])]
        if len(rows):
            _, fitting = fits(board, demand, rows)
            rank = partial(spread_nodes, replicas=self._counted(places, rows))
            scores[rows], cards[rows] = resident_first(board, demand, rows, fitting, rank)
        return scores, cards

    def _beside(self, members: Mapping[tuple[int, int], int], demand: Demand, scores: Floats) -> Floats:
        """The same, with the nodes before all others where a card of its group has room: only there it shares a server
        with them. Which card, `seat` decides."""
        rows = np.unique(np.fromiter((row for row, _ in members), np.int64, len(members)))
        rows = rows[np.isfinite(scores[rows])]
        if not len(rows):
            return scores
        _, fitting = fits(self.board, demand, rows)
        near = (fitting & (self._counted(members, rows) > 0)).any(axis=1)
        scores = scores.copy()
        scores[rows[near]] -= _above_all(scores)
        return scores

    def _counted(self, places: Mapping[tuple[int, int], int], rows: Ints) -> Ints:
        """[row, slot]: how many of those places' replicas."""
        counts = np.zeros((len(rows), self.board.width), np.int64)
        at = {row: place for place, row in enumerate(rows.tolist())}
        for (row, slot), times in places.items():
            if row in at and slot < self.board.width:
                counts[at[row], slot] += times
        return counts

    def _exclude(self, kept: _Kept, rows: int | Ints) -> None:
        """Each container alone would fit there, together they do not: so until the rows change."""
        kept.scores[rows] = np.inf
        if self._own is not None and self._own.kept is kept:
            self._own.scores[rows] = np.inf


def _never_seats(node: Node, claim: Claim, patience: Patience) -> bool:
    """Whether the containers would not fit the node together even if nothing else were on it; False when unknown."""
    board = Board()
    board.set_node(node)
    return Chooser(board, binpack()).seat(claim, 0, patience) is None and patience.left > 0


def _first_best(scores: Floats, among: Ints | None) -> int:
    """The row with the smallest score. Ties go to the board's order, not to that of `among`.

    kube-scheduler checks nodes side by side and asks about them in the order in which its threads were done.
    """
    if among is None:
        return int(scores.argmin())
    found = scores[among]
    return int(among[found == found.min()].min())


def _above_all(scores: Floats) -> float:
    """What makes any of these scores smaller than all others."""
    finite = scores[np.isfinite(scores)]
    return float(np.ptp(finite)) + 1.0 if len(finite) else 1.0


def _order(scores: Floats) -> Sequence[int]:
    return [int(slot) for slot in np.argsort(scores, kind="stable")]
