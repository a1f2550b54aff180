"""Whether Pods would exceed the cards of one node: the agent's last check before a container starts.

The scheduler books; this only catches what bypassed it, for example two schedulers that do not know each other. Plain
numbers, no board: the agent does not load numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aliquot.model.claim import Usage
from aliquot.model.device import CONTEXT_MIB, CORE_MILLI, Card, reserve_mib
from aliquot.model.grant import Share
from aliquot.model.refusal import Reason, Refusal


def crowded(
    cards: Mapping[str, Card],
    held: Iterable[Share],
    more: Iterable[Share],
    *,
    parkable: bool = False,
    parked: Iterable[Share] = (),
) -> Refusal | None:
    """How `more` would take a card beyond what it has beside what is `held`; None where there is room. What is held by
    Pods whose memory may be parked is in `parked` instead; `parkable`: so may that of `more` (rooms.py has the rule).

    Shares name their cards by UUID; one that names none of these is not judged here.
    """
    used: dict[str, Usage] = {}
    for share in held:
        used[share.uuid] = used.get(share.uuid, Usage()) + share.usage()
    fixed = {uuid: usage.memory_mib for uuid, usage in used.items()}  # what stays on the card
    largest = dict[str, int]()
    for share in parked:
        used[share.uuid] = used.get(share.uuid, Usage()) + share.usage()
        if share.exclusive:  # not shared
            fixed[share.uuid] = fixed.get(share.uuid, 0) + share.memory_mib
        else:
            fixed[share.uuid] = fixed.get(share.uuid, 0) + min(share.memory_mib, CONTEXT_MIB)
            largest[share.uuid] = max(largest.get(share.uuid, 0), share.memory_mib)
    for share in more:
        card = cards.get(share.uuid)
        if card is None:
            continue
        before = used.get(share.uuid, Usage())
        if before.exclusive or (share.exclusive and before.slices):
            return Refusal("", card.index, Reason.EXCLUSIVE, 0, before.slices, never=False)
        beside_fixed = card.memory_mib - reserve_mib(card.memory_mib) - fixed.get(share.uuid, 0)
        widest = largest.get(share.uuid, 0)
        beyond = beside_fixed if parkable else beside_fixed - widest + min(widest, CONTEXT_MIB)
        most = min(card.bookable_mib - before.memory_mib, beyond)
        if parkable and widest > beside_fixed:
            most = 0
        room = max(card.memory_mib - before.memory_mib, most)  # below 0 where more is held than there is
        if share.memory_mib > room:
            return Refusal("", card.index, Reason.MEMORY, share.memory_mib, max(0, room), never=False)
        for wanted, taken, reason in (
            (share.core_milli, before.core_milli, Reason.CORE),
            (share.greedy_milli, before.greedy_milli, Reason.GREEDY),
        ):
            if wanted and taken + wanted > CORE_MILLI:  # what is not wanted is not short
                return Refusal("", card.index, reason, wanted, max(0, CORE_MILLI - taken), never=False)
        used[share.uuid] = before + share.usage()
        if not parkable:
            fixed[share.uuid] = fixed.get(share.uuid, 0) + share.memory_mib
    return None
