"""The folders and sockets of a node, made of paper: an agent that only tells, a kubelet that only lists."""

from __future__ import annotations

import os
import platform
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc

from aliquot.adapters.kubelet import podresources_pb2 as wire
from aliquot.adapters.storage import shims
from aliquot.adapters.storage.podstore import PodStore
from aliquot.dialects.wire.cdi import render_spec
from aliquot.services.doctor.site import Places
from kit.agents.fakeagent import RunningControl
from kit.agents.nodesite import an_agent, the_spec
from kit.values.manifests import QGPU_CORE, QGPU_MEMORY

_MACHINES = {"x86_64": 62, "aarch64": 183}


class FakeNode:
    """The folders of a node on which an agent runs; with a kubelet that listens and tells who holds what."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.held = {QGPU_CORE: 30, QGPU_MEMORY: 4}  # by the one container
        self.places = Places(
            run=folder / "run",
            database=folder / "state" / "state.db",
            kubelet=folder / "kubelet",
            cdi=folder / "cdi",
            preload=folder / "ld.so.preload",
        )
        for made in ("run/t", "state", "kubelet/device-plugins", "kubelet/pod-resources", "cdi", "lib"):
            (folder / made).mkdir(parents=True)
        PodStore(self.places.database).close()
        self.install(_MACHINES[platform.machine()])
        self.agent = an_agent()
        about = self.agent.about
        about.pid, about.database = os.getpid(), str(self.places.database)
        about.kubelet, about.cdi = str(self.places.kubelet), str(self.places.cdi)

    def install(self, machine: int) -> None:
        """The shim, for a machine of that number."""
        head = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00" + machine.to_bytes(2, "little")
        (self.folder / "lib" / shims.LIBRARY).write_bytes(head.ljust(64, b"\0"))
        name = {number: name for name, number in _MACHINES.items()}[machine]
        shims.install(self.folder / "lib", self.places.database.parent, "1", machine=name)

    def tenant(self, uid: str, pod: str = "train") -> Path:
        """A Pod's folder and spec; the spec's path."""
        (self.places.run / "t" / uid).mkdir()
        spec = the_spec(uid=uid, pod=pod)
        path = self.folder / "cdi" / spec.name.file
        path.write_bytes(render_spec(spec))
        return path

    def start(self, stack: ExitStack) -> None:
        """Its agent and its kubelet."""
        self.kubelet(stack)
        stack.enter_context(RunningControl(str(self.places.run / "control.sock"), self.agent))

    def kubelet(self, stack: ExitStack) -> None:
        """The kubelet listens, and its PodResources lists one container."""
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(self.places.kubelet / "device-plugins" / "kubelet.sock"))
        listener.listen()

        def answer(request: Any, context: Any) -> Any:
            devices = [
                wire.ContainerDevices(resource_name=resource, device_ids=[f"GPU-a-_-{at}"])
                for resource, count in self.held.items()
                for at in range(count)
            ]
            containers = [wire.ContainerResources(name="main", devices=devices)]
            pod = wire.PodResources(name="train", namespace="default", containers=containers)
            return wire.ListPodResourcesResponse(pod_resources=[pod])

        handler = grpc.unary_unary_rpc_method_handler(
            answer, wire.ListPodResourcesRequest.FromString, wire.ListPodResourcesResponse.SerializeToString
        )
        server = grpc.server(stack.enter_context(ThreadPoolExecutor(2)))
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler}),)
        )
        server.add_insecure_port(f"unix:{self.places.kubelet}/pod-resources/kubelet.sock")
        server.start()
        stack.callback(lambda: server.stop(None).wait())
