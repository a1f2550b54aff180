"""Owners do not wait for each other's controls."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from aliquot.services.runtime.together.workers import Workers

PATIENCE = 60.0


def test_owner_whose_control_hangs_holds_up_no_other_and_not_the_end() -> None:
    hangs, done = threading.Event(), list[str]()

    def hang() -> None:
        hangs.wait(PATIENCE)

    async def work() -> None:
        workers = Workers()
        workers.put("early", lambda: done.append("early"), lambda error: None)
        assert done == ["early"], "at once"
        workers.start()
        for _ in range(100):
            workers.put(70001, hang, lambda error: None)
        async with asyncio.timeout(PATIENCE / 2):
            await workers.run(70002, lambda: done.append("other"))
            await workers.run("early", lambda: done.append("again"))
            began = time.monotonic()
            await asyncio.to_thread(workers.stop, 0.3)
            assert time.monotonic() - began < PATIENCE / 4
        assert done == ["early", "other", "again"]

    try:
        asyncio.run(work())
    finally:
        hangs.set()


def test_work_of_one_owner_is_done_in_order_and_errors_are_reported() -> None:
    done: list[int] = []
    outcomes: list[Exception | None] = []

    async def work() -> None:
        workers = Workers()
        workers.start()
        for number in range(50):
            workers.put("a", lambda number=number: done.append(number), outcomes.append)  # type: ignore[misc]
        workers.put("a", lambda: [][0], outcomes.append)
        await workers.run("a", lambda: None)
        await asyncio.to_thread(workers.stop)

    asyncio.run(work())
    assert done == list(range(50))
    assert [type(error) for error in outcomes] == [type(None)] * 50 + [IndexError]


def test_thread_of_an_owner_ends_with_its_work() -> None:
    """A cluster may have had groups in thousands of namespaces."""
    hangs, order = threading.Event(), list[str]()

    def hang() -> None:
        hangs.wait(PATIENCE)

    def threads() -> int:
        return sum(thread.name == "writer" for thread in threading.enumerate())

    async def work() -> None:
        before = threads()
        workers = Workers()
        workers.put("early", lambda: None, lambda error: None)
        workers.start()
        assert threads() == before, "nothing is to be done"
        try:
            workers.put("hangs", hang, lambda error: None)
            async with asyncio.timeout(PATIENCE / 2):
                for number in range(50):
                    await workers.run(f"namespace-{number}", lambda: None)
                with pytest.raises(IndexError):
                    await workers.run("fails", lambda: [][0])

                def again(error: Exception | None) -> None:
                    workers.put("again", lambda: order.append("second"), lambda error: order.append("told"))

                workers.put("again", lambda: order.append("first"), again)
                while len(order) < 3 or threads() > before + 1:
                    await asyncio.sleep(0.01)
            assert order == ["first", "second", "told"]
            await workers.run("again", lambda: order.append("third"))
            assert order[-1] == "third"
            cancelled = asyncio.create_task(workers.run("hangs", lambda: order.append("late")))
            await asyncio.sleep(0.01)
            cancelled.cancel()
            await asyncio.sleep(0.01)
            assert "late" not in order
        finally:
            hangs.set()
            await asyncio.to_thread(workers.stop)
        assert order[-1] == "late"
        assert threads() == before

    asyncio.run(work())
