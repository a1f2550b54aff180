"""A reflector that follows a fake API server, and a sink that records what it receives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec

from aliquot.adapters.kubernetes.kube import Kube
from aliquot.adapters.kubernetes.reflector import Reflector
from kit.clusters.apiserver import PATH, ApiServer
from kit.running.waiting import until


class Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class Thing(msgspec.Struct):
    metadata: Meta
    size: int = 0


class Sink:
    """Records what it receives."""

    def __init__(self) -> None:
        self.reported: list[tuple[str, str]] = []  # what, and of which
        self.known: dict[str, int] = {}
        self.versions: dict[str, list[int]] = {}
        self.drifts: list[int] = []
        self.in_list = False
        self.broken = 0  # lists that broke off

    def listing(self) -> None:
        assert not self.in_list
        self.in_list = True

    def changed(self, item: Thing) -> None:
        self.reported.append(("changed", item.metadata.name))
        self.known[item.metadata.name] = item.size
        self.versions.setdefault(item.metadata.name, []).append(int(item.metadata.resource_version))

    def gone(self, key: str) -> None:
        self.reported.append(("gone", key))
        del self.known[key]

    def listed(self, drift: int) -> None:
        assert self.in_list
        self.in_list = False
        self.drifts.append(drift)

    def broke_off(self) -> None:
        assert self.in_list
        self.in_list = False
        self.broken += 1

    def forget(self) -> None:
        """Forget what was received so far: the test is not about it."""
        self.reported.clear()


class Rig:
    """A server, a reflector that follows it, and what the sink received."""

    following: asyncio.Task[None]

    def __init__(self, server: ApiServer, kube: Kube, *, in_parts: bool = False, **more: Any) -> None:
        self.server, self.sink = server, Sink()
        more |= {"broke_off": self.sink.broke_off} if in_parts else {}
        self.reflector: Reflector[Thing] = Reflector(kube, PATH, Thing, self.sink, chance=lambda: 0.0, **more)

    async def synced(self) -> None:
        await self.reflector.synced.wait()
        await until(lambda: self.server.watching)

    async def same(self) -> None:
        """Wait until the sink knows what the server has."""
        await until(lambda: self.sink.known == sizes(self.server))


def sizes(server: ApiServer) -> dict[str, int]:
    return {name: item.get("size", 0) for name, item in server.items.items()}


def play(
    scene: Callable[[Rig], Awaitable[None]],
    *,
    before: Callable[[ApiServer], object] = lambda server: None,
    seconds: float = 20.0,
    **more: Any,
) -> None:
    """Run the scene with a reflector that follows a server; `before` it begins, the server is as that makes it. `more`
    is for the rig."""

    async def run() -> None:
        async with ApiServer() as server, server.kube() as kube:
            before(server)
            rig = Rig(server, kube, **more)
            rig.following = asyncio.create_task(rig.reflector.run())
            try:
                await scene(rig)
            finally:
                rig.following.cancel()
                with suppress(asyncio.CancelledError):
                    await rig.following

    asyncio.run(asyncio.wait_for(run(), seconds))


def three(server: ApiServer) -> None:
    for name in "abc":
        server.put(name, size=1)
