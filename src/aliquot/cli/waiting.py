"""Why a run waits, in one line. Imported by `aliquot run`: nothing heavy."""

from __future__ import annotations

from typing import Any

from aliquot.cli.amounts import memory


def waiting(standing: dict[str, Any]) -> str:
    """Its place in the queue, and the reason."""
    return f"waiting: {_ordinal(standing['position'])} of {standing['of']}; {reason(standing)}"


def reason(standing: dict[str, Any]) -> str:
    """What is short. Of several cards the one that is nearest: what it lacks is what is waited for."""
    if standing.get("kept_for"):
        return f"room is kept for {standing['kept_for']}, which is first"
    refusals = [each for each in standing.get("refusals", ()) if each.get("card") is not None]
    if not refusals:
        return "no room"
    cards: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for each in refusals:
        cards.setdefault((each.get("node", ""), each["card"]), []).append(each)
    (node, card), lacks = min(
        cards.items(), key=lambda item: (len(item[1]), sum(_lacking(each) for each in item[1]), item[0])
    )
    others = len(cards) - 1
    words = f"card {card}{f' of {node}' if node else ''} {' and '.join(_short(each) for each in lacks)}"
    return words + (f"; {others} other card{'s have' if others > 1 else ' has'} no room either" if others else "")


def _short(refusal: dict[str, Any]) -> str:
    wanted, had = refusal.get("wanted") or 0, refusal.get("had") or 0
    match refusal["reason"]:
        case "memory":
            return f"has {memory(had)} free ({memory(wanted)} wanted)"
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


def _lacking(refusal: dict[str, Any]) -> float:
    """How much of what is wanted is missing, for comparing cards."""
    wanted, had = refusal.get("wanted") or 0, refusal.get("had") or 0
    return 1.0 if refusal["reason"] == "exclusive" or not wanted else float((wanted - had) / wanted)


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"
