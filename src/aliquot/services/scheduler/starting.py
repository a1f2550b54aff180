"""Starts the scheduler: requests the first lists, and loads the rest of the program while the API server works on them.

Loading takes half a second of CPU, and nothing of it is needed to send a request. It is done in steps, on the loop that
receives the lists: two threads would get in each other's way.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from aliquot.adapters.kubernetes.kube import Kube
from aliquot.services.scheduler.watches.firstlists import AGENT, Started, request_first_lists

if TYPE_CHECKING:
    from aliquot.adapters.kubernetes.kubeconfig import Server
    from aliquot.services.scheduler.settings import Settings

_HANDSHAKE = 0.015  # seconds in which the requests are sent, if the API server is near
_MOMENT, _TURNS = 0.002, 24  # seconds, and turns of the loop, between two steps: a turn receives up to 256 KiB per list
_STEPS = (
    "numpy",
    "aliquot.services.daemon.loadaiohttp",
    "aiohttp.web",
    "aliquot.dialects",
    "aliquot.placement.choose",
    "aliquot.services.scheduler.cluster",
    "aliquot.services.scheduler.listening",
    "aliquot.services.scheduler.dashboard.view",
    "aliquot.services.scheduler.service",
)


async def run_scheduler(server: Server, settings: Callable[[], Settings]) -> None:
    """Until SIGTERM or SIGINT. `settings` is called when all is loaded, and may end this by an exception.

    Raises OSError if a port is taken.
    """
    async with Kube(server, agent=AGENT) as kube:
        started = Started(kube, request_first_lists(kube))
        try:
            await _load()
            from aliquot.services.scheduler.service import Scheduler

            await Scheduler(server, settings(), started).run()
        finally:
            started.lists.close()


async def _load() -> None:
    gc.disable()  # it would walk what is loaded again and again: 0.1 s of a start of 1.5 s
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's threads for matrices, which we do not have, busy-wait
    try:
        await asyncio.sleep(_HANDSHAKE)
        for step in _STEPS:
            await asyncio.sleep(_MOMENT)
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            importlib.import_module(step)
    finally:
        gc.freeze()
        gc.enable()
