"""A kubelet for tests: its sockets, device manager and PodResources over real gRPC, as kubelet 1.36 does it."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import grpc
from grpc import aio

from aliquot.adapters.kubelet import deviceplugin_pb2 as plugin
from aliquot.adapters.kubelet import podresources_pb2 as resources

Context = aio.ServicerContext[Any, Any]
T = TypeVar("T")


def play(scene: Coroutine[Any, Any, T]) -> T:
    """Run it to its end, which is not far off."""
    return asyncio.run(asyncio.wait_for(scene, 60))


@contextmanager
def a_folder() -> Iterator[Path]:
    """With a short name: that of a unix socket has no more than 107 characters."""
    with tempfile.TemporaryDirectory(prefix="kubelet-") as name:
        yield Path(name)


class Client:
    """The kubelet's end of one plugin."""

    def __init__(self, socket: Path) -> None:
        self.devices: dict[str, tuple[str, tuple[int, ...]]] = {}  # ID -> health and NUMA nodes
        self.lists = 0  # how often they were listed
        self.options = plugin.DevicePluginOptions()
        self.channel = aio.insecure_channel(
            f"unix:{socket}",
            options=[("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)],
        )

    def method(self, name: str, request: Any, response: Any) -> Any:
        return self.channel.unary_unary(
            f"/v1beta1.DevicePlugin/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )

    async def connect(self) -> None:
        call = self.method("GetDevicePluginOptions", plugin.Empty, plugin.DevicePluginOptions)
        self.options = await call(plugin.Empty(), timeout=10, wait_for_ready=True)

    async def listen(self) -> None:
        watch = self.channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=plugin.Empty.SerializeToString,
            response_deserializer=plugin.ListAndWatchResponse.FromString,
        )
        async for listed in watch(plugin.Empty()):
            self.devices = {
                device.ID: (device.health, tuple(node.ID for node in device.topology.nodes))
                for device in listed.devices
            }
            self.lists += 1


class FakeKubelet:
    """From `start` to `kill`, and again. With its folder, in which it leaves the same things behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clients: dict[str, Client] = {}
        self.registrations: list[tuple[str, str]] = []  # resource, endpoint
        self.refusals: list[str] = []  # what the next registrations are answered
        self._server: aio.Server | None = None
        self._listening: set[asyncio.Task[None]] = set()

    @property
    def resources(self) -> set[str]:
        """The resources whose plugin has listed its devices."""
        return {name for name, client in self.clients.items() if client.lists}

    async def start(self) -> None:
        for path in self.folder.iterdir():
            if path.is_socket():
                path.unlink()
        handler = grpc.unary_unary_rpc_method_handler(
            self._register, plugin.RegisterRequest.FromString, plugin.Empty.SerializeToString
        )
        self._server = aio.server()
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": handler}),)
        )
        self._server.add_insecure_port(f"unix:{self.folder / 'kubelet.sock'}")
        await self._server.start()

    async def kill(self) -> None:
        """End it as kill -9 does: the socket's file stays, and no process answers."""
        socket, kept = self.folder / "kubelet.sock", self.folder / "kept"
        os.link(socket, kept)
        for task in self._listening:
            task.cancel()
        await asyncio.gather(*self._listening, return_exceptions=True)
        for client in self.clients.values():
            await client.channel.close()
        self.clients.clear()
        assert self._server is not None
        await self._server.stop(None)
        kept.rename(socket)

    async def _register(self, request: plugin.RegisterRequest, context: Context) -> plugin.Empty:
        self.registrations.append((request.resource_name, request.endpoint))
        if self.refusals:
            await context.abort(grpc.StatusCode.UNKNOWN, self.refusals.pop(0))
        client = Client(self.folder / request.endpoint)
        self.clients[request.resource_name] = client
        await client.connect()
        task = asyncio.create_task(self._run(request.resource_name, client))
        self._listening.add(task)
        task.add_done_callback(self._listening.discard)
        return plugin.Empty()

    async def _run(self, resource: str, client: Client) -> None:
        with suppress(aio.AioRpcError):
            await client.listen()
        # As the real one: it drops whichever client has the name by now, which may be the successor.
        current = self.clients.pop(resource, None)
        if current is not None:
            await current.channel.close()

    async def allocate(self, resource: str, *ids: Iterable[str]) -> list[plugin.ContainerAllocateResponse]:
        call = self.clients[resource].method("Allocate", plugin.AllocateRequest, plugin.AllocateResponse)
        request = plugin.AllocateRequest(
            container_requests=[plugin.ContainerAllocateRequest(devices_ids=id_) for id_ in ids]
        )
        answer: plugin.AllocateResponse = await call(request, timeout=10)
        return list(answer.container_responses)

    async def prepare(self, resource: str, ids: Iterable[str]) -> None:
        call = self.clients[resource].method(
            "PreStartContainer", plugin.PreStartContainerRequest, plugin.PreStartContainerResponse
        )
        await call(plugin.PreStartContainerRequest(devices_ids=ids), timeout=30)


@asynccontextmanager
async def a_kubelet() -> AsyncIterator[FakeKubelet]:
    """A kubelet that runs, in a folder of its own."""
    with a_folder() as folder:
        kubelet = FakeKubelet(folder)
        await kubelet.start()
        try:
            yield kubelet
        finally:
            await kubelet.kill()


class FakePodResources:
    """The kubelet's PodResources. `failures` are the codes that the next calls end with."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.pods: list[resources.PodResources] = []
        self.calls = 0
        self.failures: list[grpc.StatusCode] = []
        self.gate: asyncio.Event | None = None  # answers wait for it
        self.garbage: bytes | None = None  # what calls are answered with instead
        self._server: aio.Server | None = None

    async def start(self) -> None:
        handler: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(
            self._list,
            resources.ListPodResourcesRequest.FromString,
            lambda answer: answer.SerializeToString() if self.garbage is None else self.garbage,
        )
        self._server = aio.server()
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler}),)
        )
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.stop(None)

    def hold(self, pod: str, container: str, held: Mapping[str, Iterable[str]]) -> None:
        """The container of the Pod holds these, reported as the kubelet does: one entry for each device."""
        devices = [
            resources.ContainerDevices(resource_name=resource, device_ids=[id_])
            for resource, ids in held.items()
            for id_ in ids
        ]
        containers = [resources.ContainerResources(name=container, devices=devices)]
        self.pods.append(resources.PodResources(name=pod, namespace="ns", containers=containers))

    async def _list(self, request: object, context: Context) -> resources.ListPodResourcesResponse:
        self.calls += 1
        if self.failures:
            await context.abort(self.failures.pop(0), "rejected by rate limit")
        answer = resources.ListPodResourcesResponse(pod_resources=self.pods)
        if self.gate is not None:
            await self.gate.wait()
        return answer
