"""gpushare's stand-in: an extender and a device plugin that do to a cluster what gpushare's own two programs do.

The peer itself cannot be built here, so this was written from what it is known to write and read (annotations, device
IDs, environment, the matching by size and age). No line of the product decides here: of it only the kubelet's messages,
NVML and the simulated cards are used, which stand for the driver and for NVIDIA's container runtime.

    extender   filter, bind (a patch of the annotations, then the binding), inspect; which card: the fullest that fits
    plugin     registers gpu-mem, tells gpu-count in the Node's status. Allocate does not say for whom: the oldest Pod
               of that size that is assumed and not assigned is taken to be it. It gets the card that its annotation
               names, whatever cards the device IDs were named after, and ASSIGNED becomes "true"

As the peer: a Pod with two GPU containers is not served, a container that was not recognised gets an environment that
says so and no card, and nothing here ever frees anything: who is there is asked of the API server each time.

    python -m testbed.others.gpushare extender --kubeconfig FILE --port N [--form old|both]
    python -m testbed.others.gpushare plugin --kubeconfig FILE --node NAME --cards 4x16GiB
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import grpc
import yaml

from aliquot.adapters.gpu import player
from aliquot.adapters.host.home import SIM_VARIABLE, Home
from aliquot.adapters.kubelet import deviceplugin_pb2 as wire
from testbed.client import MERGE_PATCH, STRATEGIC_PATCH, Client
from testbed.plane import HOST, ControlPlane, KubeScheduler
from testbed.processes import Program, free_port, wait_until
from testbed.realnodes.nodeprogram import NodeProgram
from testbed.realnodes.nodes import RealNode

Object = dict[str, Any]

MEM, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
_KEY = "ALIYUN_COM_GPU_MEM_"
IDX, DEV, POD, ASSIGNED, ASSUMED = (f"{_KEY}{suffix}" for suffix in ("IDX", "DEV", "POD", "ASSIGNED", "ASSUME_TIME"))
CONTAINER = f"{_KEY}CONTAINER"
ALLOCATION = "scheduler.framework.gpushare.allocation"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"

# The peer's own accounts: our chart lets these two, and no other, write its annotations.
_EXTENDER, _PLUGIN = "gpushare-schd-extender", "gpushare-device-plugin"
_RIGHTS = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "gpushare"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "kube-system"} for name in (_EXTENDER, _PLUGIN)],
}

_PREFIX = "/gpushare-scheduler"
_PLUGINS = Path("/var/lib/kubelet/device-plugins")
_SOCKET = "aliyungpushare.sock"
_LIBRARIES = "/usr/local/nvidia/lib"  # in containers


def wanted(pod: Object) -> int:
    """What its containers ask for together."""
    return sum(
        int(container.get("resources", {}).get("limits", {}).get(MEM, 0)) for container in pod["spec"]["containers"]
    )


def placed(pods: Iterable[Object], node: str) -> dict[int, int]:
    """What is taken of each card of the node, by the annotations of the Pods there, the newer one first."""
    used: dict[int, int] = {}
    for pod in pods:
        annotations = pod["metadata"].get("annotations") or {}
        if pod["spec"].get("nodeName") != node or pod["status"].get("phase") in ("Succeeded", "Failed"):
            continue
        for card, memory in _held(annotations):
            used[card] = used.get(card, 0) + memory
    return used


def _held(annotations: dict[str, str]) -> list[tuple[int, int]]:
    if ALLOCATION in annotations:
        containers = json.loads(annotations[ALLOCATION]).values()
        return [(int(card), memory) for cards in containers for card, memory in cards.items()]
    return [(int(annotations[IDX]), int(annotations[POD]))] if IDX in annotations else []


def _client(kubeconfig: Path) -> Client:
    said = yaml.safe_load(kubeconfig.read_text())
    cluster, user = said["clusters"][0]["cluster"], said["users"][0]["user"]
    at = urlsplit(cluster["server"])
    return Client(at.hostname or HOST, at.port or 443, Path(cluster["certificate-authority"]), user["token"])


# --- the extender ----------------------------------------------------------------------------------------------------


class Extender:
    """Its verbs. One bind at a time, as the peer's lock makes it."""

    def __init__(self, api: Client, *, newer: bool) -> None:
        self._api, self._newer, self._lock = api, newer, threading.Lock()

    def filter(self, asked: Object) -> Object:
        pods, wants = self._pods(), wanted(asked["Pod"])
        free = {name: self._free(name, pods) for name in asked["NodeNames"]}
        fits = [name for name, cards in free.items() if any(left >= wants for left in cards.values())]
        failed = {name: "no enough gpu memory" for name in asked["NodeNames"] if name not in fits}
        return {"Nodes": None, "NodeNames": fits, "FailedNodes": failed, "Error": ""}

    def bind(self, asked: Object) -> Object:
        path = f"/api/v1/namespaces/{asked['PodNamespace']}/pods/{asked['PodName']}"
        with self._lock:
            pod, pods = self._api("GET", path), self._pods()
            wants = wanted(pod)
            cards = {card: left for card, left in self._free(asked["Node"], pods).items() if left >= wants}
            if not cards:
                return {"Error": f"the node {asked['Node']} can't place the pod {asked['PodName']}"}
            card = min(cards, key=lambda index: (cards[index], index))
            marks = {"metadata": {"annotations": self._annotations(pod, asked["Node"], card)}}
            self._api("PATCH", path, marks, content_type=STRATEGIC_PATCH)
            target = {"apiVersion": "v1", "kind": "Node", "name": asked["Node"]}
            names = {"name": asked["PodName"], "namespace": asked["PodNamespace"], "uid": asked["PodUID"]}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": names, "target": target}
            self._api("POST", f"{path}/binding", binding)
        return {"Error": ""}

    def inspect(self) -> Object:
        """What its tool reads."""
        pods, nodes = self._pods(), []
        for node in self._api("GET", "/api/v1/nodes")["items"]:
            name, size = node["metadata"]["name"], self._size(node)
            used = placed(pods, name)
            cards = [{"id": card, "totalGPU": size, "usedGPU": used.get(card, 0)} for card in range(self._cards(node))]
            nodes.append({"name": name, "totalGPU": size * len(cards), "usedGPU": sum(used.values()), "devs": cards})
        return {"nodes": nodes}

    def _annotations(self, pod: Object, node: str, card: int) -> dict[str, str]:
        size = self._size(self._api("GET", f"/api/v1/nodes/{node}"))
        old = {IDX: str(card), DEV: str(size), POD: str(wanted(pod)), ASSIGNED: "false", ASSUMED: str(time.time_ns())}
        amounts = [container.get("resources", {}).get("limits", {}).get(MEM) for container in pod["spec"]["containers"]]
        newer = {str(at): {str(card): int(amount)} for at, amount in enumerate(amounts) if amount}
        return {**old, **({ALLOCATION: json.dumps(newer)} if self._newer else {})}

    def _pods(self) -> list[Object]:
        found: list[Object] = self._api("GET", "/api/v1/pods")["items"]
        return found

    def _free(self, name: str, pods: Iterable[Object]) -> dict[int, int]:
        node = self._api("GET", f"/api/v1/nodes/{name}")
        used, size = placed(pods, name), self._size(node)
        return {card: size - used.get(card, 0) for card in range(self._cards(node))}

    @staticmethod
    def _cards(node: Object) -> int:
        return int(node["status"]["capacity"].get(COUNT, 0))

    def _size(self, node: Object) -> int:
        """All cards of a node are taken to be of one size."""
        return int(node["status"]["capacity"].get(MEM, 0)) // max(self._cards(node), 1)


