"""One device plugin: a gRPC server on a socket in the kubelet's device-plugins folder.

    register                 we call the kubelet. It connects back before it answers, so the server must listen already
    GetDevicePluginOptions   asks for PreStartContainer: only then is it known which Pod holds the devices
    ListAndWatch             streams the devices, now and after every change, for as long as the plugin is registered
    Allocate                 when a Pod is admitted: device IDs, but not the Pod
    PreStartContainer        before each start of a container, also after a restart

The text of `Refused` reaches the user: the kubelet shows it as the reason why the container does not start.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

import grpc
from grpc import aio

from aliquot.adapters.kubelet import deviceplugin_pb2 as wire
from aliquot.adapters.kubelet.channel import LARGEST_MESSAGE, KubeletError, dial, kubelet_error
from aliquot.model.containers.edits import Mount

log = logging.getLogger(__name__)

KUBELET_SOCKET = "kubelet.sock"

_VERSION = "v1beta1"
_OPTIONS = wire.DevicePluginOptions(pre_start_required=True)
_PATIENCE = 10.0  # seconds for the kubelet to connect back and answer, as long as it waits itself
_MOST_WATCHES = 8  # each holds a whole list; the kubelet has one, and for a moment two when we register again
_MOST_CONTAINERS = 1024  # in one Allocate; the kubelet sends one
_GRACE = 1.0  # seconds for the kubelet to read the last list; then it hangs up by itself


class Refused(Exception):
    """The container may not start. The text says why."""


class Device(Protocol):
    """One device of a plugin."""

    @property
    def id(self) -> str: ...
    @property
    def healthy(self) -> bool: ...
    @property
    def numa(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a container gets with its devices."""

    cdi: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()


class AllocationHandler(Protocol):
    """Answers the kubelet's calls. Both methods may raise Refused."""

    def allocate(self, resource: str, ids: frozenset[str]) -> Allocation:
        """A Pod that gets these devices is being admitted. The kubelet does not say which Pod."""
        ...

    async def prepare(self, resource: str, ids: frozenset[str]) -> None:
        """A container that holds these devices is about to be created."""
        ...


async def register(folder: Path, *, resource: str, endpoint: str) -> None:
    """Register the plugin that listens at `endpoint` in the kubelet's folder. Raises KubeletError."""
    socket = folder / KUBELET_SOCKET
    request = wire.RegisterRequest(version=_VERSION, endpoint=endpoint, resource_name=resource, options=_OPTIONS)
    async with dial(socket) as channel:
        call = channel.unary_unary(
            f"/{_VERSION}.Registration/Register",
            request_serializer=wire.RegisterRequest.SerializeToString,
            response_deserializer=wire.Empty.FromString,
        )
        try:
            await call(request, timeout=_PATIENCE)
        except grpc.RpcError as error:
            raise kubelet_error(f"registering {resource}", socket, error) from error


