"""Our device plugins at the kubelet: one per resource that the node offers, there whenever the kubelet is.

    offer   says what is wanted; a new resource is served and then registered, one not named any more is told to be
            empty and then withdrawn
    run     looks at the sockets five times a second, more often while the kubelet is away. A kubelet that starts has a
            new kubelet.sock and removes ours: each plugin is then served on a new socket and registered again. Until
            that is done, Pods that are bound here fail for good, so it is done at once

A kubelet that was asked again too soon mixes up the new connection with the old one, and drops the new. Therefore a
plugin that is registered but has nobody watching for a second is registered once more.

Each socket has a name of its own: gRPC removes a socket's file some time after the server was stopped, and must not
remove that of its successor.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from aliquot.adapters.kubelet.channel import KubeletError
from aliquot.adapters.kubelet.deviceplugin import KUBELET_SOCKET, PluginServer, Refused, register, render_devices
from aliquot.dialects.wire.advertising import Token
from aliquot.model.edits import Mount
from aliquot.services.daemon.pace import back_off

__all__ = ["Allocation", "Desk", "Plugins", "Refused"]

log = logging.getLogger(__name__)

_LOOK = 0.2  # seconds between two looks at the sockets
_LOOK_OUT = 0.02  # the same while the kubelet is away: it is about to come back
_UNWATCHED = 1.0  # seconds after which a plugin that nobody watches counts as not registered
_FIRST_RETRY, _LAST_RETRY = 0.1, 5.0
_MISSED = 5.0  # seconds without a kubelet after which that is said; a restart takes less
_PREFIX, _SUFFIX = "aliquot-", ".sock"

Identity = tuple[int, int]  # of a socket's file: its inode, and when it was made, for inodes come again


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a container gets with its devices."""

    cdi: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()


class Desk(Protocol):
    """Who knows the Pods. Both may raise Refused; its text reaches the user through the kubelet."""

    def allocate(self, resource: str, ids: frozenset[str]) -> Allocation:
        """A Pod is being admitted that gets these devices; which Pod, nobody says."""
        ...

    async def prepare(self, resource: str, ids: frozenset[str]) -> None:
        """A container that holds these devices is about to be created."""
        ...


@dataclass(slots=True)
class _Plugin:
    """One resource."""

    resource: str
    tokens: Sequence[Token]
    devices: bytes  # the same, as the kubelet hears them
    server: PluginServer | None = None
    accepted_by: Identity | None = None  # the kubelet that has taken our registration
    tried: Identity | None = None  # the kubelet that was last asked
    watched_at: float = 0.0
    attempts: int = 0
    why: str = ""  # it was not registered
    due: float = 0.0
    task: asyncio.Task[None] | None = None

    def is_lost(self, now: float) -> bool:
        """Whether the kubelet has dropped us, though it is the same."""
        if self.server is not None and self.server.watchers:
            self.watched_at = now
        return now - self.watched_at >= _UNWATCHED


