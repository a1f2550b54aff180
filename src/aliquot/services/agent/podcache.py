"""Cache of the node's Pods, fed by a watch. Calls back when a Pod ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from aliquot.adapters.kubernetes.reflector import key_of
from aliquot.dialects.wire.objects import PodObject

if TYPE_CHECKING:
    from aliquot.adapters.kubernetes.kube import Kube
    from aliquot.adapters.kubernetes.reflector import Reflector


class PodCache:
    """A reflector's sink. `on_ended` gets the UID of a Pod that was deleted, finished, or replaced by one of the same
    name; `on_running` that of a Pod that has not ended."""

    def __init__(
        self,
        kube: Kube,
        node: str,
        *,
        on_ended: Callable[[str], None],
        on_running: Callable[[str], None],
        patience: float = 5.0,  # seconds; the kubelet waits thirty for PreStartContainer
    ) -> None:
        self.reflector: Reflector[PodObject] | None = None  # set by the agent, after both exist
        self._kube, self._node = kube, node
        self._on_ended, self._on_running, self._patience = on_ended, on_running, patience
        self._by_name: dict[str, PodObject] = {}
        self._names: dict[str, str] = {}  # by UID

    def __iter__(self) -> Iterator[PodObject]:
        return iter(list(self._by_name.values()))

    def named(self, namespace: str, name: str) -> PodObject | None:
        """The cached Pod of that name."""
        return self._by_name.get(f"{namespace}/{name}")

    def by_uid(self, uid: str) -> PodObject | None:
        """The cached Pod with that UID."""
        return self._by_name.get(self._names.get(uid, ""))

    async def fetch(self, namespace: str, name: str) -> PodObject:
        """The Pod as the API server has it now. One of another node is not cached: our watch would not report its end.
        Raises ApiError, Unreachable."""
        pod: PodObject = await self._kube.get(f"/api/v1/namespaces/{namespace}/pods/{name}", into=PodObject)
        if self.reflector is not None and pod.spec.node_name == self._node:
            self.reflector.observe(pod)
        return pod

    async def refresh(self) -> None:
        """List the Pods again. If the API server does not answer in time, the cache stays as it is."""
        if self.reflector is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience):  # not wait_for: that may forget being cancelled
                    await self.reflector.relist()

    # --- reflector sink -----------------------------------------------------------------------------------------

    def listing(self) -> None: ...

    def changed(self, item: PodObject) -> None:
        uid, key = item.metadata.uid, key_of(item)
        before = self._by_name.get(key)
        if before is not None and before.metadata.uid != uid:
            self._forget(before)
        self._by_name[key], self._names[uid] = item, key
        (self._on_ended if item.finished else self._on_running)(uid)

    def gone(self, key: str) -> None:
        before = self._by_name.pop(key, None)
        if before is not None:
            self._forget(before)

    def listed(self, drift: int) -> None: ...

    def _forget(self, pod: PodObject) -> None:
        self._names.pop(pod.metadata.uid, None)
        self._on_ended(pod.metadata.uid)
