"""Starts and stops the controls of groups, for each owner one after the other, in a thread of its own.

A control is its owner's process: they can stop it (SIGSTOP), so that each step takes as long as it may. Other owners
do not wait for that, and neither does the end of the daemon.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Hashable

from aliquot.adapters.storage.writer import Then, Write, Writer

_PATIENCE = 20.0  # seconds for what was begun, when the daemon ends; the next one goes on with it


class Workers:
    """Until `start` all is done at once, by the caller's thread. For the event loop's thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._of: dict[Hashable, Writer] = {}

    def start(self) -> None:
        """From now on in threads; the running event loop calls every `then`."""
        self._loop = asyncio.get_running_loop()
        for writer in self._of.values():
            writer.start(self._loop)

    def put(self, owner: Hashable, work: Write, then: Then) -> None:
        """Do it after everything that was put for this owner before."""
        self._writer(owner).put(work, then)

    async def run(self, owner: Hashable, work: Write) -> None:
        """Returns when it is done. Raises what it raises."""
        await self._writer(owner).run(work)

    def stop(self, patience: float = _PATIENCE) -> None:
        """Returns when everything is done that was put, or after a while. Later work is done at once."""
        self._loop, deadline = None, time.monotonic() + patience
        ending = [threading.Thread(target=writer.stop, daemon=True) for writer in self._of.values()]
        for thread in ending:
            thread.start()
        for thread in ending:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _writer(self, owner: Hashable) -> Writer:
        if owner not in self._of:
            self._of[owner] = Writer()
            if self._loop is not None:
                self._of[owner].start(self._loop)
        return self._of[owner]
