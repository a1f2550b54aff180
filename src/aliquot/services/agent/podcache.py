"""The Pods of one node, as the watch tells them and as they are asked for; and who is told when one of them ends."""

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


class Shelf:
    """A reflector's sink. `ended` is told the UID of a Pod that is gone, or has run to its end, or was made anew."""

    def __init__(
        self,
        kube: Kube,
        node: str,
        *,
        ended: Callable[[str], None],
        runs: Callable[[str], None],
        patience: float = 5.0,  # seconds; the kubelet waits for thirty
    ) -> None:
        self.reflector: Reflector[PodObject] | None = None  # set by whoever joins the two
        self._kube, self._node = kube, node
        self._ended, self._runs, self._patience = ended, runs, patience
        self._by_name: dict[str, PodObject] = {}
        self._names: dict[str, str] = {}  # by UID

    def __iter__(self) -> Iterator[PodObject]:
        return iter(list(self._by_name.values()))

    def named(self, namespace: str, name: str) -> PodObject | None:
        """The Pod of that name, as far as we were told."""
        return self._by_name.get(f"{namespace}/{name}")

    def by_uid(self, uid: str) -> PodObject | None:
        """The Pod with that UID."""
        return self._by_name.get(self._names.get(uid, ""))

    async def fetch(self, namespace: str, name: str) -> PodObject:
        """The Pod as the API server has it now; one of another node is told, but not kept: no watch would tell of its
        end. Raises ApiError, Unreachable."""
        pod: PodObject = await self._kube.get(f"/api/v1/namespaces/{namespace}/pods/{name}", into=PodObject)
        if self.reflector is not None and pod.spec.node_name == self._node:
            self.reflector.hear(pod)
        return pod

    async def refresh(self) -> None:
        """Compare with the API server now; where it does not answer soon, what we know must do."""
        if self.reflector is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience):  # not wait_for: that may forget being cancelled
                    await self.reflector.relist()

    # --- what the reflector tells --------------------------------------------------------------------------------

    def listing(self) -> None: ...

    def changed(self, item: PodObject) -> None:
        uid, key = item.metadata.uid, key_of(item)
        before = self._by_name.get(key)
        if before is not None and before.metadata.uid != uid:
            self._forget(before)
        self._by_name[key], self._names[uid] = item, key
        (self._ended if item.finished else self._runs)(uid)

    def gone(self, key: str) -> None:
        before = self._by_name.pop(key, None)
        if before is not None:
            self._forget(before)

    def listed(self, drift: int) -> None: ...

    def _forget(self, pod: PodObject) -> None:
        self._names.pop(pod.metadata.uid, None)
        self._ended(pod.metadata.uid)
