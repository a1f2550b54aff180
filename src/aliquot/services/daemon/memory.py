"""Keeps the memory of a process that runs for months as it is.

A broken connection leaves cycles behind that only the garbage collector finds. Python runs a full collection when a
quarter more objects have come than survived the last one; and nearly all survivors are the program itself, a hundred
thousand objects. So a node's agent would collect every ten minutes or so, grow by a mebibyte until then, and hold up
its threads while it walks its own modules. `freeze` puts aside what is there at the start: a collection of the rest,
once a minute, takes two milliseconds.
"""

from __future__ import annotations

import asyncio
import gc

_EVERY = 60.0  # seconds


async def freeze(started: asyncio.Event, *, collecting: bool = True) -> None:
    """Wait for the start, then put aside what is loaded: no later collection looks at it.

    `collecting=False`: the collector does not run before or then. It would walk a large first list again and again and
    free nothing; once more at its end, that is a quarter of a second at 15,000 nodes in which nothing is answered.
    """
    if collecting:
        await started.wait()
        gc.collect()
        gc.freeze()
        return
    gc.disable()
    try:
        await started.wait()
        gc.freeze()
    finally:
        gc.enable()


async def collect_garbage(started: asyncio.Event, *, every: float = _EVERY) -> None:
    """Freeze after the start, then collect what is left over, until cancelled."""
    await freeze(started)
    while True:
        await asyncio.sleep(every)
        gc.collect()
