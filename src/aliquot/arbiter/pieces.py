"""Engines that wait for each piece of their work, as language models wait for each token, and share a card.

Between the kernels and copies of a piece the card is idle for instants, and in each the hardware switches to the other
engine: two of them got 0.65 of what one has alone. So they take turns of a few milliseconds instead. A turn ends at the
gate, between two launches: nothing that runs is stopped, and no call of the driver is made, which would take longer
than a token. Slices stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from aliquot.arbiter.gaps import Gaps
from aliquot.arbiter.roster import Context

LOOK = 0.004  # seconds between two looks: who is idle shall not keep its turn
_LONGEST = 0.02  # seconds of a piece: longer ones switch seldom, and would outlast their turn
_WINDOW, _WAIT = 0.012, 0.015  # seconds: of one turn, and of those of all others together, where all are equal
_SHORTEST, _ROUND = 0.004, 0.1  # seconds: a turn that is worth its beginning, and all turns of a round at most
# Of the card, wanted by all together: less, and they are seldom in each other's way.
_CROWDED, _STILL_CROWDED = 1.2, 1.0


def period(quotas: Collection[float]) -> float:
    """Seconds in which each tenant has one turn. `quotas`: each one's part of them."""
    if len(quotas) < 2:
        return _WINDOW
    equal = len(quotas) * min(_WINDOW, _WAIT / (len(quotas) - 1))
    return max(equal, min(_ROUND, _SHORTEST / min(quotas)))


def take_turns(contexts: Sequence[Context], gaps: Mapping[str, Gaps], *, before: bool) -> bool:
    """Whether all that have work wait for short pieces of it, each in one process, and want more than the card. Slices
    are right for those whose queue never runs dry.
    `before`: whether they took turns so far."""
    wanted: dict[str, float] = {}
    for context in contexts:
        if not context.active:
            continue
        learned = gaps.get(context.tenant)
        piece = None if learned is None else learned.piece
        if learned is None or piece is None or piece > _LONGEST or not learned.waits_for_pieces:
            return False
        if not context.preemptible or context.tenant in wanted:
            return False
        wanted[context.tenant] = learned.wants
    return len(wanted) > 1 and sum(wanted.values()) >= (_STILL_CROWDED if before else _CROWDED)
