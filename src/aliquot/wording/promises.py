"""What a Pod or a run was promised of its cards: its class and the node's policy say what its quota means."""

from __future__ import annotations

from collections.abc import Sequence

from aliquot.model.claim import AppClass
from aliquot.model.node import Isolation
from aliquot.model.status.machine import RequestStatus
from aliquot.wording.amounts import memory
from aliquot.wording.requests import on_cards


def promised(amounts: Sequence[RequestStatus], cards: int, app_class: AppClass, isolation: Isolation) -> str:
    """A sentence; `amounts` are the different ones of these cards."""
    if all(amount.whole for amount in amounts):
        return f"Promised {on_cards([], cards)}."
    sizes = list(dict.fromkeys(memory(amount.memory_mib) for amount in amounts))
    where = "of the card" if cards == 1 else f"of {'each of ' * (len(sizes) == 1)}{cards} cards"
    return f"Promised {' + '.join(sizes)} {where}, and {_compute(amounts[0].core, app_class, isolation)}."


def _compute(core: float | None, app_class: AppClass, isolation: Isolation) -> str:
    if app_class is AppClass.ONLINE:
        return "all of the compute while it has work, before offline work"
    left = " that online work leaves" if app_class is AppClass.OFFLINE else ""
    if isolation is Isolation.BEST_EFFORT:
        booked = "" if core is None else f"; its {core:g}% is only booked"
        return f"an equal part of the compute{left} (best-effort{booked})"
    if core is None:
        return f"a part of the compute that quotas leave ({isolation.value})"
    left = " that online work and other quotas leave" if left else ""
    most = "at least " if isolation is Isolation.BURST_SHARE else ""
    no_more = ", and no more" if isolation is Isolation.FIXED_SHARE else ""
    return f"{most}{core:g}% of the compute{left}{no_more} ({isolation.value})"
