"""Writes in a thread: in order, with their errors, and the newest alone where only that counts."""

from __future__ import annotations

import asyncio
import threading

import pytest

from aliquot.adapters.storage.writer import Writer


def test_writer_writes_at_once_before_its_start() -> None:
    done: list[object] = []
    Writer().put(lambda: done.append("written"), done.append)
    assert done == ["written", None]


def test_writer_keeps_the_order_and_reports_errors_in_the_loop() -> None:
    done: list[object] = []
    threads: set[int] = set()

    def fail() -> None:
        threads.add(threading.get_ident())
        raise OSError("full")

    async def act() -> None:
        writer = Writer()
        writer.start()
        for at in range(5):
            writer.put(lambda at=at: done.append(at), lambda error: done.append(error))  # type: ignore[misc]
        with pytest.raises(OSError, match="full"):
            await writer.run(fail)
        assert [item for item in done if item is not None] == [0, 1, 2, 3, 4]
        assert done.count(None) == 5
        writer.put(lambda: done.append("last"), lambda _: None)
        writer.stop()
        assert done[-1] == "last"

    asyncio.run(act())
    assert threading.get_ident() not in threads


def test_writer_replaces_a_write_that_has_not_begun() -> None:
    done: list[object] = []
    go = threading.Event()

    def wait() -> None:
        go.wait(60)

    async def act() -> None:
        writer = Writer()
        writer.start()
        writer.put(wait, lambda _: None)
        for at in range(100):
            writer.put_newest("serial", lambda at=at: done.append(at), lambda _: None)  # type: ignore[misc]
        go.set()
        writer.stop()

    asyncio.run(act())
    assert done == [99]
