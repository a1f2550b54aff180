"""Follows a collection of the API server: list, watch, resume, relist and compare.

    list    in pages; the next one is requested before this one is decoded. Reported when all of it is there, or, the
            first one and if the caller allows it, as it comes
    watch   from the list's version on, with bookmarks, so that a broken watch resumes where it stood
    410     the version is too old to resume: list again, and report only what differs from what was reported before
    else    wait, longer each time and never all clients at once, and resume

A sink gets every change once, in order. A broken watch never makes an object look deleted. What others have read from
the API server (`observe`) is passed on too if it is newer: by its version, which only ever grows.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import closing
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable, read_json
from aliquot.adapters.kubernetes.listing import request_pages
from aliquot.adapters.kubernetes.paging import EndlessError, ListMeta, PagesAhead
from aliquot.model.decoding.shallowjson import decoded
from aliquot.model.numbers.backoff import backoff

log = logging.getLogger(__name__)

_PAGE, _NEXT_PAGE = 1000, 200  # objects; smaller pages once we serve, whose callers wait while one is decoded
_AHEAD = 4  # pages of a list that is reported as it comes
_PART = 100  # objects that are reported before other tasks may run
_WATCH_SECONDS = (240, 480)  # the server ends a watch after that long; spread, so that not all are renewed at once
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 15.0
_SOUND = 20.0  # seconds; a watch that lasted so long, or brought anything, was healthy: the next failure is a first one
_REFUSALS = (403, 404, 405)  # our role may not read it, or there is no such kind; another failure may pass
_ONCE_LISTED = 3  # attempts count from here after a list: the server is there, so do not wait for long


class Item(Protocol):
    """What can be reflected."""

    @property
    def metadata(self) -> Any: ...  # with name, namespace and resource_version


T = TypeVar("T", bound=Item)
Consumed = TypeVar("Consumed", bound=Item, contravariant=True)


class Sink(Protocol[Consumed]):
    """Gets the changes. `listing` and `listed` enclose those that a list brought."""

    def listing(self) -> None: ...
    def changed(self, item: Consumed) -> None: ...
    def gone(self, key: str) -> None: ...
    def listed(self, drift: int) -> None: ...


class _Page(msgspec.Struct):
    metadata: ListMeta
    items: list[msgspec.Raw]


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Version(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _VersionOnly(msgspec.Struct):
    metadata: _Version


class _Failure(msgspec.Struct):
    code: int = 0
    reason: str = ""
    message: str = ""


class Expired(Exception):
    """410: the version asked for is too old."""


def key_of(item: Item) -> str:
    """namespace/name, or the name alone."""
    metadata = item.metadata
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else str(metadata.name)


def _newer(version: str, than: str) -> bool:
    """Whether the one resourceVersion is of later than the other; both count the writes of the whole cluster."""
    return version.isdigit() and (not than.isdigit() or int(version) > int(than))


class Reflector(Generic[T]):
    """Follows one collection, as long as `run` runs."""

    def __init__(
        self,
        kube: Kube,
        path: str,
        kind: type[T],
        sink: Sink[T],
        *,
        params: Mapping[str, str] | None = None,
        after: asyncio.Event | None = None,
        broke_off: Callable[[], None] | None = None,
        first: PagesAhead | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.path = path
        self.synced = asyncio.Event()
        self.answered = asyncio.Event()  # synced, or refused by the API server; one that is overloaded has not answered
        self.refusal: int | None = None  # the status with which the API server refused last
        self.relists = 0  # lists after the first
        self.drift = 0  # differences they found that no watch had brought
        self._kube, self._sink, self._params, self._chance = kube, sink, dict(params or {}), chance
        self._after = after  # nothing is reported before that: Pods after the nodes they are on
        # Given: the first list is reported as it comes, and this is called in place of `listed` if it breaks off.
        self._broke_off = broke_off
        self._first = first  # pages of the first list that were requested already
        self._anew = False  # what was reported of a list that is under way must be reported again
        self._item = msgspec.json.Decoder(kind)
        self._page = msgspec.json.Decoder(_Page)
        self._event = msgspec.json.Decoder(_Event)
        self._seen: dict[str, str] = {}  # key -> resourceVersion of all that was reported and exists
        self._version = ""
        self._wanted: list[asyncio.Future[None]] = []  # callers that wait for a fresh list
        self._watching: asyncio.Task[None] | None = None
        self._received = False  # whether the watch of this round brought anything

    async def run(self) -> None:
        """List and watch until cancelled."""
        loop = asyncio.get_running_loop()
        attempt = 0
        while True:
            started, self._received = loop.time(), False
            try:
                while not self._version or self._wanted:  # a list may be wanted while one is under way
                    await self._list()
                    attempt = min(attempt, _ONCE_LISTED)
                await self._watch_until_ended()
                if self._wanted:
                    continue
                attempt += 1  # a server that ends every watch at once must not be asked in a tight loop
            except Expired as error:  # nor one that lists what it cannot watch from
                log.info("watch_relisted", extra={"data": {"path": self.path, "why": str(error)}})
                self._version = ""
                attempt += 1
            except (
                ApiError, Unreachable, EndlessError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError
            ) as error:  # fmt: skip
                attempt += 1
                if isinstance(error, ApiError):
                    if error.status in _REFUSALS:
                        self.refusal = error.status
                        self.answered.set()
                    self._version = "" if error.status == 410 else self._version
                if attempt in (1, 4) or attempt % 16 == 0:
                    log.warning(
                        "watch_failed",
                        extra={"data": {"path": self.path, "why": str(error), "attempt": attempt}},
                    )
            if self._received or loop.time() - started >= _SOUND:
                attempt = 1
            pause = backoff(attempt, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE, chance=self._chance())
            await asyncio.sleep(pause)

    async def run_if_readable(self, on_listed: Callable[[], None]) -> None:
        """Until cancelled, or until the API server refuses the first list: our role may be older than this program.

        `on_listed`: all that there is was reported. May be called again afterwards, also where it failed: then what is
        gone by that time is reported too.
        """
        if not self.synced.is_set():
            self.answered.clear()
        following = asyncio.create_task(self.run())
        answered = asyncio.create_task(self.answered.wait())
        try:
            await asyncio.wait({following, answered}, return_when=asyncio.FIRST_COMPLETED)
            if self.synced.is_set():
                on_listed()
            if self.synced.is_set() or following.done():
                await following
        except Exception:  # the sink failed: it may lack any of what was reported
            self._version = ""
            self.report_all_again()
            raise
        finally:
            following.cancel()
            answered.cancel()
            await asyncio.gather(following, answered, return_exceptions=True)

    def follow(self, path: str) -> None:
        """Between two runs: the same objects are to be read there, in another version of their API."""
        if path != self.path:
            self.path, self._version = path, ""

    def report_all_again(self) -> None:
        """With the next list, report everything as changed: it must be read by other rules."""
        self._seen = dict.fromkeys(self._seen, "")
        self._anew = True

    async def relist(self) -> None:
        """Compare with the API server now; returns when that is done. What is known then is newer than the call."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wanted.append(done)
        if self._watching is not None:
            self._watching.cancel()
        await done

    def observe(self, item: T) -> None:
        """Another client read this from the API server. Reported unless the watch brought a later state, or its end."""
        key, version = key_of(item), item.metadata.resource_version
        if _newer(version, self._seen.get(key, self._version)):
            self._seen[key] = version
            self._sink.changed(item)

    # --- list ----------------------------------------------------------------------------------------------------

    async def _list(self) -> None:
        """List everything; what was reported before and is not in the list is gone."""
        served, self._wanted = self._wanted, []
        try:
            if self._broke_off is not None and not self._seen and not self.synced.is_set():
                await self._list_in_parts(self._broke_off)
            else:
                await self._list_pages()
        except BaseException:
            self._wanted = served + self._wanted
            raise
        for done in served:
            if not done.done():
                done.set_result(None)

    async def _list_pages(self) -> None:
        version = ""
        pages: list[list[T]] = []
        # Nothing is reported before all is there: a list that breaks in the middle changes nothing.
        with closing(self._request_pages()) as ahead:
            async for at, items in self._pages(ahead):
                version = at
                pages.append(await self._decode(items))
                items.clear()  # each of them holds the whole page, and the next one comes
        if self._after is not None:
            await self._after.wait()
        before, self._seen = self._seen, {}
        self._sink.listing()
        try:
            differences = self._report_list(pages, before, version)
        except BaseException:  # the sink failed: the next list reports the rest
            self._seen = before | self._seen
            self._version = ""
            self._sink.listed(0)
            raise
        if self.synced.is_set():
            self.relists += 1
            self.drift += differences
        self._sink.listed(differences if self.synced.is_set() else 0)
        self._version = version  # if the sink failed, there is another list
        self.synced.set()
        self.answered.set()

    async def _list_in_parts(self, broke_off: Callable[[], None]) -> None:
        """The first list, reported as it comes: it is not used before `synced`. Other tasks run in between, so that
        the API server is not kept waiting. If it breaks off, the next list reports the rest, and what is gone."""
        version = ""
        ahead, self._first = self._first or self._request_pages(_AHEAD), None
        with closing(ahead):
            if self._after is not None:
                await self._after.wait()
            self._anew = False
            self._sink.listing()
            try:
                async for at, items in self._pages(ahead):
                    version = at
                    for start in range(0, len(items), _PART):
                        self._report_part(await self._decode(items[start : start + _PART]))
                        await asyncio.sleep(0)
                    items.clear()
                if self._anew:
                    raise Expired("the rules changed during the list")
            except BaseException:
                broke_off()
                raise
        self._sink.listed(0)
        self._version = version  # if the sink failed, there is another list
        self.synced.set()
        self.answered.set()

    def _report_part(self, items: list[T]) -> None:
        for item in items:
            key, listed = key_of(item), item.metadata.resource_version
            known = self._seen.get(key)
            if known is None or not _newer(known, listed):  # else observed while the list was under way
                self._sink.changed(item)
                self._seen[key] = listed

    def _report_list(self, pages: list[list[T]], before: dict[str, str], version: str) -> int:
        """Report what differs from `before`, which is empty afterwards; returns the number of differences."""
        differences = 0
        for items in pages:
            for item in items:
                key, listed = key_of(item), item.metadata.resource_version
                if not before:  # the first list
                    differences += 1
                    self._sink.changed(item)
                    self._seen[key] = listed
                    continue
                known = before.get(key)
                if known is not None and _newer(known, listed):  # observed while the list was under way
                    listed = known
                elif known != listed:
                    differences += known != ""  # a forced report is no difference
                    self._sink.changed(item)
                self._seen[key] = listed
                before.pop(key, None)
            items.clear()
        for key, known in list(before.items()):
            if _newer(known, version):
                self._seen[key] = known
            else:
                differences += 1
                self._sink.gone(key)
            del before[key]
        return differences

    async def _pages(self, ahead: PagesAhead) -> AsyncIterator[tuple[str, list[msgspec.Raw]]]:
        version = ""
        while (raw := await ahead.take()) is not None:
            page = await read_json(self._page.decode, raw)
            del raw
            version = page.metadata.resource_version or version
            ahead.follow(page.metadata.continue_)
            items = page.items
            del page
            yield version, items

    async def _decode(self, items: list[msgspec.Raw]) -> list[T]:
        """A few at a time, and the next few are in the same memory: a page of them would take many megabytes."""
        try:
            return [self._item.decode(item) for item in items]
        except RecursionError:
            return [await read_json(self._item.decode, bytes(item)) for item in items]

    def _request_pages(self, most: int = 1) -> PagesAhead:
        limit = _NEXT_PAGE if self.synced.is_set() else _PAGE
        return request_pages(self._kube, self.path, self._params, limit=limit, most=most)

    # --- watch ---------------------------------------------------------------------------------------------------

    async def _watch_until_ended(self) -> None:
        self._watching = asyncio.get_running_loop().create_task(self._watch())
        try:
            await self._watching
        except asyncio.CancelledError:
            us = asyncio.current_task()
            if not self._wanted or (us is not None and us.cancelling()):  # no relist ended the watch: we are cancelled
                self._watching.cancel()
                raise
        finally:
            self._watching = None

    async def _watch(self) -> None:
        low, high = _WATCH_SECONDS
        params = {
            **self._params,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(low + (high - low) * self._chance())),
        }
        async for lines in self._kube.watch(self.path, params):
            for line in lines:
                if line:
                    self._handle(await read_json(self._event.decode, line))

    def _handle(self, event: _Event) -> None:
        if event.type == "ERROR":
            failure = msgspec.json.decode(event.object, type=_Failure)
            if failure.code == 410 or failure.reason in ("Expired", "Gone"):
                raise Expired(failure.message)
            raise ApiError(failure.code, failure.reason, failure.message)
        self._received = True
        if event.type == "BOOKMARK":
            mark = msgspec.json.decode(event.object, type=_VersionOnly)
            self._version = mark.metadata.resource_version
            return
        item = decoded(self._item.decode, event.object)
        key = key_of(item)
        self._version = item.metadata.resource_version
        known = self._seen.get(key, "")
        if known == self._version or _newer(known, self._version):  # known already, or in a later state
            return
        if event.type == "DELETED":
            if self._seen.pop(key, None) is not None:
                self._sink.gone(key)
            return
        self._seen[key] = self._version
        self._sink.changed(item)
