"""Who looks at the dashboard, and what all of them are told: worked out and written once for all.

Nothing is worked out while nobody looks, but a point of the history each second. A listener that does not take what it
is told is dropped: it comes again by itself, and begins with the whole state.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from aliquot.services.dashboard.contract import Json, Picture
from aliquot.services.dashboard.history import History

_LOG = logging.getLogger("aliquot.dashboard")
_MOST_UNREAD = 8  # frames a listener may be behind
MOST_LISTENERS = 256
_POINT = 1.0  # seconds between two points of the history


class Listener:
    """One who looks. Frames come in the order they were made."""

    def __init__(self, first: bytes) -> None:
        self._frames = deque([first])
        self._come = asyncio.Event()
        self._come.set()
        self.dropped = False

    def give(self, frame: bytes) -> None:
        """One more, unless it does not keep up."""
        if len(self._frames) >= _MOST_UNREAD:
            self.drop()
            return
        self._frames.append(frame)
        self._come.set()

    def drop(self) -> None:
        """It is told nothing more."""
        self.dropped = True
        self._come.set()

    async def next(self) -> bytes | None:
        """All that came since, as one; None: it was too slow, or we end."""
        await self._come.wait()
        self._come.clear()
        if self.dropped:
            return None
        frames = b"".join(self._frames)
        self._frames.clear()
        return frames


class Hub:
    """See the head of the file. `clock` is the time of day."""

    def __init__(self, picture: Picture, clock: Callable[[], float]) -> None:
        self.picture = picture
        self.history = History()
        self.listeners: set[Listener] = set()
        self._clock = clock
        self._encoder = msgspec.json.Encoder()
        self._first: bytes | None = None  # what those are told first who come before the next beat
        self._point: Json | None = None  # not told yet
        self._next_point = 0.0
        self._failing = False

    async def run(self) -> None:
        """Until cancelled."""
        every = self.picture.every
        while True:
            self.beat(self._clock())
            await asyncio.sleep(every - self._clock() % every)

    def beat(self, now: float) -> None:
        """What is due. Whatever goes wrong in drawing a picture must not end what it is a picture of."""
        self._first = None
        try:
            if not now < self._next_point <= now + 2 * _POINT:  # due, or the clock was set back
                self._next_point = now - now % _POINT + _POINT
                values = self.picture.point(now)
                self.history.add(now, values)
                self._point = {"time": round(now, 1), **values}
            if self.listeners:
                frame = self._frame(now)
                for listener in [*self.listeners]:
                    listener.give(frame)
            self._failing = False
        except Exception:
            if not self._failing:  # said once
                _LOG.exception("the dashboard cannot be drawn")
            self._failing = True

    def state(self, now: float) -> bytes:
        """All of it, as JSON."""
        return self._encoder.encode({**self.picture.state(now), "history": self.history.told("10m")})

    def join(self) -> Listener:
        """Somebody looks: what it is told begins with all there is. That is written once for all who come before the
        next tick, which tells what came since."""
        if self._first is None:
            self._first = b"retry: 2000\n" + _event("state", self.state(self._clock()))
        listener = Listener(self._first)
        self.listeners.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        """It looks no more."""
        self.listeners.discard(listener)

    def close(self) -> None:
        """Nobody is told anything any more."""
        for listener in [*self.listeners]:
            listener.drop()

    def _frame(self, now: float) -> bytes:
        told = self.picture.tick(now)
        if told is None:
            return _event("state", self.state(now))
        point, self._point = self._point, None
        return _event("tick", self._encoder.encode({**told, "point": point}))


def _event(name: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


def encode(value: Any) -> bytes:
    """As JSON."""
    return msgspec.json.encode(value)
