"""Device plugins beside a kubelet of paper."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from aliquot.dialects.wire.advertising import Token
from aliquot.services.agent.devices.plugins import (
    Allocation,
    Plugins,
)
from kit.agents.kubelet import FakeKubelet
from kit.running.waiting import until

CORE, MEMORY = "tke.cloud.tencent.com/qgpu-core", "tke.cloud.tencent.com/qgpu-memory"


def some(number: int, *, healthy: bool = True, numa: int | None = None) -> tuple[Token, ...]:
    return tuple(Token(f"GPU-1-_-{j}", healthy, numa) for j in range(number))


class FakeHandler:
    """Gives the answer it is set to, and records the calls."""

    def __init__(self) -> None:
        self.allocated: list[tuple[str, frozenset[str]]] = []
        self.prepared: list[tuple[str, frozenset[str]]] = []
        self.answer = Allocation()
        self.failure: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.inside = 0

    def allocate(self, resource: str, ids: frozenset[str]) -> Allocation:
        self.allocated.append((resource, ids))
        if self.failure is not None:
            raise self.failure
        return self.answer

    async def prepare(self, resource: str, ids: frozenset[str]) -> None:
        self.inside += 1
        if self.gate is not None:
            await self.gate.wait()
        self.prepared.append((resource, ids))
        if self.failure is not None:
            raise self.failure


@contextlib.asynccontextmanager
async def running(
    folder: Path, offer: Mapping[str, Sequence[Token]], handler: FakeHandler | None = None
) -> AsyncIterator[Plugins]:
    plugins = Plugins(folder, handler or FakeHandler())
    plugins.offer(offer)
    task = asyncio.create_task(plugins.run())
    try:
        yield plugins
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def ours(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("aliquot-*"))


async def offered(kubelet: FakeKubelet, *names: str) -> None:
    await until(lambda: kubelet.resources == set(names))
