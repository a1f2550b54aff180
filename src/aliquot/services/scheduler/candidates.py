"""The candidate nodes for one Pod: which of these nodes would take it (filter), and which is the best (rank).

No IO, no clock, no await, as in the cluster whose board it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aliquot.model.claim import Claim
from aliquot.model.grant import Grant
from aliquot.placement.board import Board, Ints
from aliquot.placement.choose import Chooser
from aliquot.placement.verdicts import FITS, TOGETHER_NOT

_WIDER = 16  # times as many nodes in the answer to a Pod that comes again
_MOST_TRIES = 20_000
_MOST_REASONS = 5_000  # in an answer; for more nodes it would be larger than it is worth


@dataclass(frozen=True, slots=True)
class Filtered:
    """What a filter call answers: names that fit; for the others, the code of the reason (placement.verdicts).

    `unknown` are names of no node that we know. `likely` is what the Pod will get, where that is certain enough: only
    one name is in the answer.
    """

    fit: Sequence[str]
    codes: dict[str, int]
    unknown: tuple[str, ...] = ()
    likely: Grant | None = None


def sample_size(nodes: int) -> int:
    """How many nodes that pass its own checks kube-scheduler looks for, if percentageOfNodesToScore is left to it."""
    return min(nodes, max(100, nodes * max(5, 50 - nodes // 125) // 100))


class Candidates:
    """`shortlist`: how many of the nodes that fit are in the answer to a Pod's first filter call; 0: all, of which
    kube-scheduler's own preferences and our ranks decide."""

    def __init__(self, board: Board, chooser: Chooser, shortlist: int) -> None:
        self._board, self._chooser, self._shortlist = board, chooser, shortlist
        self._tries: dict[str, int] = {}  # by uid: how often a Pod got nodes and came again

    def forget(self, uid: str) -> None:
        """Forget what is kept for the Pod: it will not come again."""
        self._tries.pop(uid, None)

    def _rows(self, names: Sequence[str]) -> Ints:
        """The board's row of each name, -1 for one that is not known."""
        row_of = self._board.row_of
        try:
            return np.fromiter(map(row_of.__getitem__, names), np.int64, len(names))
        except KeyError:
            return np.fromiter((row_of.get(name, -1) for name in names), np.int64, len(names))

    def filter(self, claim: Claim, names: Sequence[str]) -> Filtered:
        """Which of the nodes would take the claim now.

        The first nodes come without reasons: kube-scheduler reads them only where no node is left. If none of those
        nodes will do, the Pod comes again, and then every reason is there.
        """
        rows = self._rows(names)
        brief = claim.uid not in self._tries
        if self._few(claim) == 1:
            best = self._chooser.choose(claim, rows if len(rows) and rows.min() >= 0 else rows[rows >= 0])
            if best is not None:
                self._count_try(claim, 1)
                return Filtered([best.node], {}, (), best)
        fits = rows >= 0
        if self._chooser.exact(claim) or (brief and self._may_go_apart(claim, rows[fits])):
            fits[fits] = np.isfinite(self._chooser.scores(claim))[rows[fits]]
            chosen = self._best(claim, rows, np.flatnonzero(fits))
        else:  # whether containers that may go apart fit takes a search on each node: the best first, as many as needed
            found = self._chooser.first_fitting(claim, np.unique(rows[fits]), self._few(claim) or len(rows))
            chosen = np.flatnonzero(np.isin(rows, found))
            self._count_try(claim, len(chosen))
            fits[fits] = np.isfinite(self._chooser.scores(claim))[rows[fits]] & bool(len(chosen))
        answered = names if len(chosen) == len(names) else [names[at] for at in chosen.tolist()]
        likely = self._chooser.choose(claim, rows[chosen]) if len(chosen) == 1 else None
        if (brief and len(chosen)) or fits.all():
            return Filtered(answered, {}, (), likely)
        there = rows >= 0  # rows of nodes that are gone are kept for what is booked on them: they give no reason
        there[there] = self._board.present[rows[there]]
        lost = np.flatnonzero(~fits & there)
        why = self._chooser.why_not(claim)[rows[lost]]
        why[why == FITS] = TOGETHER_NOT  # a search found that, and it is not always kept
        codes = dict(zip([names[at] for at in lost.tolist()], why.tolist(), strict=True))
        if not len(chosen):
            codes = {**self._not_asked(claim, names), **codes}
        unknown = tuple(names[at] for at in np.flatnonzero(~there).tolist())
        return Filtered(answered, codes, unknown, likely)

    def _may_go_apart(self, claim: Claim, rows: Ints) -> bool:
        """Whether all nodes that take each container alone are good enough an answer, since one takes all of them.

        To try all of them on each of 420 nodes takes 100 ms. If kube-scheduler prefers one that does not, we refuse to
        bind there, and the Pod comes again: then they are tried.
        """
        return not self._few(claim) and self._chooser.choose(claim, rows) is not None

    def _not_asked(self, claim: Claim, names: Sequence[str]) -> dict[str, int]:
        """The reasons of the nodes that kube-scheduler left out because it looks at a part of them at a time.

        It counts reasons in the Pod's condition. Another part, other counts: it would write the Pod anew with every
        attempt.
        """
        board = self._board
        there = board.present[: board.rows]
        nodes = int(there.sum())
        if len(names) >= nodes or nodes > _MOST_REASONS or len(names) != sample_size(nodes):
            return {}
        why = self._chooser.why_not(claim)
        rows = np.flatnonzero(there & (why != FITS))
        return dict(zip([board.names[row] for row in rows.tolist()], why[rows].tolist(), strict=True))

    def _best(self, claim: Claim, rows: Ints, fitting: Ints) -> Ints:
        """Of the places in `rows` that fit, the best few in the order asked: the best of all is chosen anyway.

        What kube-scheduler still does for every node in the answer is most of what a Pod costs it. Should the best come
        to nothing (another extender, a plugin), the Pod comes again, and gets more nodes each time.
        """
        few = self._few(claim)
        self._count_try(claim, len(fitting))
        if not few or len(fitting) <= few:
            return fitting
        scores = self._chooser.scores(claim)[rows[fitting]]
        return np.sort(fitting[np.argpartition(scores, few - 1)[:few]])

    def _few(self, claim: Claim) -> int:
        """How many nodes the answer may have; 0: all. A Pod that itself asks for an order of nodes gets the first."""
        first = 1 if claim.preference is not None else self._shortlist
        few: int = first * _WIDER ** min(self._tries.get(claim.uid, 0), 4)
        return few

    def _count_try(self, claim: Claim, nodes: int) -> None:
        """The Pod has had one more try, if there were any nodes for it."""
        if nodes:
            if len(self._tries) >= _MOST_TRIES:
                self._tries.clear()
            self._tries[claim.uid] = self._tries.get(claim.uid, 0) + 1

    def rank(self, claim: Claim, names: Sequence[str], top: int = 10) -> tuple[Ints, Grant | None]:
        """`top` for the best of these nodes, whose grant is given too, and less for the others, down to 0.

        As long as there are no more nodes than ranks, no two have the same: kube-scheduler breaks ties by chance.
        """
        rows = self._rows(names)
        known = rows >= 0
        best = self._chooser.choose(claim, rows[known])
        scores = np.full(len(rows), np.inf)
        scores[known] = self._chooser.scores(claim)[rows[known]]
        ranks = np.empty(len(rows), np.int64)
        ranks[np.argsort(scores, kind="stable")] = top + -top * np.arange(len(rows)) // max(len(rows), 1)
        ranks[~np.isfinite(scores)] = 0
        if best is not None:
            ranks[names.index(best.node)] = top
        return ranks, best
