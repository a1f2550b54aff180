"""Events on Pods and Nodes, so that `kubectl describe` says why. Telling never waits and never fails.

    emit    notes what happened, at once; nothing is sent
    run     sends: what is new first, no more than a few per second in all

One object and reason are one topic. A topic told again in the same words is one Event whose count grows, written ever
more seldom (30 s to 10 min); in other words it is a new Event, at most every 15 s, and only the last words are kept
meanwhile. So ten thousand Pods that wait cost as many writes as the pace allows, and each still tells the truth.

A role that knows only core/v1 events (the seeds') is found out by the first 403, and then core/v1 is written.
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
from aliquot.model.backoff import backoff
from aliquot.services.daemon.pace import Pace

__all__ = ["EventSink", "Events", "ObjectRef", "microtime", "pod_ref", "timestamp"]

log = logging.getLogger(__name__)

_MOST_TOPICS = 5000
_OTHER_WORDS_AFTER = 15.0
_FIRST_REPEAT, _LAST_REPEAT = 30.0, 600.0
_FIRST_RETRY, _LAST_RETRY, _MOST_RETRIES = 2.0, 60.0, 6
_QUIET = 600.0  # after both APIs said 403: a role may be mended while we run
_LONGEST_SLEEP = 60.0
_FORGOTTEN = 3600.0  # after that the API server has forgotten the Event, and we the topic


class EventSink(Protocol):
    """Who can be told what happened."""

    def emit(self, about: ObjectRef, reason: str, message: str, *, type: str = "Warning", action: str = "") -> None: ...


class Named(Protocol):
    """A Pod's names, wherever they stand."""

    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def uid(self) -> str: ...


def pod_ref(pod: Named) -> ObjectRef:
    """The Pod, as an event names it."""
    return ObjectRef("Pod", pod.name, pod.namespace, pod.uid)


def microtime(now: float) -> str:
    """Seconds since 1970 as RFC 3339 with microseconds."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def timestamp(now: float) -> str:
    """The same in whole seconds, as conditions have it."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(slots=True)
class _Topic:
    """What is told of one object under one reason."""

    told: Occurrence  # as it is, or will be, in the API
    count: int = 1  # times seen
    written: int = 0  # the count that the API server knows; 0: it has no such event
    other: Occurrence | None = None  # newer words, which wait their turn
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
        if self.other is not None or self.written == 0:
            return self.wrote_at + _OTHER_WORDS_AFTER
        if self.count > self.written:
            return self.wrote_at + backoff(self.repeats + 1, first=_FIRST_REPEAT, longest=_LAST_REPEAT)
        return None


_Key = tuple[ObjectRef, str, str]


class Events:
    """See the head of the file. `clock` tells seconds since 1970."""

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
        self.dropped = 0  # that nobody will read: too many topics, or refused by the API server
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
        """Say that this happened to the object. Returns at once."""
        key = (about, reason, type)
        now = self._clock()
        topic = self._topics.get(key)
        if topic is not None:
            self._topics.move_to_end(key)
            if topic.told.note == message:
                topic.count += 1
                topic.other = None
            elif topic.other is None or topic.other.note != message:
                topic.other = self._occurrence(about, reason, message, type, action, now)
                if topic.wrote_at is None:  # never sent: the newer words take its place
                    topic.told, topic.count, topic.other = topic.other, 1, None
        else:
            self._forget(now)
            if len(self._topics) >= _MOST_TOPICS:
                _, lost = self._topics.popitem(last=False)
                self.dropped += lost.written == 0
            topic = self._topics[key] = _Topic(self._occurrence(about, reason, message, type, action, now))
        self._schedule(key, topic)

    def _forget(self, now: float) -> None:
        """Topics of long ago, of which all is written: most are of Pods that are gone."""
        while self._topics:
            key, topic = next(iter(self._topics.items()))
            if topic.due() is not None or topic.wrote_at is None or now - topic.wrote_at < _FORGOTTEN:
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
        if len(self._heap) > 2 * _MOST_TOPICS:  # topics that had to go are still in it
            known = self._topics
            self._heap = [each for each in self._heap if each[2] in known and known[each[2]].planned == each[0]]
            heapq.heapify(self._heap)

    async def run(self) -> None:
        """Send, until cancelled."""
        while True:
            self._wake.clear()
            pause = await self.step()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):  # not wait_for: it may swallow the cancellation that ends us
                    await self._wake.wait()
                    # Something was told while we waited: it goes as soon as the pace allows.
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
            if topic is None or topic.planned != due:  # it had to go, or came up sooner
                continue
            topic.planned = None
            wanted = topic.due()
            if wanted is not None and wanted <= now:
                await self._write(topic, now)
            self._schedule(key, topic)
        return _LONGEST_SLEEP

    async def _write(self, topic: _Topic, now: float) -> None:
        if topic.other is not None and not topic.failures:
            topic.told, topic.count, topic.written = topic.other, 1, 0
            topic.other, topic.repeats = None, 0
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
        """Write it in the API that takes it; False where neither does."""
        for form in (self._form, Form.CORE if self._form is Form.EVENTS else Form.EVENTS):
            try:
                await self._send_as(form, topic, count, at)
            except ApiError as error:
                if not _no_such_right(error):
                    raise
                continue
            self._form = form
            return True
        self._forbidden_until = self._clock() + _QUIET
        self._warn(
            "forbidden",
            "events cannot be written: the role lacks create and patch on events, in events.k8s.io or the core group",
        )
        topic.wrote_at = None if topic.written == 0 else topic.wrote_at  # still to be told
        return False

    async def _send_as(self, form: Form, topic: _Topic, count: int, at: str) -> None:
        if topic.written and form is self._form:
            try:
                path = events_path(form, topic.told, one=True)
                await self._kube.patch(path, render_repeat(form, count, at), form="merge")
                return
            except ApiError as error:
                if error.status != 404:
                    raise
                # It has run out: events live an hour. Told anew, under another name.
                topic.told, topic.count = replace(topic.told, at=at), 1
        try:
            await self._kube.create(events_path(form, topic.told), render_event(form, topic.told))
        except ApiError as error:
            if error.status != 409:  # it is there: an answer was lost
                raise

    def _give_up(self, topic: _Topic, error: Exception) -> None:
        """Such an event will not be taken, ever; the topic may have other words later."""
        self.dropped += 1
        topic.failures, topic.written = 0, topic.count
        self._warn(f"refused {topic.told.reason}", f"an event was not taken: {error}")

    def _warn(self, about: str, sentence: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            log.warning(sentence)


def _no_such_right(error: ApiError) -> bool:
    """Whether the role, or the API server, does not know this API; not so where the namespace is on its way out."""
    if error.status == 404:
        return not isinstance(error.details, dict) or not error.details.get("name")
    if error.status != 403:
        return False
    causes = error.details.get("causes") if isinstance(error.details, dict) else None
    return not any(isinstance(cause, dict) and cause.get("reason") == "NamespaceTerminating" for cause in causes or ())
