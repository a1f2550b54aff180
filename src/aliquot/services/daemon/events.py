"""Events on Pods and Nodes, so that `kubectl describe` says why. Emitting never waits and never fails.

    emit    queues what happened, at once; nothing is sent
    run     sends: what is new first, no more than a few per second in all

One object and reason are one topic. The same message again is one Event whose count grows, written ever more seldom
(30 s to 10 min). Another message is a new Event, at most every 15 s, and only the latest message is kept meanwhile. So
ten thousand waiting Pods cost as many writes as the pace allows, and each Event is still true.

Where the role allows only core/v1 events (the vendors' manifests do), the first 403 makes us write core/v1.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.dialects.wire.events import Form, ObjectRef, Occurrence, events_path, render_event, render_repeat
from aliquot.model.numbers.backoff import backoff
from aliquot.services.daemon.pace import Pace

__all__ = ["EventSink", "Events", "ObjectRef", "microtime", "pod_ref", "timestamp"]

log = logging.getLogger(__name__)

_MOST_TOPICS = 5000
_NEW_MESSAGE_AFTER = 15.0
_FIRST_REPEAT, _LAST_REPEAT = 30.0, 600.0
_FIRST_RETRY, _LAST_RETRY, _MOST_RETRIES = 2.0, 60.0, 6
_FORBIDDEN_PAUSE = 600.0  # after 403 from both APIs: a role may be fixed while we run
_LONGEST_SLEEP = 60.0
_FORGET_AFTER = 3600.0  # after that the API server has deleted the Event, and we drop the topic


class EventSink(Protocol):
    """Takes events."""

    def emit(self, about: ObjectRef, reason: str, message: str, *, type: str = "Warning", action: str = "") -> None: ...


class Named(Protocol):
    """What names a Pod."""

    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def uid(self) -> str: ...


def pod_ref(pod: Named) -> ObjectRef:
    """The Pod as an Event's subject."""
    return ObjectRef("Pod", pod.name, pod.namespace, pod.uid)


def microtime(now: float) -> str:
    """Seconds since 1970 as RFC 3339 with microseconds."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def timestamp(now: float) -> str:
    """The same in whole seconds, as conditions have it."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(slots=True)
class _Topic:
    """The events of one object and reason."""

    current: Occurrence  # as it is, or will be, in the API
    count: int = 1  # times seen
    written: int = 0  # the count that the API server knows; 0: it has no such event
    newer: Occurrence | None = None  # with another message, waits its turn
    wrote_at: float | None = None
    repeats: int = 0
    failures: int = 0
    planned: float | None = None  # when the heap will bring it up

    def due(self) -> float | None:
        """When it should be written next; None where there is nothing new."""
        if self.written == 0 and self.wrote_at is None:
            return 0.0
        assert self.wrote_at is not None
        if self.failures:
            return self.wrote_at + backoff(self.failures, first=_FIRST_RETRY, longest=_LAST_RETRY)
        if self.newer is not None or self.written == 0:
            return self.wrote_at + _NEW_MESSAGE_AFTER
        if self.count > self.written:
            return self.wrote_at + backoff(self.repeats + 1, first=_FIRST_REPEAT, longest=_LAST_REPEAT)
        return None


_Key = tuple[ObjectRef, str, str]


