"""Whether Pods would exceed the cards of one node: the agent's last check before a container starts.

The scheduler books; this only catches what bypassed it, for example two schedulers that do not know each other. Plain
numbers, no board: the agent does not load numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aliquot.model.claim import Usage
from aliquot.model.device import CORE_MILLI, Card
from aliquot.model.grant import Share
from aliquot.model.refusal import Reason, Refusal


def crowded(cards: Mapping[str, Card], held: Iterable[Share], more: Iterable[Share]) -> Refusal | None:
    """How `more` would take a card beyond what it has beside what is `held`; None where there is room.

    Shares name their cards by UUID; one that names none of these is not judged here.
    """
    used: dict[str, Usage] = {}
    for share in held:
        used[share.uuid] = used.get(share.uuid, Usage()) + share.usage()
    for share in more:
        card = cards.get(share.uuid)
        if card is None:
            continue
        before = used.get(share.uuid, Usage())
        if before.exclusive or (share.exclusive and before.slices):
            return Refusal("", card.index, Reason.EXCLUSIVE, 0, before.slices, never=False)
        if before.memory_mib + share.memory_mib > card.memory_mib:
            room = max(0, card.memory_mib - before.memory_mib)
            return Refusal("", card.index, Reason.MEMORY, share.memory_mib, room, never=False)
        for wanted, taken, reason in (
            (share.core_milli, before.core_milli, Reason.CORE),
            (share.greedy_milli, before.greedy_milli, Reason.GREEDY),
        ):
            if wanted and taken + wanted > CORE_MILLI:  # what is not wanted is not short
                return Refusal("", card.index, reason, wanted, max(0, CORE_MILLI - taken), never=False)
        used[share.uuid] = before + share.usage()
    return None
