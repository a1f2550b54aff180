"""Who watches the dashboard, and what all of them are sent: computed and encoded once for all.

While no browser watches, only a point of the history is computed each second. A listener that does not keep up is
dropped: the browser reconnects by itself, and begins with the whole state.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import msgspec

from aliquot.adapters.host.encoding import encode_json
from aliquot.model.status.dashboard import Point
from aliquot.services.dashboard.contract import View
from aliquot.services.dashboard.history import Recorder

_LOG = logging.getLogger("aliquot.dashboard")
_MOST_UNREAD = 8  # frames a listener may be behind
MOST_LISTENERS = 256
_POINT = 1.0  # seconds between two points of the history


class Listener:
    """One browser. Frames come in the order they were made."""

    def __init__(self, first: bytes) -> None:
        self._frames = deque([first])
        self._ready = asyncio.Event()
        self._ready.set()
        self.dropped = False

    def send(self, frame: bytes) -> None:
        """One more frame, unless it does not keep up."""
        if len(self._frames) >= _MOST_UNREAD:
            self.drop()
            return
        self._frames.append(frame)
        self._ready.set()

    def drop(self) -> None:
        """Nothing more is sent to it."""
        self.dropped = True
        self._ready.set()

    async def next(self) -> bytes | None:
        """All frames since the last call, as one; None: it was too slow, or the server ends."""
        await self._ready.wait()
        self._ready.clear()
        if self.dropped:
            return None
        frames = b"".join(self._frames)
        self._frames.clear()
        return frames


class Hub:
    """See the head of the file. `clock` is the time of day."""

    def __init__(self, view: View, clock: Callable[[], float]) -> None:
        self.view = view
        self.recorder = Recorder()
        self.listeners: set[Listener] = set()
        self._clock = clock
        self._first: bytes | None = None  # the first frame of listeners that come before the next beat
        self._point: Point | None = None  # not sent yet
        self._next_point = 0.0
        self._failing = False

    async def run(self) -> None:
        """Until cancelled."""
        every = self.view.every
        while True:
            self.beat(self._clock())
            await asyncio.sleep(every - self._clock() % every)

    def beat(self, now: float) -> None:
        """What is due. An error in the dashboard must not end the program that it shows."""
        self._first = None
        try:
            if not now < self._next_point <= now + 2 * _POINT:  # due, or the clock was set back
                self._next_point = now - now % _POINT + _POINT
                self._point = self.view.point(now)
                self.recorder.add(self._point)
            if self.listeners:
                frame = self._frame(now)
                for listener in [*self.listeners]:
                    listener.send(frame)
            self._failing = False
        except Exception:
            if not self._failing:  # logged once
                _LOG.exception("dashboard_failed")
            self._failing = True

    def state(self, now: float) -> bytes:
        """All of it, as JSON."""
        return encode_json(self.view.state(now, self.recorder.history("10m")))

    def join(self) -> Listener:
        """A listener begins with the whole state. That is encoded once for all that come before the next tick, which
        has what changed since."""
        if self._first is None:
            self._first = b"retry: 2000\n" + _event("state", self.state(self._clock()))
        listener = Listener(self._first)
        self.listeners.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        """It watches no more."""
        self.listeners.discard(listener)

    def close(self) -> None:
        """Drop every listener."""
        for listener in [*self.listeners]:
            listener.drop()

    def _frame(self, now: float) -> bytes:
        tick = self.view.tick(now, self._point)
        if tick is None:
            return _event("state", self.state(now))
        self._point = None
        return _event("tick", encode_json(tick))


def _event(name: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


def encode(answer: msgspec.Struct) -> bytes:
    """As JSON."""
    return encode_json(answer)
