"""Looks for the processes of tenants in a thread, and lets go of those that have none left.

What a look finds is used by the event loop only for tenants that it was asked about before it began: a process
that starts meanwhile has a parent that it saw.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from aliquot.adapters.host.process import procscan
from aliquot.adapters.host.process.procscan import Reading, Scan
from aliquot.adapters.host.users import account_of
from aliquot.model.tenancy import Tenancy
from aliquot.services.daemon.pace import Together, in_steps

_PATIENCE = procscan.SECONDS + 2.0  # for the thread; after that it hangs in one process

_RESTLESS = 60.0  # seconds: users whose processes could not all be read in time are looked at apart for so long

_LOG = logging.getLogger("aliquot.sweeper")


@dataclass(slots=True, eq=False)
class _Lane:
    """One scan at a time, for all who ask meanwhile together."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    wanted: set[int] = field(default_factory=set)
    next: asyncio.Task[Scan] | None = None


class Scanner:
    """Scans of /proc. A user whose processes could not all be read in time, as those that start faster than they can be
    read, has scans of their own for a while: who asks about others does not wait for them. That goes by accounts: a
    user to whom /etc/subuid lends numbers could otherwise hang one scan after the other, each under another number."""

    def __init__(self, names: Collection[str], *, patience: float = _PATIENCE, proc: str = "/proc") -> None:
        self._names, self._patience, self._proc = names, patience, proc
        self._calm, self._apart = _Lane(), dict[int, _Lane]()
        self._restless: dict[int, float] = {}  # accounts, and until when
        self._hung: dict[Reading, int | None] = {}  # scans that hang in a process of that account, each a thread

    def restless(self, uids: Set[int]) -> set[int]:
        """Those among these users whose account has processes that could not all be read a moment ago."""
        now = time.monotonic()
        for account in [account for account, until in self._restless.items() if until < now]:
            del self._restless[account]
            self._apart.pop(account, None)
        return {user for user in uids if account_of(user) in self._restless}

    async def scan(self, uids: Set[int]) -> Scan:
        """The processes of these users, from scans that begin after this call."""
        apart = self.restless(uids)
        lanes: list[tuple[_Lane, Set[int]]] = [
            (self._apart.setdefault(account, _Lane()), users) for account, users in _by_account(apart).items()
        ]
        if uids - apart or not apart:
            lanes.append((self._calm, uids - apart))
        found, *more = await asyncio.gather(*(self._join(lane, users) for lane, users in lanes))
        for other in more:
            found = Scan({**found.processes, **other.processes}, found.unfinished | other.unfinished)
        return found

    async def _join(self, lane: _Lane, uids: Set[int]) -> Scan:
        lane.wanted |= uids
        if lane.next is None:
            lane.next = asyncio.create_task(self._run(lane))
        return await asyncio.shield(lane.next)

    async def _run(self, lane: _Lane) -> Scan:
        async with lane.lock:
            lane.next, uids, lane.wanted = None, lane.wanted, set()
            found = await self._in_thread(uids)
            until = time.monotonic() + _RESTLESS
            self._restless |= dict.fromkeys(map(account_of, found.unfinished & uids), until)
            return found

    async def _in_thread(self, uids: Set[int]) -> Scan:
        """A user can make a process whose environment cannot be read to its end (FUSE). The thread is left behind then,
        and processes of this user's account are not read until it returns."""
        loop, reading = asyncio.get_running_loop(), Reading()
        result: asyncio.Future[Scan] = loop.create_future()
        hung = set(self._hung.values())
        skip = frozenset(user for user in uids if account_of(user) in hung)

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
        self._hung[reading] = None if user is None else account_of(user)
        result.cancel()
        _LOG.warning("process_not_readable", extra={"data": {"pid": pid, "user": user}})
        return Scan(unfinished=set(uids))


def _by_account(uids: Set[int]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for user in uids:
        found.setdefault(account_of(user), set()).add(user)
    return found


class Tenants(Protocol):
    """tenants/machine.py."""

    def suspects(self) -> dict[str, int]: ...
    def without_processes(self, found: Scan, tenants: Collection[str]) -> Iterator[Tenancy | None]: ...
    def without_page(self, tenancies: Collection[Tenancy]) -> list[Tenancy]: ...
    def release(self, now: float, tenancies: Collection[Tenancy]) -> Iterator[None]: ...


class Sweeper:
    """See the module docstring. `names`: the variables that mark processes."""

    def __init__(self, tenants: Tenants, names: Collection[str]) -> None:
        self._tenants = tenants
        self._scanner = Scanner(names)
        self._apart: dict[int, asyncio.Task[None]] = {}  # looks at restless users, by account
        self._look_together = Together(self._look)
        self._asking = ThreadPoolExecutor(1, thread_name_prefix="pages")

    async def look(self, waiting: int | None = None) -> None:
        """Look for the processes of those that may have none left, and let go of those without: one look for all who
        ask meanwhile. Those of restless users are looked at beside it, and only the user `waiting` waits for the look
        at their own."""
        account = None if waiting is None else account_of(waiting)
        if (earlier := self._look_of(account)) is not None:  # it does not look for what has ended since it began
            await asyncio.wait({earlier})
        await self._look_together()
        if (own := self._look_of(account)) is not None:
            await asyncio.wait({own})

    async def _look(self) -> None:
        suspects = self._tenants.suspects()
        users = set(suspects.values())
        apart = self._scanner.restless(users)
        for other, theirs in _by_account(apart).items():
            if other not in self._apart:
                self._apart[other] = asyncio.create_task(self._look_at(theirs, suspects))
                self._apart[other].add_done_callback(partial(self._looked, other))
        if users - apart:
            await self._look_at(users - apart, suspects)

    def _look_of(self, account: int | None) -> asyncio.Task[None] | None:
        return None if account is None else self._apart.get(account)

    def _looked(self, account: int, task: asyncio.Task[None]) -> None:
        del self._apart[account]
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("sweep_failed", exc_info=error)

    async def _look_at(self, users: Set[int], suspects: Mapping[str, int]) -> None:
        found = await self._scanner.scan(users)
        own = [one for one, user in suspects.items() if user in users]
        bare = [one for one in await in_steps(self._tenants.without_processes(found, own)) if one is not None]
        if bare:
            ask = asyncio.get_running_loop().run_in_executor
            ended = await ask(self._asking, self._tenants.without_page, bare)
            await in_steps(self._tenants.release(time.time(), ended))

    async def scan(self, uids: Set[int]) -> Scan:
        """The processes of these users."""
        return await self._scanner.scan(uids)