def serve_extender(given: argparse.Namespace) -> None:
    extender = Extender(_client(given.kubeconfig), newer=given.form == "both")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(extender.inspect if self.path.startswith(f"{_PREFIX}/inspect") else lambda: {"version": "1"})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            verb = {f"{_PREFIX}/filter": extender.filter, f"{_PREFIX}/bind": extender.bind}[self.path]
            self._answer(lambda: verb(body))

        def _answer(self, work: Any) -> None:
            try:
                answer = work()
            except Exception as error:
                answer = {"Error": f"{type(error).__name__}: {error}"}
            text = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    ThreadingHTTPServer((HOST, given.port), Handler).serve_forever()


# --- the device plugin -----------------------------------------------------------------------------------------------


class Plugin:
    """What the kubelet asks."""

    def __init__(self, api: Client, node: str, cards: Sequence[tuple[str, int]], sim: str) -> None:
        self._api, self._node, self._cards, self._sim = api, node, cards, sim
        self._lock = threading.Lock()

    def options(self, request: wire.Empty, context: grpc.ServicerContext) -> wire.DevicePluginOptions:
        return wire.DevicePluginOptions()

    def devices(self, request: wire.Empty, context: grpc.ServicerContext) -> Iterable[wire.ListAndWatchResponse]:
        ids = [f"{uuid}-_-{at}" for uuid, gib in self._cards for at in range(gib)]
        yield wire.ListAndWatchResponse(devices=[wire.Device(ID=id_, health="Healthy") for id_ in ids])
        threading.Event().wait()

    def allocate(self, request: wire.AllocateRequest, context: grpc.ServicerContext) -> wire.AllocateResponse:
        total = sum(len(request.devices_ids) for request in request.container_requests)
        with self._lock:
            pod = next((candidate for candidate in self._candidates() if wanted(candidate) == total), None)
            if pod is None:
                env = {VISIBLE: f"no-gpu-has-{total}GiB-to-run", IDX: "-1"}
                return wire.AllocateResponse(container_responses=[wire.ContainerAllocateResponse(envs=env)])
            where = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
            marks = {"metadata": {"annotations": {ASSIGNED: "true", ASSUMED: str(time.time_ns())}}}
            self._api("PATCH", where, marks, content_type=STRATEGIC_PATCH)
        card = int(pod["metadata"]["annotations"][IDX])
        answers = [self._container(card, total, len(request.devices_ids)) for request in request.container_requests]
        return wire.AllocateResponse(container_responses=answers)

    def _candidates(self) -> list[Object]:
        """Pods of this node that are assumed and not assigned, the oldest first."""
        params = {"fieldSelector": f"spec.nodeName={self._node},status.phase=Pending"}
        pods = self._api("GET", "/api/v1/pods", params=params)["items"]
        assumed = [pod for pod in pods if (pod["metadata"].get("annotations") or {}).get(ASSIGNED) == "false"]
        return sorted(assumed, key=lambda pod: int(pod["metadata"]["annotations"][ASSUMED]))

    def _container(self, card: int, pod: int, container: int) -> wire.ContainerAllocateResponse:
        uuid, size = self._cards[card]
        own = {VISIBLE: uuid, IDX: str(card), POD: str(pod), CONTAINER: str(container), DEV: str(size)}
        # As NVIDIA's runtime would by NVIDIA_VISIBLE_DEVICES: the driver, and only that card.
        driver = {SIM_VARIABLE: self._sim, "LD_LIBRARY_PATH": _LIBRARIES, "CUDA_VISIBLE_DEVICES": uuid}
        folder = str(Path(self._sim).parent)
        mounts = [wire.Mount(container_path=folder, host_path=folder)]
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            there = f"{player.simulation()}/{name}"
            mounts.append(wire.Mount(container_path=f"{_LIBRARIES}/{name}", host_path=there, read_only=True))
        return wire.ContainerAllocateResponse(envs={**own, **driver}, mounts=mounts)

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        unary = grpc.unary_unary_rpc_method_handler
        return {
            "GetDevicePluginOptions": unary(
                self.options, wire.Empty.FromString, wire.DevicePluginOptions.SerializeToString
            ),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                self.devices, wire.Empty.FromString, wire.ListAndWatchResponse.SerializeToString
            ),
            "Allocate": unary(self.allocate, wire.AllocateRequest.FromString, wire.AllocateResponse.SerializeToString),
        }


