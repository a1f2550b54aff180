"""One device plugin, as the kubelet sees it: a gRPC server on a socket in its folder.

    register     we call the kubelet; before it answers it has connected back, so the server must be there already
    GetDevicePluginOptions   PreStartContainer is wanted: only then is it known which Pod holds the devices
    ListAndWatch             the devices, now and after every change. While the kubelet listens, the plugin is there
    Allocate                 when a Pod is admitted: devices by ID, not a word about the Pod
    PreStartContainer        before each start of a container, first or later

An exception `Refused` reaches the user: the kubelet shows its text as the reason why the container does not start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

import grpc
from grpc import aio

from aliquot.adapters.kubelet import deviceplugin_pb2 as wire
from aliquot.adapters.kubelet.channel import LARGEST_MESSAGE, KubeletError, dial, failed
from aliquot.model.edits import Mount

log = logging.getLogger(__name__)

KUBELET_SOCKET = "kubelet.sock"

_VERSION = "v1beta1"
_OPTIONS = wire.DevicePluginOptions(pre_start_required=True)
_PATIENCE = 10.0  # seconds for the kubelet to connect back and answer, as long as it waits itself
_GRACE = 1.0  # seconds for the kubelet to read the last list; then it hangs up by itself


class Refused(Exception):
    """The container may not start; the text says why, for its user."""


class Device(Protocol):
    """One device of a plugin."""

    @property
    def id(self) -> str: ...
    @property
    def healthy(self) -> bool: ...
    @property
    def numa(self) -> int | None: ...


class Answer(Protocol):
    """What a container gets with its devices."""

    @property
    def cdi(self) -> Sequence[str]: ...
    @property
    def env(self) -> Mapping[str, str]: ...
    @property
    def mounts(self) -> Sequence[Mount]: ...


class Desk(Protocol):
    """Who decides. Both may raise Refused."""

    def allocate(self, resource: str, ids: frozenset[str]) -> Answer: ...
    async def prepare(self, resource: str, ids: frozenset[str]) -> None: ...


async def register(folder: Path, *, resource: str, endpoint: str) -> None:
    """Tells the kubelet of a plugin that is served at `endpoint` in its folder. Raises KubeletError."""
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
            raise failed(f"registering {resource}", socket, error) from error


class PluginServer:
    """Serves one resource, from `start` to `stop`, once."""

    def __init__(self, resource: str, path: Path, desk: Desk) -> None:
        self.path = path
        self.watchers = 0  # kubelets that listen: one, or none while it is away
        self._resource, self._desk = resource, desk
        self._devices = b""
        self._news = asyncio.Event()
        self._ending = False
        self._server: aio.Server | None = None

    async def start(self) -> None:
        """Serves from now on. Raises KubeletError."""
        server = aio.server(options=[("grpc.max_receive_message_length", LARGEST_MESSAGE)])
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(f"{_VERSION}.DevicePlugin", self._methods()),)
        )
        try:
            server.add_insecure_port(f"unix:{self.path}")
            await server.start()
        except (RuntimeError, OSError) as error:
            raise KubeletError(f"cannot serve {self._resource} at {self.path}: {error}") from error
        self._server = server

    async def stop(self) -> None:
        """Ends the kubelet's watch, and removes the socket. What is asked meanwhile, the next plugin is asked again."""
        self._ending = True
        self._news.set()
        if self._server is not None:
            await self._server.stop(_GRACE)
        self.path.unlink(missing_ok=True)

    def publish(self, devices: bytes) -> None:
        """What the kubelet is to know from now on, as `render_devices` makes it."""
        self._devices = devices
        told, self._news = self._news, asyncio.Event()
        told.set()

    @property
    def is_there(self) -> bool:
        """Whether the socket is still in the folder: a kubelet that starts removes all it finds."""
        return self._server is not None and self.path.exists()

    # --- what the kubelet calls ----------------------------------------------------------------------------------

    def _methods(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        unary = grpc.unary_unary_rpc_method_handler
        return {
            "GetDevicePluginOptions": unary(
                self._options, wire.Empty.FromString, wire.DevicePluginOptions.SerializeToString
            ),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                self._watch,
                wire.Empty.FromString,
                bytes,  # packed once, however often it is sent
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
        self.watchers += 1
        try:
            while True:
                news = self._news  # taken before the devices: what changes while they are sent is news
                yield self._devices
                await news.wait()
                if self._ending and news is self._news:
                    return
        finally:
            self.watchers -= 1

    async def _allocate(
        self, request: wire.AllocateRequest, context: aio.ServicerContext[Any, Any]
    ) -> wire.AllocateResponse:
        try:
            answers = [
                self._desk.allocate(self._resource, frozenset(request.devices_ids))
                for request in request.container_requests
            ]
        except Exception as error:
            await self._refuse(context, "Allocate", error)
        return wire.AllocateResponse(container_responses=map(_container, answers))

    async def _prepare(
        self, request: wire.PreStartContainerRequest, context: aio.ServicerContext[Any, Any]
    ) -> wire.PreStartContainerResponse:
        try:
            await self._desk.prepare(self._resource, frozenset(request.devices_ids))
        except Exception as error:
            await self._refuse(context, "PreStartContainer", error)
        return wire.PreStartContainerResponse()

    async def _refuse(self, context: aio.ServicerContext[Any, Any], call: str, error: Exception) -> NoReturn:
        """Ends the call: with the reason, or with what went wrong in us, which is in the log in full."""
        if isinstance(error, Refused):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        log.error(
            "a call of the kubelet failed", extra={"data": {"call": call, "resource": self._resource}}, exc_info=error
        )
        await context.abort(grpc.StatusCode.INTERNAL, f"the agent failed in {call}: {type(error).__name__}: {error}")


def render_devices(devices: Iterable[Device]) -> bytes:
    """A ListAndWatchResponse of these. Twenty thousand take a while, so it is kept for when the kubelet comes back."""
    return wire.ListAndWatchResponse(devices=map(_device, devices)).SerializeToString()


def _device(device: Device) -> wire.Device:
    topology = None if device.numa is None else wire.TopologyInfo(nodes=[wire.NUMANode(ID=device.numa)])
    return wire.Device(ID=device.id, health="Healthy" if device.healthy else "Unhealthy", topology=topology)


def _container(answer: Answer) -> wire.ContainerAllocateResponse:
    return wire.ContainerAllocateResponse(
        envs=answer.env,
        mounts=[
            wire.Mount(container_path=mount.container, host_path=mount.host, read_only=not mount.writable)
            for mount in answer.mounts
        ],
        cdi_devices=[wire.CDIDevice(name=name) for name in answer.cdi],
    )
