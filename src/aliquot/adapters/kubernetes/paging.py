"""The pages of a list: each names the next one by a token, until the last. An answer that never ends is an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

MOST_PAGES = 5000  # of 200 to 1,000 objects: ten times the Pods of the largest cluster that Kubernetes supports


class EndlessError(Exception):
    """The list has no end; says how that was seen."""


class Pages:
    """The tokens of one list, in the order in which they come."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._tokens: set[int] = set()  # their hashes: a token may be long

    def follow(self, token: str) -> str:
        """The token again, if the list may go on with it. Raises EndlessError."""
        known = len(self._tokens)
        self._tokens.add(hash(token))
        if len(self._tokens) == known:
            raise EndlessError(
                f"the list {self._path} has no end: page {known + 1} refers back to a page that was read already"
            )
        if known >= MOST_PAGES:
            raise EndlessError(f"the list {self._path} has no end: {MOST_PAGES:,} pages were read, and there are more")
        return token


class ListMeta(msgspec.Struct, rename="camel"):
    """What a page says of its list."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _ListHead(msgspec.Struct):
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)


_ITEMS, _LONGEST_HEAD = b'"items":[', 8192
_read_head = msgspec.json.Decoder(_ListHead).decode


def next_page(raw: bytes) -> str:
    """The token of the page after this one, from its beginning; empty if there is none, or its form is another.

    An API server writes `metadata` before `items`.
    """
    end = raw.find(_ITEMS, 0, _LONGEST_HEAD)
    try:
        return _read_head(raw[:end] + b'"items":[]}').metadata.continue_ if end > 0 else ""
    except msgspec.MsgspecError:
        return ""


class PagesAhead:
    """The pages of one list as they come. Up to `most` of them are fetched before they are taken.

    `ask` sends the request for the page of a token.
    """

    def __init__(self, ask: Callable[[str], Awaitable[bytes]], path: str, *, most: int = 1) -> None:
        self._ask, self._tokens = ask, Pages(path)
        self._room = asyncio.Semaphore(most - 1)
        self._came: asyncio.Queue[tuple[bytes, bool] | Exception] = asyncio.Queue()  # a page; whether another comes
        self._coming: asyncio.Task[None] | None = None
        self._fetch("")

    def _fetch(self, token: str) -> None:
        self._coming = asyncio.get_running_loop().create_task(self._fetch_from(token))

    async def _fetch_from(self, token: str) -> None:
        try:
            while True:
                raw = await self._ask(token)
                token = next_page(raw)
                self._came.put_nowait((raw, bool(token)))
                del raw  # else it stays until the next page is there
                if not token:
                    return
                self._tokens.follow(token)
                await self._room.acquire()
        except Exception as error:  # raised again where the page is taken
            self._came.put_nowait(error)

    async def take(self) -> bytes | None:
        """The next page; None after the last. Raises what its request raised, and EndlessError."""
        if self._coming is None:
            return None
        came = await self._came.get()
        if isinstance(came, Exception):
            raise came
        raw, more = came
        if not more:
            self._coming = None
        self._room.release()
        for _ in range(2):  # the next request is sent now: the API server works on it while this page is decoded
            await asyncio.sleep(0)
        return raw

    def follow(self, token: str) -> None:
        """The decoded page names this one as the next; its beginning may not have said so."""
        if token and self._coming is None:
            self._fetch(self._tokens.follow(token))

    def close(self) -> None:
        """The caller does not want the rest of the pages."""
        if self._coming is not None:
            self._coming.cancel()
