"""The timelines of a machine's cards, by people's names for the tenants, as the dashboard reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aliquot.arbiter.timeline import STEP, Record, Timeline, Track, Window

_MOST_GONE = 256  # names kept before it is looked who is still drawn


class Timelines:
    """Of all cards. Tenants that are gone keep their names for as long as they are still drawn."""

    def __init__(self) -> None:
        self._cards: dict[str, Timeline] = {}
        self._names: dict[str, tuple[str, str]] = {}  # tenant's id: name and class

    def add(self, records: Mapping[str, Iterable[Record]], tenants: Iterable[Mapping[str, Any]]) -> None:
        """What was traced of each card, and who is there now."""
        here = {each["id"]: (each["name"], each["class"]) for each in tenants}
        self._names |= here
        for uuid, news in records.items():
            timeline = self._cards.setdefault(uuid, Timeline())
            timeline.add(news)
            timeline.keep(here.keys())
        if len(self._names) > len(here) + _MOST_GONE:
            drawn = here.keys() | {tenant for each in self._cards.values() for tenant in each.drawn()}
            self._names = {tenant: names for tenant, names in self._names.items() if tenant in drawn}

    def end(self, now: float) -> int:
        """The bucket before which all is settled."""
        return Timeline().window(None, now).end

    def told(self, uuids: Iterable[str], since: int | None, now: float, offset: float) -> dict[str, Any] | None:
        """Of these cards, from that bucket on; `offset` makes the time of day of our clock. None: nothing is traced."""
        windows = {uuid: self._cards[uuid].window(since, now) for uuid in uuids if uuid in self._cards}
        if not windows:
            return None
        some = next(iter(windows.values()))
        return {
            "until": round(some.end * STEP + offset, 3),
            "step": STEP,
            "buckets": some.end - some.first,
            "cards": {uuid: self._card(window, offset) for uuid, window in windows.items()},
        }

    def _card(self, window: Window, offset: float) -> dict[str, Any]:
        tracks: dict[tuple[str, str], Track] = {}
        for tenant, track in window.tracks.items():
            names = self._names.get(tenant, (tenant, "normal"))
            before = tracks.get(names)  # one of that name was there before it, and is still drawn
            tracks[names] = track if before is None else _both(before, track)
        return {
            "tenants": [
                {"key": key, "class": app_class, "shares": track.shares, "paused": track.paused}
                for (key, app_class), track in tracks.items()
            ],
            "preemptions": [
                {"at": round(mark.at + offset, 3), "by": self._name(mark.by), "of": self._name(loser)}
                for mark in window.marks
                for loser in mark.of
            ],
        }

    def _name(self, tenant: str | None) -> str | None:
        return None if tenant is None else self._names.get(tenant, (tenant, ""))[0]


def _both(one: Track, other: Track) -> Track:
    return Track(
        tuple(min(100, sum(pair)) for pair in zip(one.shares, other.shares, strict=True)),
        tuple(max(pair) for pair in zip(one.paused, other.paused, strict=True)),
    )
