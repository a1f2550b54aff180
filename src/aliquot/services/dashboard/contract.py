"""What a dashboard shows, whatever it is of: one machine (machinepicture.py) or a cluster (clusterpicture.py).

All of it is plain JSON. `now` is the time of day; asked twice with the same one, a picture may answer from memory.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Protocol

from aliquot.services.dashboard.history import Values

Json = dict[str, Any]

FULL = 200  # a card's byte for all of its memory or compute

# A card's byte for who is on it.
FREE, NORMAL, OFFLINE, ONLINE, MIXED, WHOLE, OUT = range(7)


class Picture(Protocol):
    """What the panel and the hub ask. Nothing here waits or changes anything but `node`, which may ask the node."""

    every: float  # seconds between two ticks

    def point(self, now: float) -> Values:
        """One value per series of the history."""

    def state(self, now: float) -> Json:
        """Everything but the history."""

    def tick(self, now: float) -> Json | None:
        """What changed since the tick or state before. None: the nodes are others, and only a new state tells it."""

    async def node(self, name: str, now: float) -> Json | None:
        """One node with its cards and who is on them; None: no such node."""

    def pod(self, key: str, now: float) -> Json | None:
        """One Pod or run: where it is and why; None: no such."""

    def search(self, words: str, limit: int) -> Json:
        """Nodes and Pods whose names contain that."""

    def metrics(self) -> bytes:
        """What a scrape answers."""


def packed(values: bytes) -> str:
    """A byte per card, as it goes over the wire."""
    return b64encode(values).decode()


def card_class(*, out: bool, whole: bool, online: bool, offline: bool, shared: bool) -> int:
    """The byte for who is on a card."""
    if out:
        return OUT
    if whole:
        return WHOLE
    if online:
        return MIXED if offline else ONLINE
    return OFFLINE if offline else NORMAL if shared else FREE
