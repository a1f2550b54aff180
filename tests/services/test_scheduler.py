"""The scheduler's parts, put together: one that fails does not stop the others, and a taken port is told."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket

import pytest

from aliquot.adapters.kube import Server
from aliquot.services import scheduler as module
from aliquot.services.scheduler import Scheduler, Settings
from services.virtual import play


def test_a_part_that_fails_is_told_and_started_again(caplog: pytest.LogCaptureFixture) -> None:
    began: list[float] = []

    async def work() -> None:
        began.append(asyncio.get_running_loop().time())
        if len(began) < 4:
            raise RuntimeError("broken")

    with caplog.at_level(logging.ERROR):
        play(module.for_ever(work))
    assert [later - earlier for earlier, later in itertools.pairwise(began)] == [1.0, 1.0, 1.0]
    assert caplog.text.count("a part failed; it starts again") == 3


def test_a_part_that_is_ended_is_not_started_again() -> None:
    async def scene() -> None:
        started = asyncio.create_task(module.for_ever(asyncio.Event().wait))  # type: ignore[arg-type]
        await asyncio.sleep(1.0)
        started.cancel()
        with pytest.raises(asyncio.CancelledError):
            await started

    play(scene())


def test_a_port_that_is_taken_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = Settings(port=taken.getsockname()[1], bind_address="127.0.0.1")

        async def scene() -> None:
            await Scheduler(Server("http://127.0.0.1:9"), settings).run()

        with pytest.raises(OSError, match="in use"):
            asyncio.run(scene())
