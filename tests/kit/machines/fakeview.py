"""A dashboard's view of nothing in particular, and any view as JSON, for tests."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from aliquot.model.claim import AppClass
from aliquot.model.status.dashboard import (
    SERIES,
    CardBytes,
    DashboardState,
    History,
    Node,
    Nodes,
    Pod,
    PodCounts,
    Point,
    SearchResult,
    SeriesValues,
    Tick,
    Totals,
    Waiting,
)
from aliquot.services.dashboard.contract import View

Json = dict[str, Any]

EMPTY = History(1, [], SeriesValues(**{name: [] for name in SERIES}))
NO_TOTALS = Totals(0, 0, 0, 0, 0, 0, None, 0, 0.0, None, None, PodCounts(0, 0, 0), 0, 0)


class JsonView:
    """A view's answers as a browser sees them."""

    def __init__(self, view: View) -> None:
        self._view = view

    def point(self, now: float) -> Json:
        return _json(self._view.point(now)) or {}

    def state(self, now: float) -> Json:
        return _json(self._view.state(now, EMPTY)) or {}

    def tick(self, now: float) -> Json | None:
        return _json(self._view.tick(now, None))

    def node(self, name: str, now: float) -> Json | None:
        return _json(asyncio.run(self._view.node(name, now)))

    def pod(self, key: str, now: float) -> Json | None:
        return _json(asyncio.run(self._view.pod(key, now)))

    def search(self, words: str, limit: int) -> Json:
        return _json(self._view.search(words, limit)) or {}


def _json(answer: msgspec.Struct | None) -> Json | None:
    return None if answer is None else msgspec.json.decode(msgspec.json.encode(answer))


def texts(messages: list[Json]) -> list[str]:
    """The messages in English."""
    return [message["text"] for message in messages]


class FakeView:
    """Counts how often it is asked; answers what a test wrote into it."""

    every = 1.0

    def __init__(self) -> None:
        self.asked: dict[str, int] = {"point": 0, "state": 0, "tick": 0}
        self.nodes_changed = False
        self.broken = False

    def point(self, now: float) -> Point:
        self.asked["point"] += 1
        if self.broken:
            raise RuntimeError("no view")
        return Point(round(now, 1), **dict.fromkeys(SERIES, 1.0))

    def state(self, now: float, history: History) -> DashboardState:
        self.asked["state"] += 1
        nodes, cards = Nodes(["x" * 5000], [], [], {}), CardBytes("", "", "")
        return DashboardState(
            "0", "machine", "fake", None, now, None, None, NO_TOTALS, [], nodes, cards, Waiting(0, []), None, history
        )

    def tick(self, now: float, point: Point | None) -> Tick | None:
        self.asked["tick"] += 1
        cards = CardBytes("", "", "")
        return None if self.nodes_changed else Tick(now, NO_TOTALS, [], cards, None, None, point, None)

    async def node(self, name: str, now: float) -> Node | None:
        return Node(name, [], "best-effort") if name == "n1" else None

    async def pod(self, key: str, now: float) -> Pod | None:
        if key != "ns/p":
            return None
        return Pod(key, "pod", AppClass.NORMAL, None, "Running")

    def search(self, words: str, limit: int) -> SearchResult:
        return SearchResult([words, str(limit)], [])

    def metrics(self) -> bytes:
        return b"aliquot_build_info 1\n"
