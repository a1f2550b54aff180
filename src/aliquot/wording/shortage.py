"""What a run or a Pod waits for on one machine, from what the queue reports about each card.

Imported by `aliquot run`: nothing heavy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aliquot.model.reason import Reason
from aliquot.wording import reasons


def waiting(standing: Mapping[str, Any]) -> str:
    """The place in the queue, and the reason."""
    return f"waiting: {_ordinal(standing['position'])} of {standing['of']}; {reason(standing)}"


def reason(standing: Mapping[str, Any]) -> str:
    """What is short on the nearest card: that is what the run waits for."""
    if standing.get("kept_for"):
        return f"room is reserved for {standing['kept_for']}, which is first"
    refusals, others = nearest(standing)
    if not refusals:
        return "no room"
    words = f"{card_named(refusals[0])} {', and '.join(lacks(refusal) for refusal in refusals)}"
    return words + (f"; {others} other card{'s have' if others > 1 else ' has'} no room either" if others else "")


def nearest(standing: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], int]:
    """What the card lacks that lacks least, and how many other cards have no room either."""
    cards: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for refusal in standing.get("refusals") or ():
        if refusal.get("card") is not None:
            cards.setdefault((refusal.get("node") or "", refusal["card"]), []).append(refusal)
    if not cards:
        return [], 0
    _, refusals = min(cards.items(), key=lambda item: (len(item[1]), sum(map(_missing, item[1])), item[0]))
    return refusals, len(cards) - 1


def card_named(refusal: Mapping[str, Any]) -> str:
    """The card, and its node where there are several."""
    node = refusal.get("node")
    return f"card {refusal['card']}{f' of {node}' if node else ''}"


def lacks(refusal: Mapping[str, Any]) -> str:
    """What the card lacks, after its name."""
    try:
        return reasons.card(Reason(refusal["reason"]), refusal.get("wanted"), refusal.get("had"))
    except ValueError:  # a daemon of a later release
        return f"does not fit ({refusal['reason']})"


def _missing(refusal: Mapping[str, Any]) -> float:
    """Which part of what is wanted is missing, for comparing cards."""
    wanted, had = refusal.get("wanted") or 0, refusal.get("had") or 0
    return 1.0 if refusal["reason"] == Reason.EXCLUSIVE or not wanted else float((wanted - had) / wanted)


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"
