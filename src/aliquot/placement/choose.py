"""The best node for a claim, with scores kept per shape.

Between two claims of one shape only a few rows change. So the scores of a shape are kept, and the next claim of that
shape recomputes only the rows that changed since (the board stamps them): a decision costs a few small vector
operations and one argmin, on any number of nodes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from aliquot.model.claim import Claim
from aliquot.model.grant import Grant
from aliquot.model.refusal import Reason, Refusal

from .board import Board, Floats, Ints
from .demand import Demand, demand_of
from .fit import could_ever, fits, shortages
from .packing import Packing, dense, fgd
from .policies import APART, Policy, binpack, spread
from .seat import seat

POLICIES: dict[str, Callable[[], Policy]] = {"binpack": binpack, "spread": spread, "fgd": fgd, "dense": dense}

_SHAPES_KEPT = 512


@dataclass(slots=True)
class _Kept:
    """The scores of one shape: by row, infinite where it does not fit; right for the board at `clock`."""

    scores: Floats
    clock: int
    version: int


class Chooser:
    """Chooses on one board by one policy."""

    def __init__(self, board: Board, policy: Policy) -> None:
        self.board = board
        self.policy = policy
        self._kept: OrderedDict[Demand, _Kept] = OrderedDict()

    def choose(self, claim: Claim, among: Ints | None = None) -> Grant | None:
        """The best place for the claim, of all rows or of those; None when there is none now. Books nothing."""
        demand = demand_of(claim)
        kept = self._scores(demand)
        scores = self._with_distance(claim, demand, kept.scores)
        while True:
            if among is None:
                row = int(scores.argmin()) if len(scores) else 0
            else:
                row = int(among[scores[among].argmin()]) if len(among) else 0
            if not len(scores) or not np.isfinite(scores[row]) or (among is not None and not len(among)):
                return None
            grant = self.seat(claim, row, demand)
            if grant is not None:
                return grant
            # Each container alone would fit, together they do not: known for good until the row changes.
            kept.scores[row] = scores[row] = np.inf

    def fitting(self, claim: Claim, among: Ints | None = None) -> Ints:
        """The rows that the claim fits, of all or of those."""
        demand = demand_of(claim)
        kept = self._scores(demand)
        rows = np.arange(self.board.rows) if among is None else among
        rows = rows[np.isfinite(kept.scores[rows])]
        if demand.exact:
            return rows
        seated = np.array([self.seat(claim, int(row), demand) is not None for row in rows], bool)
        kept.scores[rows[~seated]] = np.inf
        return rows[seated]

    def seat(self, claim: Claim, row: int, demand: Demand | None = None) -> Grant | None:
        """The claim's cards on that row, None when it does not fit there."""
        demand = demand or demand_of(claim)
        scores = self.policy.card_scores(self.board, demand, row)
        if claim.owner is not None and self.policy.apart(demand):
            for (at, slot), times in self.board.replicas.get(claim.owner, {}).items():
                if at == row:
                    scores[slot] += APART * times
        return seat(self.board, row, claim, demand, _order(scores))

    def refusals(self, claim: Claim, among: Ints | None = None) -> list[Refusal]:
        """Every reason why the claim does not go to the rows (all, or those) that it does not fit."""
        demand = demand_of(claim)
        rows = np.arange(self.board.rows) if among is None else among
        rows = rows[self.board.present[rows]]
        found = [each for shortage in shortages(self.board, demand, rows) for each in shortage.refusals(self.board)]
        if not demand.exact:
            found += self._unseated(claim, demand, rows)
        return found

    def _unseated(self, claim: Claim, demand: Demand, rows: Ints) -> list[Refusal]:
        nodes, _ = fits(self.board, demand, rows)
        wanted = len(claim.containers)
        return [
            Refusal(self.board.names[row], None, Reason.CONTAINERS, wanted, None, False)
            for row in rows[nodes].tolist()
            if self.seat(claim, row, demand) is None
        ]

    def could_ever(self, claim: Claim) -> bool:
        """Whether the claim would fit somewhere if the cluster were empty."""
        rows = np.flatnonzero(self.board.present[: self.board.rows])
        return bool(could_ever(self.board, demand_of(claim), rows).any())

    def observe(self, claim: Claim) -> None:
        """Learn from one more Pod seen, where the policy learns."""
        if isinstance(self.policy, Packing):
            self.policy.observe(self.board, demand_of(claim))

    def learn(self) -> None:
        """Take what was seen so far for what is to come, where the policy learns."""
        if isinstance(self.policy, Packing):
            self.policy.learn(self.board)

    def _scores(self, demand: Demand) -> _Kept:
        board, policy = self.board, self.policy
        kept = self._kept.get(demand)
        if kept is None or kept.version != policy.version:
            kept = _Kept(np.full(board.rows, np.inf), -1, policy.version)
            self._kept[demand] = kept
            if len(self._kept) > _SHAPES_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(demand)
        if len(kept.scores) < board.rows:
            kept.scores = np.concatenate([kept.scores, np.full(board.rows - len(kept.scores), np.inf)])
        if kept.clock < board.clock:
            stale = np.flatnonzero(board.changed[: board.rows] > kept.clock)
            nodes, cards = fits(board, demand, stale)
            kept.scores[stale] = np.inf
            rows = stale[nodes]
            if len(rows):
                kept.scores[rows] = policy.node_scores(board, demand, rows, cards[nodes])
            kept.clock = board.clock
        return kept

    def _with_distance(self, claim: Claim, demand: Demand, scores: Floats) -> Floats:
        """The scores with the owner's other replicas pushed away; a copy when there are any."""
        places = self.board.replicas.get(claim.owner or "", {})
        if not places or not self.policy.apart(demand):
            return scores
        scores = scores.copy()
        for (row, _), times in places.items():
            scores[row] += APART * times
        return scores


def _order(scores: Floats) -> Sequence[int]:
    return [int(slot) for slot in np.argsort(scores, kind="stable")]
