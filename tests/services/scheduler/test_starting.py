"""The start: the first lists are requested before most of the program is loaded."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any, cast

from aliquot.adapters.kubernetes.kube import Kube
from aliquot.services.scheduler.watches.firstlists import request_first_lists

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
