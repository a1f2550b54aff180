"""What Pods hold of one node's cards, against what the cards have: the agent's last look before a container starts.

The scheduler books; this only catches what went past it, two schedulers that know nothing of each other say. Plain
numbers, no board: an agent does without numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aliquot.model.claim import Usage
from aliquot.model.device import CORE_MILLI, Card
from aliquot.model.grant import Share


def crowded(cards: Mapping[str, Card], held: Iterable[Share], more: Iterable[Share]) -> str | None:
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
            return f"card {card.index} is not free for it: {'a Pod has it whole' if before.exclusive else 'in use'}"
        if before.memory_mib + share.memory_mib > card.memory_mib:
            return (
                f"card {card.index} has {card.memory_mib} MiB, of which {before.memory_mib} are taken: "
                f"{share.memory_mib} more do not fit"
            )
        for wanted, taken, what in (
            (share.core_milli, before.core_milli, "compute"),
            (share.greedy_milli, before.greedy_milli, "offline compute"),
        ):
            if wanted and taken + wanted > CORE_MILLI:  # what is not wanted is not short
                return (
                    f"card {card.index} has {taken / 10:g}% of its {what} given away already: "
                    f"{wanted / 10:g}% more do not fit"
                )
        used[share.uuid] = before + share.usage()
    return None
