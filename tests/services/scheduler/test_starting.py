"""The start: the first lists are requested before most of the program is loaded."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any, cast

import pytest

from aliquot.adapters.kubernetes.kube import Kube, Server
from aliquot.adapters.kubernetes.receiving import Receiver
from aliquot.services.scheduler.watches import firstlists
from aliquot.services.scheduler.watches.firstlists import Received, receive_first_lists, request_first_lists

HEAVY = ("numpy", "aiohttp", "yaml", "aliquot.placement.board", "aliquot.services.scheduler.cluster")


def test_what_requests_the_first_lists_loads_little() -> None:
    program = f"""
import sys
import aliquot.services.scheduler.starting
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_first_lists_are_requested_in_large_pages() -> None:
    """An API server works longer on a list in small ones."""
    asked: list[tuple[str, int]] = []

    class Asked:
        async def get(self, path: str, *, params: dict[str, str], **_: Any) -> bytes:
            asked.append((path, int(params["limit"])))
            return b'{"metadata":{},"items":[]}'

    async def scene() -> None:
        lists = request_first_lists(cast(Kube, Asked()))
        assert lists.nodes is not None
        assert lists.pods is not None
        assert await lists.nodes.take() == await lists.pods.take()
        lists.close()

    asyncio.run(asyncio.wait_for(scene(), 20))
    assert asked == [("/api/v1/nodes", 2000), ("/api/v1/pods", 5000)]


def test_first_lists_are_those_that_other_processes_receive(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, int]] = []
    ended: list[str] = []

    class Receiving:
        def __init__(self, path: str) -> None:
            self._path = path

        async def take(self) -> bytes:
            return b'{"metadata":{},"items":["%s"]}' % self._path.encode()

        def close(self) -> None:
            ended.append(self._path)

    def start(
        server: Server,
        headers: list[tuple[str, str]],
        path: str,
        *,
        limit: int,
        beside: Receiver | None = None,
        yields: int,
    ) -> Receiver:
        assert yields > 0, "what applies the lists comes first"
        assert ("User-Agent", "aliquot-scheduler") in headers
        assert (beside is None) == (not started), "the second process must close the channel of the first"
        started.append((path, limit))
        return cast(Receiver, Receiving(path))

    async def scene(received: Received) -> None:
        lists = request_first_lists(cast(Kube, None), received)
        assert lists.nodes is not None
        assert lists.pods is not None
        assert b"/nodes" in (await lists.nodes.take() or b"")
        assert b"/pods" in (await lists.pods.take() or b"")
        lists.close()

    monkeypatch.setattr(firstlists, "start_receiving", start)
    asyncio.run(asyncio.wait_for(scene(receive_first_lists(Server("http://127.0.0.1:1"))), 20))
    assert started == [("/api/v1/nodes", 2000), ("/api/v1/pods", 5000)]
    assert ended == ["/api/v1/nodes", "/api/v1/pods"]
