"""Which container holds which devices, by the kubelet's PodResources API.

It lists app containers and sidecars; ordinary init containers it does not know, nor Pod UIDs (see checkpoint.py). It
answers a hundred calls a second and refuses more: those who ask while a call is under way share the next one, and what
is refused is asked again, later each time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc import aio

from aliquot.adapters.kubelet import podresources_pb2 as wire
from aliquot.adapters.kubelet.channel import dial, failed

_LIST = "/v1.PodResourcesLister/List"
_AGAIN = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)  # too fast; restarting
_TRIES = 10  # with the pauses between them some five seconds: PreStartContainer has thirty
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
_PATIENCE = 5.0  # seconds for one call


@dataclass(frozen=True, slots=True)
class Holder:
    """A container, and the IDs of the devices it holds, by resource."""

    namespace: str
    name: str
    container: str
    devices: Mapping[str, frozenset[str]]


class PodResources:
    """The API at that socket. `close` ends it."""

    def __init__(
        self,
        socket: Path,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._socket, self._sleep, self._chance = socket, sleep, chance
        self._channel: aio.Channel | None = None
        self._running: asyncio.Task[list[Holder]] | None = None
        self._next: asyncio.Task[list[Holder]] | None = None

    async def holders(self) -> list[Holder]:
        """All that hold devices, as it stands after this was called. Raises KubeletError."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._running))
            self._next.add_done_callback(_seen)
        return await asyncio.shield(self._next)  # who asked may give up; the others want the answer still

    async def close(self) -> None:
        """Ends what is under way."""
        for task in (self._running, self._next):
            if task is not None:
                task.cancel()
        if self._channel is not None:
            await self._channel.close()

    async def _after(self, before: asyncio.Task[list[Holder]] | None) -> list[Holder]:
        """The call that is made when the one under way has ended; who asks from then on waits for one more."""
        if before is not None:
            await asyncio.wait({before})  # however it ended: that is for those who asked then
        self._running, self._next = self._next, None
        return await self._list()

    async def _list(self) -> list[Holder]:
        if self._channel is None:
            self._channel = dial(self._socket)
        call = self._channel.unary_unary(
            _LIST,
            request_serializer=wire.ListPodResourcesRequest.SerializeToString,
            response_deserializer=wire.ListPodResourcesResponse.FromString,
        )
        for attempt in range(_TRIES):
            try:
                return _holders(await call(wire.ListPodResourcesRequest(), timeout=_PATIENCE))
            except aio.AioRpcError as error:
                if error.code() not in _AGAIN or attempt == _TRIES - 1:
                    raise failed("asking which Pods hold devices", self._socket, error) from error
            longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0**attempt)
            await self._sleep(longest * (0.5 + self._chance() / 2))
        raise AssertionError("the last try returns or raises")


def _seen(task: asyncio.Task[list[Holder]]) -> None:
    """Where all who asked have given up, nobody is left to hear of the failure."""
    if not task.cancelled():
        task.exception()


def _holders(answer: wire.ListPodResourcesResponse) -> list[Holder]:
    found = []
    for pod in answer.pod_resources:
        for container in pod.containers:
            devices: dict[str, set[str]] = {}
            for device in container.devices:  # the kubelet writes one for each device
                devices.setdefault(device.resource_name, set()).update(device.device_ids)
            if devices:
                held = {resource: frozenset(ids) for resource, ids in devices.items()}
                found.append(Holder(pod.namespace, pod.name, container.name, held))
    return found
