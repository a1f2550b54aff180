"""What a run waits for on one machine, from what the queue reports about each card.

Imported by `aliquot run`, which has read JSON and no structs: nothing heavy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from aliquot.model.reason import Reason
from aliquot.wording import reasons


class Lack(Protocol):
    """What one card lacks: a RefusalStatus of the model, or a CardLack. `node` is false where there is only one."""

    @property
    def card(self) -> int | None: ...
    @property
    def reason(self) -> str: ...
    @property
    def wanted(self) -> int | str | None: ...
    @property
    def had(self) -> int | str | None: ...
    @property
    def node(self) -> object: ...


class Place(Protocol):
    """A place in the queue: a QueuePosition of the model, or a QueuePlace."""

    @property
    def position(self) -> int: ...
    @property
    def of(self) -> int: ...
    @property
    def kept_for(self) -> str | None: ...
    @property
    def refusals(self) -> Sequence[Lack]: ...


class CardLack(NamedTuple):
    """As read from JSON. The reason may be one of a later release."""

    card: int | None
    reason: str
    wanted: int | str | None = None
    had: int | str | None = None
    node: str | None = None


class QueuePlace(NamedTuple):
    """A place in the queue, as read from JSON."""

    position: int
    of: int
    kept_for: str | None
    refusals: list[CardLack]


AnyLack = TypeVar("AnyLack", bound=Lack)


def parse_place(position: Mapping[str, Any]) -> QueuePlace:
    """What the daemon sent about a place in the queue."""
    return QueuePlace(
        position.get("position", 0),
        position.get("of", 0),
        position.get("kept_for"),
        [
            CardLack(lack.get("card"), lack["reason"], lack.get("wanted"), lack.get("had"), lack.get("node"))
            for lack in position.get("refusals") or ()
        ],
    )


def waiting(place: Place) -> str:
    """The place in the queue, and the reason."""
    return f"waiting: {_ordinal(place.position)} of {place.of}; {reason(place)}"


def reason(place: Place) -> str:
    """What is short on the nearest card: that is what the run waits for."""
    if place.kept_for:
        return f"room is reserved for {place.kept_for}, which is first"
    refusals, others = nearest(place.refusals)
    if not refusals:
        return "no room"
    words = f"{card_named(refusals[0])} {', and '.join(lacks(refusal) for refusal in refusals)}"
    return words + (f"; {others} other card{'s have' if others > 1 else ' has'} no room either" if others else "")


def nearest(refusals: Sequence[AnyLack]) -> tuple[list[AnyLack], int]:
    """What the card lacks that lacks least, and how many other cards have no room either."""
    cards: dict[tuple[str, int], list[AnyLack]] = {}
    for refusal in refusals:
        if refusal.card is not None:
            cards.setdefault((str(refusal.node or ""), refusal.card), []).append(refusal)
    if not cards:
        return [], 0
    _, found = min(cards.items(), key=lambda item: (len(item[1]), sum(map(_missing, item[1])), item[0]))
    return found, len(cards) - 1


def card_named(refusal: Lack) -> str:
    """The card, and its node where there are several."""
    return f"card {refusal.card}{f' of {refusal.node}' if refusal.node else ''}"


def lacks(refusal: Lack) -> str:
    """What the card lacks, after its name."""
    why = Reason(refusal.reason)
    if not why.known:  # a daemon of a later release
        return f"does not fit ({why})"
    return reasons.card(why, refusal.wanted, refusal.had)


def _missing(refusal: Lack) -> float:
    """Which part of what is wanted is missing, for comparing cards; all of what is no amount, as a model is."""
    wanted, had = refusal.wanted, refusal.had or 0
    if refusal.reason == Reason.EXCLUSIVE or not isinstance(wanted, int) or not wanted or not isinstance(had, int):
        return 1.0
    return (wanted - had) / wanted


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"
