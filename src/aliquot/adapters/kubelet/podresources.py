"""Client of the kubelet's PodResources API: which container holds which devices.

The API lists app containers and sidecars, but neither ordinary init containers nor Pod UIDs (see checkpoint.py). The
kubelet refuses more than a hundred calls a second. Therefore callers that come while a call is running share the next
one, and refused calls are retried with a growing pause.
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
from aliquot.adapters.kubelet.channel import KubeletError, dial, kubelet_error
from aliquot.model.numbers.backoff import backoff

_LIST = "/v1.PodResourcesLister/List"
_RETRIED = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)  # rate limit; kubelet restarting
_TRIES = 10  # about five seconds with the pauses; the kubelet gives PreStartContainer thirty
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
_PATIENCE = 5.0  # seconds for one call

DRIVER = "DRA driver "


@dataclass(frozen=True, slots=True)
class Holder:
    """A container with the IDs of the devices it holds, by resource; those of DRA by `DRIVER` and the driver's name."""

    namespace: str
    name: str
    container: str
    devices: Mapping[str, frozenset[str]]


class PodResources:
    """The API at `socket`."""

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
        """All containers that hold devices, read after this call was made. Raises KubeletError."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._running))
            self._next.add_done_callback(_retrieve_exception)
        return await asyncio.shield(self._next)  # a cancelled caller must not cancel the call of the others

    async def close(self) -> None:
        """Cancel running calls and close the channel."""
        for task in (self._running, self._next):
            if task is not None:
                task.cancel()
        if self._channel is not None:
            await self._channel.close()

    async def _after(self, before: asyncio.Task[list[Holder]] | None) -> list[Holder]:
        """Call once the running call has ended. Later callers wait for one more call."""
        if before is not None:
            await asyncio.wait({before})  # its result belongs to earlier callers
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
                return _holders(self._readable(await call(wire.ListPodResourcesRequest(), timeout=_PATIENCE)))
            except aio.AioRpcError as error:
                if error.code() not in _RETRIED or attempt == _TRIES - 1:
                    raise kubelet_error("listing PodResources", self._socket, error) from error
            pause = backoff(attempt + 1, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE, chance=self._chance())
            await self._sleep(pause)
        raise AssertionError("unreachable: the last try returns or raises")

    def _readable(self, answer: wire.ListPodResourcesResponse | None) -> wire.ListPodResourcesResponse:
        """gRPC returns None for bytes that are no answer."""
        if answer is None:
            raise KubeletError(f"listing PodResources at {self._socket}: the answer cannot be read")
        return answer


def _retrieve_exception(task: asyncio.Task[list[Holder]]) -> None:
    """When every caller was cancelled, the task is not awaited: avoid asyncio's warning about that."""
    if not task.cancelled():
        task.exception()


def _holders(response: wire.ListPodResourcesResponse) -> list[Holder]:
    found = []
    for pod in response.pod_resources:
        for container in pod.containers:
            devices: dict[str, set[str]] = {}
            for device in container.devices:  # the kubelet sends one entry per device
                devices.setdefault(device.resource_name, set()).update(device.device_ids)
            for claim in (claim for dynamic in container.dynamic_resources for claim in dynamic.claim_resources):
                devices.setdefault(f"{DRIVER}{claim.driver_name}", set()).add(claim.device_name)
            if devices:
                held = {resource: frozenset(ids) for resource, ids in devices.items()}
                found.append(Holder(pod.namespace, pod.name, container.name, held))
    return found