class Events:
    """See the head of the file. `clock` returns seconds since 1970."""

    def __init__(
        self,
        kube: Kube,
        component: str,
        clock: Callable[[], float],
        *,
        instance: str = "",
        per_second: float = 10.0,
        burst: int = 50,
    ) -> None:
        self.written = 0
        self.dropped = 0  # never sent: too many topics, or refused by the API server
        self._kube, self._component, self._clock = kube, component, clock
        self._instance = instance or component
        self._pace = Pace(per_second=per_second, burst=burst)
        self._topics: OrderedDict[_Key, _Topic] = OrderedDict()  # the longest untouched first
        self._heap: list[tuple[float, int, _Key]] = []
        self._order = 0
        self._form = Form.EVENTS
        self._forbidden_until = 0.0
        self._warned: set[str] = set()
        self._wake = asyncio.Event()

    def emit(self, about: ObjectRef, reason: str, message: str, *, type: str = "Warning", action: str = "") -> None:
        """Queue that this happened to the object. Returns at once."""
        key = (about, reason, type)
        now = self._clock()
        topic = self._topics.get(key)
        if topic is not None:
            self._topics.move_to_end(key)
            if topic.current.note == message:
                topic.count += 1
                topic.newer = None
            elif topic.newer is None or topic.newer.note != message:
                topic.newer = self._occurrence(about, reason, message, type, action, now)
                if topic.wrote_at is None:  # never sent: the newer one takes its place
                    topic.current, topic.count, topic.newer = topic.newer, 1, None
        else:
            self._forget(now)
            if len(self._topics) >= _MOST_TOPICS:
                _, lost = self._topics.popitem(last=False)
                self.dropped += lost.written == 0
            topic = self._topics[key] = _Topic(self._occurrence(about, reason, message, type, action, now))
        self._schedule(key, topic)

    def _forget(self, now: float) -> None:
        """Drop topics of long ago that are fully written: most are of Pods that are gone."""
        while self._topics:
            key, topic = next(iter(self._topics.items()))
            if topic.due() is not None or topic.wrote_at is None or now - topic.wrote_at < _FORGET_AFTER:
                return
            del self._topics[key]

    def _occurrence(self, about: ObjectRef, reason: str, note: str, type: str, action: str, now: float) -> Occurrence:
        return Occurrence(about, reason, note, type, action or reason, self._component, self._instance, microtime(now))

    def _schedule(self, key: _Key, topic: _Topic) -> None:
        due = topic.due()
        if due is None or (topic.planned is not None and topic.planned <= due):
            return
        topic.planned = due
        self._order += 1
        heapq.heappush(self._heap, (due, self._order, key))
        self._wake.set()
        if len(self._heap) > 2 * _MOST_TOPICS:  # it still has dropped topics
            known = self._topics
            self._heap = [entry for entry in self._heap if entry[2] in known and known[entry[2]].planned == entry[0]]
            heapq.heapify(self._heap)

    async def run(self) -> None:
        """Send, until cancelled."""
        while True:
            self._wake.clear()
            pause = await self.step()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):  # not wait_for: it may swallow the cancellation that ends us
                    await self._wake.wait()
                    # Something was emitted meanwhile: it goes as soon as the pace allows.
                    await asyncio.sleep(self._pace.wait(self._clock()))

    async def step(self) -> float:
        """Send what is due and may go; the seconds until there may be more to do."""
        while self._heap:
            now = self._clock()
            due, _, key = self._heap[0]
            if due > now:
                return min(due - now, _LONGEST_SLEEP)
            topic = self._topics.get(key)
            if topic is not None and topic.planned == due:
                if now < self._forbidden_until:
                    return min(self._forbidden_until - now, _LONGEST_SLEEP)
                if not self._pace.take(now):
                    return self._pace.wait(now)
            heapq.heappop(self._heap)
            if topic is None or topic.planned != due:  # it was dropped, or came up sooner
                continue
            topic.planned = None
            wanted = topic.due()
            if wanted is not None and wanted <= now:
                await self._write(topic, now)
            self._schedule(key, topic)
        return _LONGEST_SLEEP

    async def _write(self, topic: _Topic, now: float) -> None:
        if topic.newer is not None and not topic.failures:
            topic.current, topic.count, topic.written = topic.newer, 1, 0
            topic.newer, topic.repeats = None, 0
        count, topic.wrote_at = topic.count, now
        try:
            sent = await self._send(topic, count, microtime(now))
        except (ApiError, Unreachable) as error:
            topic.failures += 1
            lasting = isinstance(error, ApiError) and error.status not in (429, 500, 502, 503, 504)
            if lasting or topic.failures > _MOST_RETRIES:
                self._give_up(topic, error)
            return
        topic.failures = 0
        if sent:
            self.written += 1
            topic.repeats += topic.written > 0
            topic.written = count

    async def _send(self, topic: _Topic, count: int, at: str) -> bool:
        """Write it through the API that allows it; False where neither does."""
        for form in (self._form, Form.CORE if self._form is Form.EVENTS else Form.EVENTS):
            try:
                await self._send_as(form, topic, count, at)
            except ApiError as error:
                if not _not_allowed(error):
                    raise
                continue
            self._form = form
            return True
        self._forbidden_until = self._clock() + _FORBIDDEN_PAUSE
        missing = "create and patch on events, in events.k8s.io or the core group"
        self._warn_once("events_forbidden", missing_rights=missing)
        topic.wrote_at = None if topic.written == 0 else topic.wrote_at  # still to be written
        return False

    async def _send_as(self, form: Form, topic: _Topic, count: int, at: str) -> None:
        if topic.written and form is self._form:
            try:
                path = events_path(form, topic.current, one=True)
                await self._kube.patch(path, render_repeat(form, count, at), form="merge")
                return
            except ApiError as error:
                if error.status != 404:
                    raise
                # It expired: events live an hour. Write a new one, under another name.
                topic.current, topic.count = replace(topic.current, at=at), 1
        try:
            await self._kube.create(events_path(form, topic.current), render_event(form, topic.current))
        except ApiError as error:
            if error.status != 409:  # it exists: an answer was lost
                raise

    def _give_up(self, topic: _Topic, error: Exception) -> None:
        """The API server will never accept this event; the topic may get another message later."""
        self.dropped += 1
        topic.failures, topic.written = 0, topic.count
        self._warn_once("event_refused", topic.current.reason, reason=topic.current.reason, why=str(error))

    def _warn_once(self, key: str, about: str = "", **fields: str) -> None:
        if key + about not in self._warned:
            self._warned.add(key + about)
            log.warning(key, extra={"data": fields})


def _not_allowed(error: ApiError) -> bool:
    """Whether the role or the API server lacks this API; a terminating namespace answers 403, too."""
    if error.status == 404:
        return not isinstance(error.details, dict) or not error.details.get("name")
    if error.status != 403:
        return False
    causes = error.details.get("causes") if isinstance(error.details, dict) else None
    return not any(isinstance(cause, dict) and cause.get("reason") == "NamespaceTerminating" for cause in causes or ())
