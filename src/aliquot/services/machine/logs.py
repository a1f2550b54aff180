"""Bounds the logs of runs: the size of each, and how many of runs that are over each user keeps."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable

from aliquot.adapters.host import logfiles, samemount
from aliquot.adapters.host.users import account_of
from aliquot.adapters.storage.folders import ASIDE

_LOG = logging.getLogger("aliquot.logs")
_EVERY = 2.0  # seconds
OF_A_USER = 100  # logs of runs that are over
_SUFFIX = ".log"


class RunLogs:
    """`in_use`: the paths of the logs of runs that run or wait. `limit`: bytes of one log; None: without a limit."""

    def __init__(self, folder: str, limit: int | None, in_use: Callable[[], set[str]]) -> None:
        self._folder, self._limit, self._in_use = folder, limit, in_use

    async def run(self) -> None:
        """Look at them now and then, in a thread, until cancelled."""
        while True:
            await asyncio.to_thread(self.look, self._in_use())
            await asyncio.sleep(_EVERY)

    def look(self, in_use: set[str]) -> None:
        """Once. Never raises OSError."""
        over: dict[int, list[tuple[float, str]]] = {}  # by user, of runs that are over
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if entry.name.startswith(ASIDE):  # a daemon before this one was killed
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(entry.path)
                    elif entry.name.endswith(_SUFFIX) and entry.is_file(follow_symlinks=False):
                        try:
                            found = samemount.lstat(entry.path)
                        except OSError:  # it is gone, or somebody mounted something over it
                            continue
                        self._bound(entry.path)
                        if entry.path not in in_use:
                            over.setdefault(account_of(found.st_uid), []).append((found.st_mtime, entry.path))
        except OSError as error:
            _LOG.warning("logs_not_read", extra={"data": {"folder": self._folder, "why": str(error)}})
        for logs in over.values():
            for _, path in sorted(logs)[:-OF_A_USER]:
                logfiles.remove(path)

    def _bound(self, path: str) -> None:
        if self._limit is None:
            return
        try:
            logfiles.bound(path, self._limit)
        except OSError as error:
            _LOG.warning("log_not_bounded", extra={"data": {"path": path, "why": str(error)}})
