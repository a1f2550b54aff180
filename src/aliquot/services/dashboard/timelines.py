"""The timelines of a machine's cards, by people's names for the tenants, as the dashboard reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aliquot.arbiter.timeline import STEP, Record, Timeline, Track, Window

_MOST_GONE = 256  # names kept before it is looked who is still drawn
_AHEAD = STEP / 2  # seconds by which the time of day may move away from our clock before we follow it
_BEHIND = 1.0


class Timelines:
    """Of all cards. Tenants that are gone keep their names for as long as they are still drawn."""

    def __init__(self) -> None:
        self._cards: dict[str, Timeline] = {}
        self._names: dict[str, tuple[str, str]] = {}  # tenant's id: name and class
        self._offset: float | None = None  # from our clock to the time of day

    def add(self, records: Mapping[str, Iterable[Record]], tenants: Iterable[Mapping[str, Any]]) -> None:
        """What was traced of each card, and who is there now."""
        here = {tenant["id"]: (tenant["name"], tenant["class"]) for tenant in tenants}
        self._names |= here
        for uuid, news in records.items():
            timeline = self._cards.setdefault(uuid, Timeline())
            timeline.add(news)
            timeline.keep(here.keys())
        if len(self._names) > len(here) + _MOST_GONE:
            drawn = here.keys() | {tenant for card in self._cards.values() for tenant in card.drawn()}
            self._names = {tenant: names for tenant, names in self._names.items() if tenant in drawn}

    def end(self, now: float) -> int:
        """The bucket before which all is settled."""
        return Timeline().window(None, now).end

    def told(self, uuids: Iterable[str], since: int | None, now: float, today: float) -> dict[str, Any] | None:
        """Of these cards, from that bucket on; `today` is the time of day when our clock shows `now`. None: nothing is
        traced."""
        windows = {uuid: self._cards[uuid].window(since, now) for uuid in uuids if uuid in self._cards}
        if not windows:
            return None
        offset = self._steady(today - now)
        some = next(iter(windows.values()))
        return {
            "until": round(some.end * STEP + offset, 3),
            "step": STEP,
            "buckets": some.end - some.first,
            "cards": {uuid: self._card(window, offset) for uuid, window in windows.items()},
        }

    def _steady(self, offset: float) -> float:
        """One offset for as long as it is about right, so that what is told twice has the same times. The time of day
        is read a little before our clock, under load less little: only what is ahead is surely a better one."""
        if self._offset is None or not -_BEHIND < offset - self._offset <= _AHEAD:
            self._offset = offset
        return self._offset

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
