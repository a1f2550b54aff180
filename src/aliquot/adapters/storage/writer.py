"""Writes to the disk one after the other, in a thread of its own: a slow disk never stops the event loop.

Until `start`, and in programs without an event loop, a write is made at once, by the caller's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable

Write = Callable[[], None]
Then = Callable[[Exception | None], None]  # gets the error, if there was one


class Writer:
    """See the head of the file."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[Write, Then] | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._newest: dict[str, Write] = {}  # by key

    def start(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """From now on in the thread; this event loop, or the running one, calls every `then`."""
        self._loop = loop or asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name="writer", daemon=True)
        self._thread.start()

    def put(self, write: Write, then: Then) -> None:
        """Write after everything that was put before."""
        if self._thread is None:
            then(_error_of(write))
        else:
            self._waiting.put((write, then))

    def put_newest(self, key: str, write: Write, then: Then) -> None:
        """The same, but it replaces a write of the same key that has not begun."""
        is_new = key not in self._newest
        self._newest[key] = write
        if is_new:
            self.put(lambda: self._newest.pop(key)(), then)

    async def run(self, write: Write) -> None:
        """Returns when it is written. Raises what it raises."""
        if self._thread is None:
            write()
            return
        await until_done(lambda then: self.put(write, then))

    def stop(self) -> None:
        """Returns when everything is written that was put. Later writes are made at once."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
            self._thread = None
            while not self._waiting.empty():  # put by a `then` while we waited
                item = self._waiting.get()
                if item is not None:
                    self._finish(*item)

    def _work(self) -> None:
        while (item := self._waiting.get()) is not None:
            self._finish(*item)

    def _finish(self, write: Write, then: Then) -> None:
        assert self._loop is not None
        error = _error_of(write)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(then, error)


async def until_done(put: Callable[[Then], None]) -> None:
    """Returns when what is put with this `then` has ended. Raises what it raised."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def then(error: Exception | None) -> None:
        if done.done():  # the caller was cancelled
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    put(then)
    await done


def _error_of(write: Write) -> Exception | None:
    try:
        write()
    except Exception as error:
        return error
    return None
