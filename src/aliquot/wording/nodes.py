"""What had to be assumed about a node, and why Kubernetes sends no Pods there."""

from __future__ import annotations

from aliquot.dialects.gpushare.names import ACK_SHARED, ACK_WHOLE
from aliquot.model.device import LEAST_FACTOR, MOST_FACTOR
from aliquot.model.node import Closed, NodeNote, NoteKind
from aliquot.wording.amounts import count, memory, unlike

_CLOSED = {Closed.CORDONED: "cordoned", Closed.NOT_READY: "not ready", Closed.AGENT_AWAY: "agent away"}
_NOTES = {
    NoteKind.PART_OF_A_CARD: "{source} is {number}, not a multiple of 100: counted as {cards}",
    NoteKind.NO_CARD_COUNT: "{source} does not say how many cards there are: one is assumed",
    NoteKind.CARD_COUNTS_DIFFER: "{source} says {number} cards, {other} says {other_number}: the first counts",
    NoteKind.NO_MEMORY: "the memory of the cards is not known: {size} each is assumed",
    NoteKind.UNEVEN_MEMORY: "{source} is {number}, which {cards} do not share evenly: rounded down for each",
    NoteKind.MEMORIES_DIFFER: "{source} says {one} a card, {other} says {another}: the first counts",
    NoteKind.UNKNOWN_MODE: (
        "label {source}: {other} is not known and counts as no label: known are "
        f"{', '.join(ACK_SHARED)} (shared), {' and '.join(ACK_WHOLE)} (not shared)"
    ),
    NoteKind.BAD_FACTOR: (
        f"{{source}}: {{other}} is not allowed: {LEAST_FACTOR} to {MOST_FACTOR}, for example "
        f'"1.5"; the node counts as {LEAST_FACTOR}'
    ),
    NoteKind.NO_POOL: (
        "{source} is {other}, but its agent reports no host pool (--host-pool): nothing is booked beyond its cards"
    ),
    NoteKind.OTHER_UNIT: "its agent counts {source} in MiB, and this cluster in GiB: it takes no such Pods",
}


def note(about: NodeNote) -> str:
    """The sentence."""
    one, another = unlike(about.number, about.other_number)
    return _NOTES[about.kind].format(
        source=about.source,
        number=about.number,
        other=about.other,
        other_number=about.other_number,
        size=memory(about.number),
        cards=count(about.other_number, "card"),
        one=one,
        another=another,
    )


def closed(why: Closed) -> str:
    """Why the node is closed, in a word or two."""
    return _CLOSED[why]
