"""A picture of nothing in particular, for the tests of what shows pictures."""

from __future__ import annotations

from aliquot.services.dashboard.contract import Json
from aliquot.services.dashboard.history import SERIES, Values


class PaperPicture:
    """Counts how often it is asked; answers what a test wrote into it."""

    every = 1.0

    def __init__(self) -> None:
        self.asked: dict[str, int] = {"point": 0, "state": 0, "tick": 0}
        self.nodes_changed = False
        self.broken = False

    def point(self, now: float) -> Values:
        self.asked["point"] += 1
        if self.broken:
            raise RuntimeError("no picture")
        return dict.fromkeys(SERIES, 1.0)

    def state(self, now: float) -> Json:
        self.asked["state"] += 1
        return {"kind": "paper", "now": now, "padding": "x" * 5000}

    def tick(self, now: float) -> Json | None:
        self.asked["tick"] += 1
        return None if self.nodes_changed else {"now": now}

    async def node(self, name: str, now: float) -> Json | None:
        return {"name": name} if name == "n1" else None

    def pod(self, key: str, now: float) -> Json | None:
        return {"key": key} if key == "ns/p" else None

    def search(self, words: str, limit: int) -> Json:
        return {"words": words, "limit": limit}

    def metrics(self) -> bytes:
        return b"aliquot_build_info 1\n"
