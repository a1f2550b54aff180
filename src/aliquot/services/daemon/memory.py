"""The memory of a process that runs for months beside other people's programs: it is to stay as it is.

What a broken connection leaves behind refers to itself, and is found only when Python looks for such things. It looks
when a quarter more has come than has stayed; and of what stays nearly all is the program itself, a hundred thousand
objects. So a node's agent would look every ten minutes or so, grow by a mebibyte until then, and hold all its threads
up while it looks at its own modules. What is there at the start is put aside instead: a look at the rest, once a
minute, takes two milliseconds.
"""

from __future__ import annotations

import asyncio
import gc

_EVERY = 60.0  # seconds


async def collect_garbage(started: asyncio.Event, *, every: float = _EVERY) -> None:
    """Until cancelled. `started`: what is there by now stays."""
    await started.wait()
    gc.collect()
    gc.freeze()
    while True:
        await asyncio.sleep(every)
        gc.collect()
