"""Starts and stops the controls of groups, for each owner one after the other, in a thread of its own.

A control is its owner's process: they can stop it (SIGSTOP), so that each step takes as long as it may. Other owners
do not wait for that, and neither does the end of the daemon. A thread ends when its owner has no more work.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Hashable

from aliquot.adapters.storage.writer import Then, Write, Writer, until_done

_PATIENCE = 20.0  # seconds for what was begun, when the daemon ends; the next one goes on with it


class Workers:
    """Until `start` all is done at once, by the caller's thread. For the event loop's thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._of: dict[Hashable, Writer] = {}
        self._left: Counter[Hashable] = Counter()  # by owner: work that was put and has not ended
        self._ending = threading.Lock()  # either `stop` or `_done` ends a writer

    def start(self) -> None:
        """From now on in threads; the running event loop calls every `then`."""
        self._loop = asyncio.get_running_loop()
        for writer in self._of.values():
            writer.start(self._loop)

    def put(self, owner: Hashable, work: Write, then: Then) -> None:
        """Do it after everything that was put for this owner before."""

        def ended(error: Exception | None) -> None:
            try:
                then(error)
            finally:
                self._done(owner)

        self._left[owner] += 1
        self._writer(owner).put(work, ended)

    async def run(self, owner: Hashable, work: Write) -> None:
        """Returns when it is done. Raises what it raises."""
        await until_done(lambda then: self.put(owner, work, then))

    def stop(self, patience: float = _PATIENCE) -> None:
        """Returns when everything is done that was put, or after a while. Later work is done at once."""
        deadline = time.monotonic() + patience
        with self._ending:
            self._loop = None
            ending = [threading.Thread(target=writer.stop, daemon=True) for writer in self._of.values()]
        for thread in ending:
            thread.start()
        for thread in ending:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _writer(self, owner: Hashable) -> Writer:
        if owner not in self._of:
            if self._loop is None:
                return Writer()
            self._of[owner] = Writer()
            self._of[owner].start(self._loop)
        return self._of[owner]

    def _done(self, owner: Hashable) -> None:
        """One piece of work has ended and reported it. After the last the thread ends at once."""
        self._left[owner] -= 1
        if self._left[owner]:
            return
        del self._left[owner]
        with self._ending:
            idle = None if self._loop is None else self._of.pop(owner, None)
        if idle is not None:
            idle.stop()
