"""Accepts connections for an event loop.

asyncio's own server tries a hundred times in a row where no file is left, and logs a traceback for each: a user who
takes all files filled the log, and kept the loop busy.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

_AT_ONCE = 64  # connections, before others have their turn
_AGAIN = 0.5  # seconds until the next attempt where no file is left
_LOG_EVERY = 60.0  # seconds

log = logging.getLogger(__name__)


class Acceptor(ABC):
    """Accepts connections on a socket until it is closed; `_take` serves each."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._last_logged = float("-inf")
        listener.setblocking(False)
        self._start()

    @abstractmethod
    def _take(self, accepted: socket.socket) -> None: ...

    def close(self) -> None:
        """Accept no more. Those that are connected stay."""
        if self._retry is not None:
            self._retry.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
            self._listener.close()

    def _start(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no file is left; the connection stays in the queue
                self._pause(error)
                return
            self._take(accepted)

    def _pause(self, error: OSError) -> None:
        if self._loop.time() - self._last_logged >= _LOG_EVERY:
            self._last_logged = self._loop.time()
            log.error("connection_accept_failed", extra={"data": {"why": str(error)}})
        self._loop.remove_reader(self._listener)
        self._retry = self._loop.call_later(_AGAIN, self._start)


class StreamServer(Acceptor):
    """Calls `connected` for each connection, as asyncio.start_unix_server does."""

    def __init__(
        self,
        connected: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
        listener: socket.socket,
        *,
        limit: int,
    ) -> None:
        self._connected, self._limit = connected, limit
        self._tasks: set[asyncio.Task[None]] = set()
        super().__init__(listener)

    def _take(self, accepted: socket.socket) -> None:
        task = self._loop.create_task(self._serve(accepted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, accepted: socket.socket) -> None:
        """The protocol calls `connected` in a task of its own."""
        accepted.setblocking(False)
        try:
            await self._loop.connect_accepted_socket(self._protocol, accepted)
        except OSError:  # it has hung up already
            accepted.close()

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(limit=self._limit), self._connected)
