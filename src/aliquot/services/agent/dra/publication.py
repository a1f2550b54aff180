"""Publishes the node's ResourceSlices, and deletes them.

Level-triggered: what is wanted is compared with what the API server has, which a watch reports. Others delete slices
too: the kubelet does half a minute after it lost the driver, and an administrator may at any time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.adapters.kubernetes.reflector import Reflector
from aliquot.dialects.dra import DRIVER, SLICES
from aliquot.dialects.dra.slices import PublishedSlice, generation_of, is_published, render_slices
from aliquot.model.decoding.openjson import JsonObject

log = logging.getLogger(__name__)


class SlicePublisher:
    """A reflector's sink for the slices of one node. It calls `changed` when they have changed."""

    def __init__(self, kube: Kube, node: str, *, changed: Callable[[], None]) -> None:
        self._kube, self._node, self._changed = kube, node, changed
        self._slices: dict[str, PublishedSlice] = {}
        selector = {"fieldSelector": f"spec.nodeName={node},spec.driver={DRIVER}"}
        self.reflector = Reflector(kube, SLICES, PublishedSlice, self, params=selector)
        self.problem = ""

    # --- reflector sink -----------------------------------------------------------------------------------------

    def listing(self) -> None: ...

    def changed(self, item: PublishedSlice) -> None:
        self._slices[item.metadata.name] = item
        self._changed()

    def gone(self, key: str) -> None:
        self._slices.pop(key, None)
        self._changed()

    def listed(self, drift: int) -> None:
        self._changed()

    # --- writing ------------------------------------------------------------------------------------------------

    @property
    def published(self) -> list[PublishedSlice]:
        """The slices that the API server has."""
        return [self._slices[name] for name in sorted(self._slices)]

    @property
    def known(self) -> bool:
        """Whether the slices were read."""
        return self.reflector.synced.is_set()

    def has(self, devices: Sequence[JsonObject]) -> bool:
        """Whether exactly these devices are published."""
        return self.known and is_published(self.published, devices)

    async def publish(self, devices: Sequence[JsonObject], node_uid: str) -> None:
        """Make the slices have exactly these devices. If that fails, the next call tries again."""
        if not self.known or self.has(devices):
            return
        try:
            await self._write(devices, node_uid)
        except (ApiError, Unreachable) as error:
            if str(error) != self.problem:
                fix = "the account needs get, list, watch, create, update and delete on resourceslices"
                log.warning("slices_not_published", extra={"data": {"why": str(error), "fix": fix}})
            self.problem = str(error)
            return
        self.problem = ""
        data = {"devices": len(devices), "generation": generation_of(self.published)}
        log.info("slices_published", extra={"data": data})

    async def _write(self, devices: Sequence[JsonObject], node_uid: str) -> None:
        there = self.published
        wanted = render_slices(self._node, node_uid, devices, generation_of(there) + 1)
        for at, item in enumerate(wanted):
            if at < len(there):
                before = there[at].metadata
                item["metadata"] |= {"name": before.name, "resourceVersion": before.resource_version}
                written = await self._kube.replace(f"{SLICES}/{before.name}", item, into=PublishedSlice)
            else:
                written = await self._kube.create(SLICES, item, into=PublishedSlice)
            self.reflector.observe(written)
        for surplus in there[len(wanted) :]:
            await self._delete(surplus.metadata.name)

    async def _delete(self, name: str) -> None:
        try:
            await self._kube.delete(f"{SLICES}/{name}", into=bytes)
        except ApiError as error:
            if error.status != 404:
                raise

    async def run(self) -> None:
        """Follow the slices until cancelled."""
        await self.reflector.run()


async def wait_changed(event: asyncio.Event, seconds: float) -> None:
    """Until the event is set, or so many seconds have passed; clears it."""
    timer = asyncio.get_running_loop().call_later(seconds, event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()
    event.clear()
