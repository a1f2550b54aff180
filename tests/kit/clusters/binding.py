"""A binder with a cluster and an API server that answers binds as planned."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from aliquot.adapters.kubernetes.kube import ApiError, Kube, NotSent, Unreachable
from aliquot.dialects.wire.extender import Binding
from aliquot.dialects.wire.objects import NodeObject, PodObject
from aliquot.services.scheduler.binder import Binder
from kit.clusters.watchobjects import a_cluster, as_pod, live_node, pod_json
from kit.values.builders import GIB
from kit.values.manifests import Json

ON_CARD_0 = {"ALIYUN_COM_GPU_MEM_IDX": "0"}


class BindingApi:
    """An API server that knows Pods and bindings, and answers as planned.

    What it is told, per write: `yes`; a status, which is said without doing anything; `lost` with how long after the
    call the write happens (None: never), while the caller hears nothing; `done 500`: done, and told as failed.
    """

    def __init__(self) -> None:
        self.pods: dict[str, Json] = {}
        self.nodes: dict[str, NodeObject] = {}
        self.version = 100
        self.writes: deque[Any] = deque()
        self.looks: deque[Exception] = deque()
        self.calls: list[tuple[str, str]] = []
        self.watch: Callable[[PodObject], None] = lambda pod: None
        self.gone: Callable[[str], None] = lambda key: None
        self.slow = 0.01  # seconds that a call takes

    def put(self, pod: Json) -> None:
        self.version += 1
        pod["metadata"]["resourceVersion"] = str(self.version)
        self.pods[pod["metadata"]["name"]] = pod
        self.watch(as_pod(pod))

    def remove(self, name: str) -> None:
        del self.pods[name]
        self.gone(f"ns/{name}")

    async def get(self, path: str, **_: object) -> PodObject | NodeObject:
        self.calls.append(("get", path))
        await asyncio.sleep(self.slow)
        if self.looks:
            raise self.looks.popleft()
        name = path.rpartition("/")[2]
        if path.startswith("/api/v1/nodes/"):
            if name == "nowhere":
                raise ApiError(404, "NotFound", f'nodes "{name}" not found')
            return self.nodes.get(name) or live_node(name)
        if name not in self.pods:
            raise ApiError(404, "NotFound", f'pods "{name}" not found')
        return as_pod(self.pods[name])

    async def create(self, path: str, body: Json, **_: object) -> Any:
        self.calls.append(("bind", path))
        outcome = self.writes.popleft() if self.writes else "yes"
        await asyncio.sleep(self.slow)
        match outcome:
            case "yes":
                self.bind(body)
            case "done 500":
                self.bind(body)
                raise ApiError(500, "InternalError", "etcd timed out")
            case int():
                raise ApiError(outcome, "No", "no")
            case "not sent":
                raise NotSent("not sent")
            case ("lost", after):
                if after is not None:
                    asyncio.get_running_loop().call_later(after, self._late, body)
                await asyncio.sleep(5.0)
                raise Unreachable("no answer in time")

    def _late(self, body: Json) -> None:
        try:
            self.bind(body)
        except ApiError:
            return

    def bind(self, body: Json) -> None:
        metadata = body["metadata"]
        pod = self.pods.get(metadata["name"])
        if pod is None:
            raise ApiError(404, "NotFound", f'pods "{metadata["name"]}" not found')
        if pod["spec"].get("nodeName") or metadata.get("uid", pod["metadata"]["uid"]) != pod["metadata"]["uid"]:
            raise ApiError(409, "Conflict", f"pod {metadata['name']} is already assigned to a node")
        annotations = {**(pod["metadata"].get("annotations") or {}), **metadata["annotations"]}
        self.put(
            {
                **pod,
                "metadata": {**pod["metadata"], "annotations": annotations},
                "spec": {**pod["spec"], "nodeName": body["target"]["name"]},
            }
        )


class Rig:
    """A cluster of one node with one card of 16 GiB (or others), and a binder. The watch reports at once, or never."""

    def __init__(self, *nodes: Any, watch: bool = True, leading: bool = True) -> None:
        self.api, self.cluster, self.leading = BindingApi(), a_cluster(*(nodes or (live_node(),))), leading
        if watch:
            self.api.watch, self.api.gone = self.cluster.set_pod, self.cluster.drop_pod
        self.binder = Binder(
            cast(Kube, self.api),
            self.cluster,
            may_write=lambda: self.leading,
            on_pod=self.cluster.set_pod,
            now_ns=lambda: 7,
            extra_annotations=lambda placed: {"more": "yes"},
        )

    def pod(self, name: str = "p", limits: Json | None = None, *, watched: bool = True, **more: Any) -> Json:
        """A Pod that the API server has, and that the watch has reported."""
        pod = pod_json(name, limits, **more)
        self.api.put(pod)
        if watched:
            self.cluster.set_pod(as_pod(pod))
        return pod

    async def bind(self, name: str = "p", node: str = "n1", uid: str | None = None) -> None:
        await self.binder.bind(Binding(name, "ns", f"uid-{name}" if uid is None else uid, node))

    @property
    def free(self) -> int:
        return int(self.cluster.board.room_memory[self.cluster.board.row_of["n1"], 0]) // GIB

    @property
    def binds(self) -> int:
        return sum(verb == "bind" for verb, _ in self.api.calls)
