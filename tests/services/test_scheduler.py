"""The scheduler's parts, put together: a taken port is told."""

from __future__ import annotations

import asyncio
import socket

import pytest

from aliquot.adapters.kube import Server
from aliquot.services.scheduler import Scheduler, Settings


def test_a_port_that_is_taken_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = Settings(port=taken.getsockname()[1], bind_address="127.0.0.1")

        async def scene() -> None:
            await Scheduler(Server("http://127.0.0.1:9"), settings).run()

        with pytest.raises(OSError, match="in use"):
            asyncio.run(scene())
