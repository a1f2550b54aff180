"""Follows the cluster's ResourceSlices: DRA drivers publish cards by them (dialects/wire/otherplugins.py).

A cluster may serve no version of them (before Kubernetes 1.32), or our role may not read them: then no driver is known,
and that is asked again from time to time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.adapters.kubernetes.reflector import Reflector
from aliquot.dialects.wire.otherplugins import GROUP, SliceObject, served_version
from aliquot.services.scheduler.cluster import Cluster

log = logging.getLogger(__name__)

_RETRY = 1.0  # seconds, while the API server does not answer
_SELDOM = 600.0  # seconds, while it serves no ResourceSlices


class SliceSink:
    """Applies ResourceSlices. `reread` reports all Nodes again: a slice may select any of them by its labels."""

    def __init__(self, cluster: Cluster, reread: Callable[[], None]) -> None:
        self._cluster, self._reread = cluster, reread
        self._all = self._listing = False

    def listing(self) -> None:
        self._listing = True

    def changed(self, item: SliceObject) -> None:
        self._apply(self._cluster.reported.drivers.put(item))

    def gone(self, key: str) -> None:
        self._apply(self._cluster.reported.drivers.drop(key))

    def listed(self, drift: int) -> None:
        self._listing = False
        if self._all:
            self._apply(None)

    def _apply(self, nodes: frozenset[str] | None) -> None:
        if nodes is not None:
            for name in nodes:
                self._cluster.show_again(name)
            return
        self._all = self._listing
        if not self._listing:
            self._reread()


class ResourceSlices:
    """See the head of the file."""

    def __init__(self, kube: Kube, sink: SliceSink) -> None:
        self.answered = asyncio.Event()  # the slices are known, or the API server has none for us
        self._kube = kube
        self._reflector = Reflector(kube, "", SliceObject, sink)

    async def run(self) -> None:
        """Follow the ResourceSlices until cancelled."""
        while True:
            try:
                group: Any = await self._kube.get(GROUP)
            except ApiError as error:  # 404: no such group; 403: discovery is closed to us
                log.info("no_resource_slices", extra={"data": {"why": str(error)}})
                await self._without()
                continue
            except Unreachable:
                await asyncio.sleep(_RETRY)
                continue
            version = served_version(group)
            if version is None:
                await self._without()
                continue
            await self._follow(f"{GROUP}/{version}/resourceslices")

    async def _without(self) -> None:
        self.answered.set()
        await asyncio.sleep(_SELDOM)

    async def _follow(self, path: str) -> None:
        """Until cancelled, or until the API server refuses the first list."""
        self._reflector.follow(path)
        await self._reflector.run_if_readable(self.answered.set)
        fix = "the account needs list and watch on resourceslices (resource.k8s.io): upgrade the chart"
        log.warning("resource_slices_not_readable", extra={"data": {"path": path, "fix": fix}})
        await self._without()