class Plugins:
    """See the head of the file. `folder` is the kubelet's device-plugins; `changed`: more or fewer are registered."""

    def __init__(self, folder: Path, desk: Desk, *, changed: Callable[[], None] = lambda: None) -> None:
        self._folder, self._desk, self._changed = folder, desk, changed
        self._kubelet = folder / KUBELET_SOCKET
        self._wanted: dict[str, Sequence[Token]] = {}
        self._plugins: dict[str, _Plugin] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._number = itertools.count(1)
        self._stamp: int | None = None  # of the folder, when it had been looked at with nothing to do
        self._before: int | None = None
        self._last: Identity | None = None  # the kubelet that was last seen
        self.restarts = 0  # of the kubelet, as far as we saw
        self._missed_at: float | None = None  # when it is to be said that there is no kubelet

    def offer(self, tokens: Mapping[str, Sequence[Token]]) -> None:
        """What is wanted from now on, by resource; those not named are withdrawn."""
        self._wanted = dict(tokens)
        self._wake.set()

    @property
    def registered(self) -> frozenset[str]:
        """The resources that the kubelet has accepted since it last started."""
        return frozenset(name for name, each in self._plugins.items() if each.accepted_by is not None)

    async def run(self) -> None:
        """Until cancelled. The kubelet keeps the devices as unhealthy until the next agent registers them."""
        loop = asyncio.get_running_loop()
        self._sweep()
        try:
            while True:
                self._wake.clear()
                self._follow_offer()
                self._glance(loop.time())
                away = len(self.registered) < len(self._plugins)
                timer = loop.call_later(_LOOK_OUT if away else _LOOK, self._wake.set)  # a third of what wait_for costs
                await self._wake.wait()
                timer.cancel()
        finally:
            await self._end()

    def _sweep(self) -> None:
        """Removes the sockets of an agent before us, which nobody answers."""
        for path in self._folder.glob(f"{_PREFIX}*{_SUFFIX}"):
            path.unlink(missing_ok=True)

    async def _end(self) -> None:
        tasks = [plugin.task for plugin in self._plugins.values() if plugin.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        servers = [plugin.server for plugin in self._plugins.values() if plugin.server is not None]
        await asyncio.gather(*self._leaving, *(server.stop() for server in servers), return_exceptions=True)
        self._plugins.clear()

    # --- what is offered -----------------------------------------------------------------------------------------

    def _follow_offer(self) -> None:
        for resource in self._plugins.keys() - self._wanted.keys():
            leaving = asyncio.create_task(self._withdraw(self._plugins.pop(resource)))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
        for resource, tokens in self._wanted.items():
            plugin = self._plugins.get(resource)
            if plugin is None:
                self._plugins[resource] = _Plugin(resource, tokens, render_devices(tokens))
            elif plugin.tokens is not tokens and plugin.tokens != tokens:
                plugin.tokens, plugin.devices = tokens, render_devices(tokens)
                if plugin.server is not None:
                    plugin.server.publish(plugin.devices)

    async def _withdraw(self, plugin: _Plugin) -> None:
        """An empty list first: of a plugin that merely ends, the kubelet keeps the capacity for five minutes."""
        log.info("resource withdrawn", extra={"data": {"resource": plugin.resource}})
        if plugin.task is not None:
            plugin.task.cancel()
            await asyncio.gather(plugin.task, return_exceptions=True)
        if plugin.server is not None:
            plugin.server.publish(render_devices(()))
            await plugin.server.stop()

    # --- the kubelet ---------------------------------------------------------------------------------------------

    def _glance(self, now: float) -> None:
        """While all are registered and watched, and nothing came into the folder or went, there is nothing to do."""
        try:
            stamp: int | None = os.stat(self._folder).st_mtime_ns
        except OSError:
            stamp = None
        settled = all(
            plugin.accepted_by is not None and plugin.server is not None and plugin.server.watchers
            for plugin in self._plugins.values()
        )
        if stamp is None or stamp != self._stamp or not settled:
            self._look(now)
        # What comes within one tick of the clock that stamps files is looked for once more.
        self._stamp = stamp if stamp == self._before else None
        self._before = stamp

    def _look(self, now: float) -> None:
        """Starts what is to be done for each plugin, one thing at a time."""
        kubelet = _identity(self._kubelet)
        self._miss(now, gone=kubelet is None)
        if kubelet is not None and kubelet != self._last:
            self.restarts += self._last is not None
            self._last = kubelet
        for plugin in self._plugins.values():
            if plugin.task is not None and not plugin.task.done():
                continue
            if plugin.accepted_by is not None:
                there = plugin.server is not None and plugin.server.is_there
                if plugin.accepted_by == kubelet and there and not plugin.is_lost(now):
                    continue
                plugin.accepted_by = None
                self._changed()
            if kubelet is None:
                continue
            if kubelet != plugin.tried:
                plugin.tried, plugin.attempts, plugin.due = kubelet, 0, now
            if now >= plugin.due:
                plugin.task = asyncio.create_task(self._introduce(plugin, kubelet))

    def _miss(self, now: float, *, gone: bool) -> None:
        """Says once, each time that it stays away, that there is no kubelet."""
        if not gone:
            self._missed_at = None
        elif self._missed_at is None:
            self._missed_at = now + _MISSED
        elif now >= self._missed_at:
            self._missed_at = float("inf")
            fix = "start the kubelet, or name its folder with --kubelet-dir (in a Pod, mount it there)"
            log.warning("no kubelet is there", extra={"data": {"socket": str(self._kubelet), "fix": fix}})

    async def _introduce(self, plugin: _Plugin, kubelet: Identity) -> None:
        """Serves the plugin where it is not served, and registers it with that kubelet."""
        loop = asyncio.get_running_loop()
        told = {"resource": plugin.resource}
        try:
            server = await self._serve(plugin)
            await register(self._folder, resource=plugin.resource, endpoint=server.path.name)
        except Exception as error:  # the kubelet's, or ours (no room for a socket, say): the next try may do
            plugin.attempts += 1
            plugin.due = loop.time() + back_off(plugin.attempts, first=_FIRST_RETRY, longest=_LAST_RETRY)
            why = str(error) if isinstance(error, KubeletError) else f"{type(error).__name__}: {error}"
            if why != plugin.why:  # once, not every few seconds for as long as the kubelet is away
                plugin.why = why
                trace = None if isinstance(error, KubeletError) else error
                log.warning("not registered", extra={"data": {**told, "why": why}}, exc_info=trace)
            return
        if _identity(self._kubelet) != kubelet:
            return  # it has started anew meanwhile, and which of the two has answered is not known: the next look asks
        log.info("registered", extra={"data": {**told, "devices": len(plugin.tokens)}})
        plugin.accepted_by, plugin.watched_at = kubelet, loop.time()
        plugin.attempts, plugin.why = 0, ""
        self._changed()

    async def _serve(self, plugin: _Plugin) -> PluginServer:
        if plugin.server is not None:
            if plugin.server.is_there:
                return plugin.server
            old, plugin.server = plugin.server, None
            await old.stop()
        name = f"{_PREFIX}{plugin.resource.rpartition('/')[2]}-{next(self._number)}{_SUFFIX}"
        server = PluginServer(plugin.resource, self._folder / name, self._desk)
        server.publish(plugin.devices)
        plugin.server = server  # from here on it hears of changes
        await server.start()
        return server


def _identity(path: Path) -> Identity | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
