"""Looks for the processes of tenants and Pods in a thread, and lets go of those that have none left.

What a look finds is used by the event loop only for tenants and Pods that it was asked about before it began: a process
that starts meanwhile has a parent that it saw.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Collection, Set
from typing import Protocol

from aliquot.adapters.host import procscan
from aliquot.adapters.host.procscan import Reading, Scan

_PATIENCE = procscan.SECONDS + 2.0  # for the thread; after that it hangs in one process

_LOG = logging.getLogger("aliquot.sweeper")


class Scanner:
    """One scan of /proc at a time, for all who ask meanwhile together."""

    def __init__(self, names: Collection[str], *, patience: float = _PATIENCE, proc: str = "/proc") -> None:
        self._names, self._patience, self._proc = names, patience, proc
        self._lock = asyncio.Lock()
        self._wanted: set[int] = set()
        self._next: asyncio.Task[Scan] | None = None
        self._hung: dict[Reading, int | None] = {}  # scans that hang in a process of that user, each a thread

    async def scan(self, uids: Set[int]) -> Scan:
        """The processes of these users, from a scan that begins after this call."""
        self._wanted |= uids
        if self._next is None:
            self._next = asyncio.create_task(self._run())
        return await asyncio.shield(self._next)

    async def _run(self) -> Scan:
        async with self._lock:
            self._next, uids, self._wanted = None, self._wanted, set()
            return await self._in_thread(uids)

    async def _in_thread(self, uids: Set[int]) -> Scan:
        """A user can make a process whose environment cannot be read to its end (FUSE). The thread is left behind then,
        and this user's processes are not read until it returns."""
        loop, reading = asyncio.get_running_loop(), Reading()
        result: asyncio.Future[Scan] = loop.create_future()
        skip = frozenset(user for user in self._hung.values() if user is not None)

        def work() -> None:
            found: Scan | Exception
            try:
                found = procscan.scan(self._names, uids, skip=skip, reading=reading, proc=self._proc)
            except Exception as error:
                found = error
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(done, found)

        def done(found: Scan | Exception) -> None:
            self._hung.pop(reading, None)
            if not result.done() and isinstance(found, Exception):
                result.set_exception(found)
            elif not result.done() and isinstance(found, Scan):
                result.set_result(found)

        threading.Thread(target=work, name="scan", daemon=True).start()
        await asyncio.wait({result}, timeout=self._patience)
        if result.done():
            return result.result()
        pid, user = reading.pid, reading.uid  # the process may be gone by now, and its number another's
        self._hung[reading] = user
        result.cancel()
        _LOG.warning("process_not_readable", extra={"data": {"pid": pid, "user": user}})
        return Scan(unfinished=set(uids))


class Tenants(Protocol):
    """tenants/machine.py."""

    def suspects(self) -> dict[str, int]: ...
    def sweep(self, now: float, found: Scan, tenants: Collection[str]) -> None: ...


class Pods(Protocol):
    """pods/ending.py."""

    def to_clear(self) -> dict[str, int]: ...
    def clear(self, found: Scan, uids: Collection[str]) -> None: ...


class Sweeper:
    """See the module docstring. `names`: the variables that mark processes."""

    def __init__(self, tenants: Tenants, pods: Pods, names: Collection[str]) -> None:
        self._tenants, self._pods = tenants, pods
        self._scanner = Scanner(names)

    async def look(self) -> None:
        """Look for the processes of those that may have none left, and let go of those without."""
        suspects, pods = self._tenants.suspects(), self._pods.to_clear()
        if suspects or pods:
            found = await self._scanner.scan({*suspects.values(), *pods.values()})
            self._tenants.sweep(time.time(), found, suspects)
            self._pods.clear(found, pods)

    async def scan(self, uids: Set[int]) -> Scan:
        """The processes of these users."""
        return await self._scanner.scan(uids)
