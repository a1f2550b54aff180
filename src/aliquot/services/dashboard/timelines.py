"""The timelines of a machine's cards, with tenants by name, as the dashboard reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aliquot.arbiter import timeline
from aliquot.arbiter.timeline import STEP, Record, Track, Window
from aliquot.model.claim import AppClass
from aliquot.model.status.dashboard import CardTimeline, Lane, Preemption, Timeline
from aliquot.model.status.machine import TenantStatus

_MOST_GONE = 256  # names of ended tenants kept before those that are no longer drawn are dropped
_AHEAD = STEP / 2  # seconds by which the time of day may move away from our clock before we follow it
_BEHIND = 1.0


class Timelines:
    """Of all cards. Tenants that ended keep their names for as long as they are drawn."""

    def __init__(self) -> None:
        self._cards: dict[str, timeline.Timeline] = {}
        self._names: dict[str, tuple[str, AppClass]] = {}  # tenant's id: name and class
        self._offset: float | None = None  # from our clock to the time of day

    def add(self, records: Mapping[str, Iterable[Record]], tenants: Iterable[TenantStatus]) -> None:
        """What was traced of each card, and the tenants now."""
        here = {tenant.id: (tenant.name, tenant.app_class) for tenant in tenants}
        self._names |= here
        for uuid, news in records.items():
            card = self._cards.setdefault(uuid, timeline.Timeline())
            card.add(news)
            card.keep(here.keys())
        if len(self._names) > len(here) + _MOST_GONE:
            drawn = here.keys() | {tenant for card in self._cards.values() for tenant in card.drawn()}
            self._names = {tenant: names for tenant, names in self._names.items() if tenant in drawn}

    def end(self, now: float) -> int:
        """The bucket before which all is settled."""
        return timeline.Timeline().window(None, now).end

    def since(self, uuids: Iterable[str], first: int | None, now: float, today: float) -> Timeline | None:
        """Of these cards, from that bucket on; `today` is the time of day when our clock shows `now`. None: nothing is
        traced."""
        windows = {uuid: self._cards[uuid].window(first, now) for uuid in uuids if uuid in self._cards}
        if not windows:
            return None
        offset = self._steady(today - now)
        window = next(iter(windows.values()))
        return Timeline(
            until=round(window.end * STEP + offset, 3),
            step=STEP,
            buckets=window.end - window.first,
            cards={uuid: self._card(window, offset) for uuid, window in windows.items()},
        )

    def _steady(self, offset: float) -> float:
        """One offset for as long as it is about right, so that a moment keeps its time in every answer. The time of day
        is read a little before our clock, under load not so little: only an offset that is ahead is surely better."""
        if self._offset is None or not -_BEHIND < offset - self._offset <= _AHEAD:
            self._offset = offset
        return self._offset

    def _card(self, window: Window, offset: float) -> CardTimeline:
        tracks: dict[tuple[str, AppClass], Track] = {}
        for tenant, track in window.tracks.items():
            names = self._names.get(tenant, (tenant, AppClass.NORMAL))
            before = tracks.get(names)  # an earlier tenant of that name is still drawn
            tracks[names] = track if before is None else _both(before, track)
        return CardTimeline(
            tenants=[
                Lane(key=key, app_class=app_class, shares=track.shares, paused=track.paused)
                for (key, app_class), track in tracks.items()
            ],
            preemptions=[
                Preemption(
                    at=round(mark.at + offset, 3),
                    by=None if mark.by is None else self._name(mark.by),
                    of=self._name(loser),
                )
                for mark in window.marks
                for loser in mark.of
            ],
        )

    def _name(self, tenant: str) -> str:
        return self._names[tenant][0] if tenant in self._names else tenant


def _both(one: Track, other: Track) -> Track:
    return Track(
        tuple(min(100, sum(pair)) for pair in zip(one.shares, other.shares, strict=True)),
        tuple(max(pair) for pair in zip(one.paused, other.paused, strict=True)),
    )
