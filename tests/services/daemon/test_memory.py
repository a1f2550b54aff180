"""What refers to itself and to nobody else is gone within a minute, at little cost."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Iterator

import pytest

from aliquot.services.daemon.memory import collect_garbage


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


async def until(said: weakref.ref[Ring]) -> None:
    while said() is not None:
        await asyncio.sleep(0.001)


def test_what_is_left_over_later_goes_and_what_was_there_at_the_start_is_not_looked_at() -> None:
    async def scene() -> None:
        started, early = asyncio.Event(), Ring()
        tidying = asyncio.create_task(collect_garbage(started, every=0.001))
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
        tidying.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await tidying

    asyncio.run(scene())