class PluginServer:
    """Serves one resource from `start` to `stop`. It cannot be started again."""

    def __init__(
        self, resource: str, path: Path, handler: AllocationHandler, changed: Callable[[], None] = lambda: None
    ) -> None:
        self.path = path
        self.watchers = 0  # open ListAndWatch streams: one, or none while the kubelet is away
        self.left = False  # there was one, and there is none: `changed` runs when this changes
        self._resource, self._handler, self._tell = resource, handler, changed
        self._devices = b""
        self._changed = asyncio.Event()
        self._stopping = False
        self._server: aio.Server | None = None

    async def start(self) -> None:
        """Start to serve. Raises KubeletError."""
        server = aio.server(options=[("grpc.max_receive_message_length", LARGEST_MESSAGE)])
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(f"{_VERSION}.DevicePlugin", self._methods()),)
        )
        try:
            server.add_insecure_port(f"unix:{self.path}")
            os.chmod(self.path, 0o600)  # the kubelet is root, whatever our umask is
            await server.start()
        except (RuntimeError, OSError) as error:
            raise KubeletError(f"cannot serve {self._resource} at {self.path}: {error}") from error
        self._server = server

    async def stop(self) -> None:
        """End the kubelet's watch and remove the socket. The kubelet repeats calls that fail meanwhile."""
        self._stopping = True
        self._changed.set()
        if self._server is not None:
            await self._server.stop(_GRACE)
        self.path.unlink(missing_ok=True)

    def publish(self, devices: bytes) -> None:
        """Send this list, made by `render_devices`, to the kubelet now and whenever it connects."""
        self._devices = devices
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    @property
    def has_socket(self) -> bool:
        """Whether the socket is still in the folder: a kubelet that starts removes every socket it finds."""
        return self._server is not None and self.path.exists()

    # --- gRPC methods --------------------------------------------------------------------------------------------

    def _methods(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        unary = grpc.unary_unary_rpc_method_handler
        return {
            "GetDevicePluginOptions": unary(
                self._options, wire.Empty.FromString, wire.DevicePluginOptions.SerializeToString
            ),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                self._watch,
                wire.Empty.FromString,
                bytes,  # serialized once, however often it is sent
            ),
            "Allocate": unary(self._allocate, wire.AllocateRequest.FromString, wire.AllocateResponse.SerializeToString),
            "PreStartContainer": unary(
                self._prepare,
                wire.PreStartContainerRequest.FromString,
                wire.PreStartContainerResponse.SerializeToString,
            ),
        }

    async def _options(self, request: wire.Empty, context: aio.ServicerContext[Any, Any]) -> wire.DevicePluginOptions:
        return _OPTIONS

    async def _watch(self, request: wire.Empty, context: aio.ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
        if self.watchers >= _MOST_WATCHES:  # not those before: one of them is the kubelet's
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{_MOST_WATCHES} watch already")
        self._count(1)
        try:
            while True:
                changed = self._changed  # read before the devices: a change while they are sent must not be missed
                yield self._devices
                await changed.wait()
                if self._stopping and changed is self._changed:
                    return
        finally:
            self._count(-1)

    def _count(self, more: int) -> None:
        self.watchers += more
        left, self.left = self.left, not self.watchers
        if left != self.left:
            self._tell()

    async def _allocate(
        self, request: wire.AllocateRequest, context: aio.ServicerContext[Any, Any]
    ) -> wire.AllocateResponse:
        if len(request.container_requests) > _MOST_CONTAINERS:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"more than {_MOST_CONTAINERS} containers at once")
        try:
            allocations = [
                self._handler.allocate(self._resource, frozenset(container.devices_ids))
                for container in request.container_requests
            ]
        except Exception as error:
            await self._refuse(context, "Allocate", error)
        return wire.AllocateResponse(container_responses=map(_container, allocations))

    async def _prepare(
        self, request: wire.PreStartContainerRequest, context: aio.ServicerContext[Any, Any]
    ) -> wire.PreStartContainerResponse:
        try:
            await self._handler.prepare(self._resource, frozenset(request.devices_ids))
        except Exception as error:
            await self._refuse(context, "PreStartContainer", error)
        return wire.PreStartContainerResponse()

    async def _refuse(self, context: aio.ServicerContext[Any, Any], call: str, error: Exception) -> NoReturn:
        """Abort the call with the reason. An internal error is also logged with its traceback."""
        if isinstance(error, Refused):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        log.error("kubelet_call_failed", extra={"data": {"call": call, "resource": self._resource}}, exc_info=error)
        await context.abort(grpc.StatusCode.INTERNAL, f"internal error in {call}: {type(error).__name__}: {error}")


def render_devices(devices: Iterable[Device]) -> bytes:
    """Serialize a ListAndWatchResponse. That is slow for twenty thousand devices, so callers keep the result."""
    return wire.ListAndWatchResponse(devices=map(_device, devices)).SerializeToString()


def _device(device: Device) -> wire.Device:
    topology = None if device.numa is None else wire.TopologyInfo(nodes=[wire.NUMANode(ID=device.numa)])
    return wire.Device(ID=device.id, health="Healthy" if device.healthy else "Unhealthy", topology=topology)


def _container(allocation: Allocation) -> wire.ContainerAllocateResponse:
    return wire.ContainerAllocateResponse(
        envs=allocation.env,
        mounts=[
            wire.Mount(container_path=mount.container, host_path=mount.host, read_only=not mount.writable)
            for mount in allocation.mounts
        ],
        cdi_devices=[wire.CDIDevice(name=name) for name in allocation.cdi],
    )