def serve_plugin(given: argparse.Namespace) -> None:
    from aliquot.adapters.gpu.nvml import Nvml

    home = Home("/run/aliquot", "/var/lib/aliquot")  # the cards are a process of the node, which outlives us
    for folder in home:
        Path(folder).mkdir(parents=True, exist_ok=True)
    count, gib = given.cards.removesuffix("GiB").split("x")
    playing = player.play(home, int(count), int(gib) * 1024, node=given.node)
    cards = sorted(Nvml().cards(), key=lambda card: card.index)
    api = _client(given.kubeconfig)
    plugin = Plugin(api, given.node, [(card.uuid, card.memory_mib // 1024) for card in cards], playing.socket)
    amount = {COUNT: str(len(cards))}
    body = {"status": {"capacity": amount, "allocatable": amount}}
    api("PATCH", f"/api/v1/nodes/{given.node}/status", body, content_type=MERGE_PATCH)
    (_PLUGINS / _SOCKET).unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(16))
    generic = grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", plugin.handlers())
    server.add_generic_rpc_handlers((generic,))
    server.add_insecure_port(f"unix:{_PLUGINS / _SOCKET}")
    server.start()
    _register()
    print("registered", flush=True)
    server.wait_for_termination()


def _register() -> None:
    options = [("grpc.default_authority", "localhost")]
    with grpc.insecure_channel(f"unix:{_PLUGINS / 'kubelet.sock'}", options=options) as channel:
        call = channel.unary_unary(
            "/v1beta1.Registration/Register",
            request_serializer=wire.RegisterRequest.SerializeToString,
            response_deserializer=wire.Empty.FromString,
        )
        call(wire.RegisterRequest(version="v1beta1", endpoint=_SOCKET, resource_name=MEM), timeout=10)


# --- both, as a test starts and ends them ----------------------------------------------------------------------------


class Peer:
    """gpushare on these nodes: its extender behind a kube-scheduler of its own, its plugin on each node. Ready."""

    def __init__(
        self,
        plane: ControlPlane,
        nodes: Sequence[RealNode],
        folder: Path,
        *,
        cards: str = "4x16GiB",
        form: str = "both",
    ) -> None:
        self.plane, self.nodes, self.folder, self.cards = plane, tuple(nodes), folder, cards
        self.accounts = {name: plane.kubeconfig_for(f"kube-system/{name}") for name in (_EXTENDER, _PLUGIN)}
        plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(_RIGHTS))
        self.port = free_port()
        self.start_scheduling(form)
        self.plugins: dict[str, NodeProgram] = {}
        for node in self.nodes:
            self.start_plugin(node)

    def start_scheduling(self, form: str = "both") -> None:
        self.extender = self._start_extender(form)
        self.kube: KubeScheduler = self.plane.start_scheduler(self._configuration(), "kube-scheduler-gpushare")

    def change_form(self, form: str) -> None:
        """An extender of another age: it writes the old annotations alone, or both."""
        self.extender.stop()
        self.extender = self._start_extender(form)

    def start_plugin(self, node: RealNode) -> None:
        words = ["plugin", f"--kubeconfig={self.accounts[_PLUGIN]}", f"--node={node.name}", f"--cards={self.cards}"]
        driver = {"LD_LIBRARY_PATH": player.simulation(), SIM_VARIABLE: "/run/aliquot/player/sock"}
        program = node.run(_command(*words), name="gpushare-plugin", environment={**_path(), **driver})
        self.plugins[node.name] = program
        program.wait_ready(lambda: "registered" in program.said, 20)

    def leave(self) -> None:
        """Its Deployment and its DaemonSet are deleted; the cluster's kube-scheduler still asks for the extender."""
        self.extender.stop()
        for node in self.nodes:
            self.stop_plugin(node)

    def come_back(self, form: str = "both") -> None:
        """Apply both again, as they were before `leave`."""
        self.extender = self._start_extender(form)
        for node in self.nodes:
            self.start_plugin(node)

    def stop_scheduling(self) -> None:
        """The extender is scaled to 0."""
        self.kube.stop(patience=3)
        self.extender.stop()

    def stop_plugin(self, node: RealNode) -> None:
        """The plugin's Pod is ended: the peer leaves its socket, which nobody answers."""
        self.plugins.pop(node.name).kill()

    def stop(self) -> None:
        self.stop_scheduling()
        for node in self.nodes:
            if node.name in self.plugins:
                self.stop_plugin(node)

    def remove_accounts(self) -> None:
        """After the last `stop`."""
        self.plane.kubectl("delete", "clusterrolebinding/gpushare")
        self.plane.kubectl("delete", "-n", "kube-system", *(f"serviceaccount/{name}" for name in self.accounts))

    def _start_extender(self, form: str) -> Program:
        words = ["extender", f"--kubeconfig={self.accounts[_EXTENDER]}", f"--port={self.port}", f"--form={form}"]
        log = self.folder / "gpushare-extender.log"
        program = Program(_command(*words), log, name="gpushare-extender", environment=_path())
        wait_until(self._answers, 10, "gpushare's extender answers", saw=program.tail)
        return program

    def _answers(self) -> bool:
        try:
            return bool(self.inspect())
        except OSError:
            return False

    def inspect(self) -> Object:
        """The extender's own JSON."""
        with urlopen(f"http://{HOST}:{self.port}{_PREFIX}/inspect", timeout=10) as response:
            found: Object = json.load(response)
        return found

    def _configuration(self) -> Object:
        """The peer's policy file, as a configuration of today."""
        verbs = {"urlPrefix": f"http://{HOST}:{self.port}{_PREFIX}", "filterVerb": "filter", "bindVerb": "bind"}
        ours = [{"name": MEM, "ignoredByScheduler": False}]
        extender = {**verbs, "enableHTTPS": False, "nodeCacheCapable": True, "managedResources": ours}
        head = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
        return {**head, "extenders": [{**extender, "ignorable": False}]}


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "testbed.others.gpushare", *words]


def _path() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent.parent), os.environ.get("PYTHONPATH", "")])}


def main() -> None:
    parser = argparse.ArgumentParser(description="gpushare's stand-in")
    verbs = parser.add_subparsers(required=True)
    extender = verbs.add_parser("extender")
    extender.add_argument("--port", type=int, required=True)
    extender.add_argument("--form", choices=("old", "both"), default="both")
    extender.set_defaults(run=serve_extender)
    plugin = verbs.add_parser("plugin")
    plugin.add_argument("--node", required=True)
    plugin.add_argument("--cards", default="4x16GiB")
    plugin.set_defaults(run=serve_plugin)
    for verb in (extender, plugin):
        verb.add_argument("--kubeconfig", type=Path, required=True)
    given = parser.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()
