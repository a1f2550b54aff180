"""What a dashboard shows, of one machine (machine/dashboard.py) or of a cluster (scheduler/dashboard/view.py).

The messages are in model/status/dashboard.py.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Protocol

from aliquot.model.status.dashboard import DashboardState, History, Node, Pod, Point, SearchResult, Tick

FULL = 200  # a card's byte for all of its memory or compute

# A card's byte for who is on it.
FREE, NORMAL, OFFLINE, ONLINE, MIXED, WHOLE, OUT = range(7)


class View(Protocol):
    """What HTTP and the hub ask. `now` is the time of day; a view may answer the same `now` from memory.

    Nothing here blocks or changes anything but `node`, which may ask the node.
    """

    every: float  # seconds between two ticks

    def point(self, now: float) -> Point:
        """One value per series of the history."""

    def state(self, now: float, history: History) -> DashboardState:
        """Everything."""

    def tick(self, now: float, point: Point | None) -> Tick | None:
        """What changed since the tick or state before. None: there are other nodes; only a new state describes them."""

    async def node(self, name: str, now: float) -> Node | None:
        """One node with its cards and their tenants; None: no such node."""

    async def pod(self, key: str, now: float) -> Pod | None:
        """One Pod or run: where it is and why; None: no such."""

    def search(self, words: str, limit: int) -> SearchResult:
        """Nodes and Pods whose names contain the words."""

    def metrics(self) -> bytes:
        """What a scrape answers."""


def packed(values: bytes) -> str:
    """A byte per card, as it goes over the wire."""
    return b64encode(values).decode()


def percent(part: float, whole: float, digits: int = 1) -> float:
    """Nothing of nothing is 0."""
    return round(100 * part / whole, digits) if whole else 0.0


def card_class(*, out: bool, whole: bool, online: bool, offline: bool, shared: bool) -> int:
    """The byte for who is on a card."""
    if out:
        return OUT
    if whole:
        return WHOLE
    if online:
        return MIXED if offline else ONLINE
    return OFFLINE if offline else NORMAL if shared else FREE
