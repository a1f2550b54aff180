"""Objects that only refer to each other are freed within a minute, at little cost."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Iterator

import pytest

from aliquot.services.daemon.memory import collect_garbage, freeze


class Ring:
    """Refers to itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def by_itself() -> Iterator[None]:
    """Python does not look by itself meanwhile; and what was put aside comes back."""
    gc.disable()
    yield
    gc.unfreeze()
    gc.enable()


async def until(ring: weakref.ref[Ring]) -> None:
    while ring() is not None:
        await asyncio.sleep(0.001)


def test_collect_garbage_frees_later_cycles_and_leaves_what_was_there_at_the_start() -> None:
    async def scene() -> None:
        started, early = asyncio.Event(), Ring()
        collecting = asyncio.create_task(collect_garbage(started, every=0.001))
        before = weakref.ref(Ring())
        await asyncio.sleep(0.02)
        assert before() is not None, "nothing is done before the start is over"
        started.set()
        await asyncio.wait_for(until(before), 10)
        assert gc.get_freeze_count() > 1000
        kept, late = weakref.ref(early), weakref.ref(Ring())
        del early
        await asyncio.wait_for(until(late), 10)
        assert kept() is not None
        collecting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await collecting

    asyncio.run(scene())


def test_freeze_without_collecting_stops_the_collector_until_the_start_is_over() -> None:
    async def scene() -> None:
        gc.enable()
        started = asyncio.Event()
        freezing = asyncio.create_task(freeze(started, collecting=False))
        await asyncio.sleep(0)
        assert not gc.isenabled()
        early = weakref.ref(Ring())
        started.set()
        await freezing
        assert gc.isenabled()
        assert gc.get_freeze_count() > 1000
        assert early() is not None, "no collection held up the start"

    asyncio.run(scene())
