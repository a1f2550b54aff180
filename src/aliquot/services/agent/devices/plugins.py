"""Keeps one device plugin registered with the kubelet for each resource that the node offers.

    offer   sets the wanted resources. A new one is served, then registered. One that is no longer wanted publishes an
            empty list, then stops
    run     checks the sockets five times a second, and fifty times from the moment in which a kubelet ends its watch. A
            kubelet that starts creates a new kubelet.sock and removes our sockets: each plugin then listens on a new
            socket and registers again. Until then Pods bound to this node fail for good, so this happens at once

A kubelet that receives a second registration too soon confuses the new connection with the old one and drops the new
one. Therefore a plugin that is registered but has had no watch for a second registers again.

Every socket gets a new name: gRPC removes a socket's file some time after its server has stopped, and must not remove
the file of the successor.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aliquot.adapters.kubelet.channel import KubeletError
from aliquot.adapters.kubelet.deviceplugin import (
    KUBELET_SOCKET,
    Allocation,
    AllocationHandler,
    PluginServer,
    Refused,
    register,
    render_devices,
)
from aliquot.dialects.wire.advertising import Token
from aliquot.model.numbers.backoff import backoff
from aliquot.services.daemon.calls import Calls

__all__ = ["ALLOCATE", "PRESTART", "Allocation", "AllocationHandler", "Plugins", "Refused", "timed"]

log = logging.getLogger(__name__)

ALLOCATE, PRESTART = "allocate", "prestart"  # per resource: once per container; before each start of a container

_INTERVAL = 0.2  # seconds between two checks of the sockets
_INTERVAL_AWAY = 0.02  # the same while the kubelet is away: it is about to come back
_UNWATCHED = 1.0  # seconds without a watch after which a plugin counts as not registered
_FIRST_RETRY, _LAST_RETRY = 0.1, 5.0
_MISSING = 5.0  # seconds without a kubelet until we log it; a restart takes less
_PREFIX, _SUFFIX = "aliquot-", ".sock"

Identity = tuple[int, int]  # of a socket's file: inode and mtime, because inodes are reused


@dataclass(slots=True)
class _Plugin:
    """The device plugin of one resource."""

    resource: str
    tokens: Sequence[Token]
    devices: bytes  # the same as a ListAndWatchResponse
    server: PluginServer | None = None
    accepted_by: Identity | None = None  # the kubelet that accepted our registration
    tried: Identity | None = None  # the kubelet that we last tried to register with
    watched_at: float = 0.0
    attempts: int = 0
    problem: str = ""  # why the last registration failed, as logged
    due: float = 0.0
    task: asyncio.Task[None] | None = None

    @property
    def is_registered(self) -> bool:
        """Whether the kubelet has accepted us, and has not ended its watch since: it does when it dies."""
        return self.accepted_by is not None and self.server is not None and not self.server.left

    def is_lost(self, now: float) -> bool:
        """Whether the kubelet has dropped us without a restart."""
        if self.server is not None and self.server.watchers:
            self.watched_at = now
        return now - self.watched_at >= _UNWATCHED


class Plugins:
    """See the head of the file. `folder` is the kubelet's device-plugins; `changed` runs when `registered` changes."""

    def __init__(self, folder: Path, handler: AllocationHandler, *, changed: Callable[[], None] = lambda: None) -> None:
        self._folder, self._handler, self._changed = folder, handler, changed
        self._kubelet = folder / KUBELET_SOCKET
        self._wanted: dict[str, Sequence[Token]] = {}
        self._plugins: dict[str, _Plugin] = {}
        self._stopping: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._number = itertools.count(1)
        self._stamp: int | None = None  # mtime of the folder at the last check that found nothing to do
        self._before: int | None = None
        self._last: Identity | None = None  # the kubelet seen last
        self.restarts = 0  # of the kubelet, as far as we noticed
        self._missing_at: float | None = None  # when to log that there is no kubelet

    def offer(self, tokens: Mapping[str, Sequence[Token]]) -> None:
        """Set the wanted devices by resource. Resources that are not listed are withdrawn."""
        self._wanted = dict(tokens)
        self._wake.set()

    @property
    def registered(self) -> frozenset[str]:
        """The resources that the kubelet has accepted since it last started, and still has."""
        return frozenset(name for name, plugin in self._plugins.items() if plugin.is_registered)

    async def run(self) -> None:
        """Until cancelled. The kubelet keeps the devices as unhealthy until the next agent registers them."""
        loop = asyncio.get_running_loop()
        self._sweep()
        try:
            while True:
                self._wake.clear()
                self._apply_offer()
                self._check(loop.time())
                away = len(self.registered) < len(self._plugins)
                timer = loop.call_later(
                    _INTERVAL_AWAY if away else _INTERVAL, self._wake.set
                )  # a third of what wait_for costs
                await self._wake.wait()
                timer.cancel()
        finally:
            await self._stop()

    def _sweep(self) -> None:
        """Remove the sockets of an earlier agent."""
        for path in self._folder.glob(f"{_PREFIX}*{_SUFFIX}"):
            path.unlink(missing_ok=True)

    async def _stop(self) -> None:
        tasks = [plugin.task for plugin in self._plugins.values() if plugin.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        servers = [plugin.server for plugin in self._plugins.values() if plugin.server is not None]
        await asyncio.gather(*self._stopping, *(server.stop() for server in servers), return_exceptions=True)
        self._plugins.clear()

    # --- what is offered -----------------------------------------------------------------------------------------

    def _apply_offer(self) -> None:
        for resource in self._plugins.keys() - self._wanted.keys():
            stopping = asyncio.create_task(self._withdraw(self._plugins.pop(resource)))
            self._stopping.add(stopping)
            stopping.add_done_callback(self._stopping.discard)
        for resource, tokens in self._wanted.items():
            plugin = self._plugins.get(resource)
            if plugin is None:
                self._plugins[resource] = _Plugin(resource, tokens, render_devices(tokens))
            elif plugin.tokens is not tokens and plugin.tokens != tokens:
                plugin.tokens, plugin.devices = tokens, render_devices(tokens)
                if plugin.server is not None:
                    plugin.server.publish(plugin.devices)

    async def _withdraw(self, plugin: _Plugin) -> None:
        """Publish an empty list first: when a plugin just stops, the kubelet keeps its capacity for five minutes."""
        log.info("resource_withdrawn", extra={"data": {"resource": plugin.resource}})
        if plugin.task is not None:
            plugin.task.cancel()
            await asyncio.gather(plugin.task, return_exceptions=True)
        if plugin.server is not None:
            plugin.server.publish(render_devices(()))
            await plugin.server.stop()

    # --- the kubelet ---------------------------------------------------------------------------------------------

    def _check(self, now: float) -> None:
        """Do nothing while all plugins are registered and watched and no file appeared in the folder or vanished."""
        try:
            stamp: int | None = os.stat(self._folder).st_mtime_ns
        except OSError:
            stamp = None
        settled = all(
            plugin.accepted_by is not None and plugin.server is not None and plugin.server.watchers
            for plugin in self._plugins.values()
        )
        if stamp is None or stamp != self._stamp or not settled:
            self._renew(now)
        # Check once more: a file may have come within the same tick of the clock that stamps files.
        self._stamp = stamp if stamp == self._before else None
        self._before = stamp

    def _renew(self, now: float) -> None:
        """Start to register each plugin that is not registered, at most one task per plugin."""
        kubelet = _identity(self._kubelet)
        self._warn_missing(now, missing=kubelet is None)
        if kubelet is not None and kubelet != self._last:
            self.restarts += self._last is not None
            self._last = kubelet
        for plugin in self._plugins.values():
            if plugin.task is not None and not plugin.task.done():
                continue
            if plugin.accepted_by is not None:
                serves = plugin.server is not None and plugin.server.has_socket
                if plugin.accepted_by == kubelet and serves and not plugin.is_lost(now):
                    continue
                plugin.accepted_by = None
                self._changed()
            if kubelet is None:
                continue
            if kubelet != plugin.tried:
                plugin.tried, plugin.attempts, plugin.due = kubelet, 0, now
            if now >= plugin.due:
                plugin.task = asyncio.create_task(self._register(plugin, kubelet))

    def _warn_missing(self, now: float, *, missing: bool) -> None:
        """Log that there is no kubelet, once per absence."""
        if not missing:
            self._missing_at = None
        elif self._missing_at is None:
            self._missing_at = now + _MISSING
        elif now >= self._missing_at:
            self._missing_at = float("inf")
            fix = "start the kubelet, or set --kubelet-dir to its folder (in a Pod, mount it there)"
            log.warning("kubelet_missing", extra={"data": {"socket": str(self._kubelet), "fix": fix}})

    async def _register(self, plugin: _Plugin, kubelet: Identity) -> None:
        """Serve the plugin unless it is served already, and register it with that kubelet."""
        loop = asyncio.get_running_loop()
        try:
            server = await self._serve(plugin)
            await register(self._folder, resource=plugin.resource, endpoint=server.path.name)
        except Exception as error:  # of the kubelet or our own, such as a full disk: retry
            plugin.attempts += 1
            plugin.due = loop.time() + backoff(plugin.attempts, first=_FIRST_RETRY, longest=_LAST_RETRY)
            why = str(error) if isinstance(error, KubeletError) else f"{type(error).__name__}: {error}"
            if why != plugin.problem:  # once, not every few seconds for as long as the kubelet is away
                plugin.problem = why
                trace = None if isinstance(error, KubeletError) else error
                data = {"resource": plugin.resource, "why": why}
                log.warning("resource_not_registered", extra={"data": data}, exc_info=trace)
            return
        if _identity(self._kubelet) != kubelet:
            return  # the kubelet restarted meanwhile, and either of the two may have answered: register again
        log.info("resource_registered", extra={"data": {"resource": plugin.resource, "devices": len(plugin.tokens)}})
        plugin.accepted_by, plugin.watched_at = kubelet, loop.time()
        plugin.attempts, plugin.problem = 0, ""
        self._changed()

    def _watch_changed(self) -> None:
        self._wake.set()  # to look more often from now on
        self._changed()

    async def _serve(self, plugin: _Plugin) -> PluginServer:
        if plugin.server is not None:
            if plugin.server.has_socket:
                return plugin.server
            old, plugin.server = plugin.server, None
            await old.stop()
        name = f"{_PREFIX}{plugin.resource.rpartition('/')[2]}-{next(self._number)}{_SUFFIX}"
        server = PluginServer(plugin.resource, self._folder / name, self._handler, self._watch_changed)
        server.publish(plugin.devices)
        plugin.server = server  # from here on _apply_offer publishes changes to it
        await server.start()
        return server


def _identity(path: Path) -> Identity | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


class _Timed:
    """See `timed`."""

    def __init__(self, handler: AllocationHandler, calls: Calls, clock: Callable[[], float]) -> None:
        self._handler, self._calls, self._clock = handler, calls, clock

    def allocate(self, resource: str, ids: frozenset[str]) -> Allocation:
        with self._measured(ALLOCATE):
            return self._handler.allocate(resource, ids)

    async def prepare(self, resource: str, ids: frozenset[str]) -> None:
        with self._measured(PRESTART):
            await self._handler.prepare(resource, ids)

    @contextmanager
    def _measured(self, call: str) -> Iterator[None]:
        began, outcome = self._clock(), "error"
        try:
            yield
            outcome = "ok"
        except Refused:
            outcome = "refused"
            raise
        finally:
            self._calls.count(call, outcome, self._clock() - began)


def timed(handler: AllocationHandler, calls: Calls, clock: Callable[[], float]) -> AllocationHandler:
    """The same handler, with every call counted and timed in `calls`."""
    return _Timed(handler, calls, clock)
