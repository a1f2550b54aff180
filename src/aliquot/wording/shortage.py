"""What a run or a Pod waits for on one machine, from what the queue tells of each card.

Imported by `aliquot run`: nothing heavy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def reason(standing: Mapping[str, Any]) -> str:
    """What is short. Of several cards the one that is nearest: what it lacks is what is waited for."""
    if standing.get("kept_for"):
        return f"room is kept for {standing['kept_for']}, which is first"
    refusals = [refusal for refusal in standing.get("refusals") or () if refusal.get("card") is not None]
    if not refusals:
        return "no room"
    cards: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for refusal in refusals:
        cards.setdefault((refusal.get("node") or "", refusal["card"]), []).append(refusal)
    _, lacking = min(cards.items(), key=lambda item: (len(item[1]), sum(_part(each) for each in item[1]), item[0]))
    others = len(cards) - 1
    words = f"{card_named(lacking[0])} {' and '.join(lacks(each) for each in lacking)}"
    return words + (f"; {others} other card{'s have' if others > 1 else ' has'} no room either" if others else "")


def card_named(refusal: Mapping[str, Any]) -> str:
    """The card, and its node where there are several."""
    node = refusal.get("node")
    return f"card {refusal['card']}{f' of {node}' if node else ''}"


def lacks(refusal: Mapping[str, Any]) -> str:
    """Of one card, after its name."""
    wanted, had = refusal.get("wanted") or 0, refusal.get("had") or 0
    match refusal["reason"]:
        case "memory":
            return f"has {size(had)} free ({size(wanted)} wanted)"
        case "core":
            return f"has {had / 10:g}% of compute free ({wanted / 10:g}% wanted)"
        case "core-greedy":
            return f"has {had / 10:g}% of offline compute free ({wanted / 10:g}% wanted)"
        case "exclusive":
            return "is in use" if had == 1 else f"is in use by {had}"
        case "slices":
            return "is shared by as many as may"
        case other:
            return f"is not fit ({other})"


def _part(refusal: Mapping[str, Any]) -> float:
    """How much of what is wanted is missing, for comparing cards."""
    wanted, had = refusal.get("wanted") or 0, refusal.get("had") or 0
    return 1.0 if refusal["reason"] == "exclusive" or not wanted else float((wanted - had) / wanted)


def size(mib: float) -> str:
    """GiB with one decimal; what is small in MiB."""
    return f"{mib:.0f} MiB" if mib < 1024 else f"{mib / 1024:.1f} GiB"
